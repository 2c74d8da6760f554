"""What the patches to tinygrad's classes are for."""

import gc
import math
import os
import threading

import numpy as np
import pytest
from tinygrad import Device
from tinygrad import Tensor
from tinygrad import dtypes

import keras
from integration_tests.processes import run_python
from keras.src.backend.tinygrad.engine import patches
from keras.src.backend.tinygrad.engine import rendering
from keras.src.backend.tinygrad.engine.internals import Buffer
from keras.src.backend.tinygrad.engine.internals import ClangRenderer
from keras.src.backend.tinygrad.engine.internals import CStyleLanguage
from keras.src.backend.tinygrad.engine.internals import WGSLRenderer


def test_operands_that_do_not_broadcast_are_named():
    x, y = keras.ops.ones((40, 3, 2)), keras.ops.ones((40, 1))
    for combine in (lambda: x - y, lambda: x * y, lambda: x**y):
        with pytest.raises(ValueError, match=r"\(40, 3, 2\) and \(40, 1\)"):
            combine()
    with pytest.raises(ValueError, match=r"\(40, 3, 2\) and \(7, 2, 2\)"):
        x @ keras.ops.ones((7, 2, 2))


@pytest.mark.parametrize(
    "dtype", ["float16", "float32", "bfloat16", "uint8", "float8_e4m3fn"]
)
def test_a_dtype_prints_the_name_that_keras_gives_it(dtype):
    assert str(keras.ops.zeros((2,), dtype).dtype) == f"dtypes.{dtype}"


def test_a_scalar_tensor_is_formatted_as_its_number():
    scalar = keras.ops.convert_to_tensor(0.12345, dtype="float32")
    assert f"{scalar:.3f} {scalar * 2:8.1e}" == "0.123  2.5e-01"
    assert f"{scalar}" == str(scalar)
    with pytest.raises(TypeError, match=r"shape=\(3,\), format '.2f'"):
        f"{keras.ops.zeros(3):.2f}"


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64"])
def test_a_choice_of_what_is_not_finite_is_cast(value, dtype):
    x = np.array([1.5, 2.5, -3], "float32")
    chosen = keras.ops.where(keras.ops.convert_to_tensor(x) > 2, value, x)
    expected = np.where(x > 2, np.float32(value), x)
    if dtype in ("int8", "uint8"):
        limits = np.iinfo(dtype)
        expected = np.nan_to_num(np.clip(expected, limits.min, limits.max))
    # Beyond 32 bits it is NumPy's answer on the same processor.
    with np.errstate(invalid="ignore"):
        expected = expected.astype(dtype)
    got = np.asarray(keras.ops.cast(chosen, dtype))
    np.testing.assert_array_equal(got, expected)


def test_a_number_divided_by_a_reduction_is_divided_once():
    rng = np.random.default_rng(0)
    x = rng.integers(1, 256, (64, 25)).astype("float32")
    tensor = keras.ops.convert_to_tensor(x)
    top = keras.ops.max(tensor, axis=1, keepdims=True)
    got = np.asarray(tensor * (255.0 / top))
    expected = x * (np.float32(255) / x.max(axis=1, keepdims=True))
    np.testing.assert_array_equal(got, expected)


def test_numbers_over_numbers_are_folded_as_numpy_divides_them():
    zero = keras.ops.zeros((3,))
    with np.errstate(divide="ignore", invalid="ignore"):
        for number in (2.0, -2.0, 0.0):
            got = np.asarray(number / zero)
            np.testing.assert_array_equal(got, number / np.zeros(3, "float32"))


def test_large_graphs_print_on_one_line():
    first = second = keras.ops.ones((3,))
    for i in range(40):
        first, second = first * second + i, second * first - i
    texts = {repr(first.uop), repr(second.uop)}
    assert len(texts) == 2
    assert max(map(len, texts)) < 200


def test_a_constant_nan_differs_from_itself():
    x = Tensor([1.0, math.nan, math.inf]).realize()
    chosen = x.ne(x).where(math.nan, x)
    assert chosen.ne(chosen).tolist() == [False, True, False]
    assert chosen.eq(chosen).tolist() == [True, False, True]


needs_cpu = pytest.mark.skipif(
    Device.DEFAULT != "CPU", reason="the allocator is the CPU's"
)


def kept(allocator):
    return sum(
        size * len(found) for (size, _), found in allocator.cache.items()
    )


@needs_cpu
def test_freed_memory_is_counted_from_any_thread(monkeypatch):
    allocator = Device["CPU"].allocator
    allocator.free_cache()
    assert allocator.kept_bytes == kept(allocator) == 0
    # Some of the buffers are beyond it.
    monkeypatch.setattr(patches, "_KEPT_BYTES", 40_000)

    def work(seed):
        sizes = np.random.default_rng(seed).integers(1, 20, 300) * 1000
        for number, size in enumerate(map(int, sizes)):
            buffer = Buffer("CPU", size, dtypes.uint8).allocate()
            # In a cycle: freed wherever garbage happens to be collected.
            cycle = [buffer]
            cycle.append(cycle)
            del buffer, cycle
            if number % 50 == 0:
                gc.collect()
            if number % 100 == 0:
                allocator.free_cache()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    gc.collect()
    assert 0 < allocator.kept_bytes == kept(allocator) <= 40_000


@needs_cpu
@pytest.mark.skipif(
    not os.path.exists("/proc/self/statm"), reason="asks Linux for its size"
)
def test_kept_memory_is_given_back_where_there_is_no_other():
    code = """
import resource
import keras
from tinygrad import Device
from tinygrad import dtypes
from keras.src.backend.tinygrad.engine.internals import Buffer

def allocate(megabytes):
    return Buffer("CPU", megabytes << 20, dtypes.uint8).allocate()

allocator = Device["CPU"].allocator
allocate(200)
assert allocator.kept_bytes >= 200 << 20
with open("/proc/self/statm") as file:
    used = int(file.read().split()[0]) * resource.getpagesize()
limit = used + (100 << 20)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
buffers = [allocate(150), allocate(140)]
assert allocator.kept_bytes == 0
try:
    allocate(5000)
except MemoryError as error:
    print(error)
"""
    done = run_python(code)
    assert done.returncode == 0, done.stderr
    assert "Allocation of 4.88 GB failed on CPU" in done.stdout


def test_renderers_are_changed_once():
    def patterns():
        return {
            kind: len(kind.string_rewrite.patterns)
            for kind in (CStyleLanguage, ClangRenderer, WGSLRenderer)
        }

    before = patterns()
    patches.apply()
    assert patterns() == before
    shared = {id(p) for p, _ in rendering._NEGATION.patterns}
    for kind in before:
        assert shared <= {id(p) for p, _ in kind.string_rewrite.patterns}
