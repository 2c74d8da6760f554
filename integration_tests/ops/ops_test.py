"""Every op of the table, through every check."""

import zlib

import pytest

from integration_tests.ops import checks
from integration_tests.ops.op_table import TABLE
from integration_tests.ops.op_table import Draw
from integration_tests.ops.reference import Reference

SAMPLES = 3


@pytest.fixture(scope="module")
def numpy_backend():
    reference = Reference("numpy")
    yield reference
    reference.close()


def _cases(dtypes=None):
    for op in TABLE:
        for dtype in op.dtypes if dtypes is None else dtypes(op):
            yield pytest.param(op, dtype, id=f"{op.name}-{dtype}")


def _draws(op, dtype, samples=SAMPLES):
    for sample in range(samples):
        seed = zlib.crc32(f"{op.name} {dtype} {sample}".encode())
        yield seed, *op.draw(Draw(seed, dtype))


@pytest.mark.parametrize("op, dtype", _cases())
def test_values(op, dtype, numpy_backend):
    for _, args, kwargs in _draws(op, dtype):
        checks.check_values(op, args, kwargs, dtype, numpy_backend)


@pytest.mark.parametrize("op, dtype", _cases(lambda op: op.dtypes[:1]))
def test_views(op, dtype):
    for _, args, kwargs in _draws(op, dtype, 1):
        checks.check_views(op, args, kwargs, dtype)


@pytest.mark.parametrize(
    "op, dtype", _cases(lambda op: op.dtypes[:1] if op.compiled else ())
)
def test_compiled(op, dtype):
    for _, args, kwargs in _draws(op, dtype, 1):
        checks.check_compiled(op, args, kwargs, dtype)


@pytest.mark.parametrize(
    "op, dtype", _cases(lambda op: op.dtypes if op.spec else ())
)
def test_symbolic_shapes_and_dtypes(op, dtype):
    for _, args, kwargs in _draws(op, dtype):
        checks.check_spec(op, args, kwargs, dtype)


@pytest.mark.parametrize(
    "op, dtype",
    _cases(lambda op: ("float32",) if op.gradient else ()),
)
def test_gradients(op, dtype):
    for seed, args, kwargs in _draws(op, dtype, 2):
        checks.check_gradient(op, args, kwargs, seed)
