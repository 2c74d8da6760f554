"""Gradients at edges and exceptions, against what other backends answered."""

import pytest

from integration_tests.ops import bad_arguments
from integration_tests.ops import checks
from integration_tests.ops import edge_table
from integration_tests.ops import record
from integration_tests.ops import record_checks
from integration_tests.ops.op_table import TABLE
from integration_tests.ops.op_table import Op
from integration_tests.ops.reference import Reference

RECORD = record.read()
EDGES = {case: rest for case, *rest in edge_table.cases()}
OPS = {op.name: op for op in reversed(TABLE)}
BAD = record.bad_cases()


@pytest.fixture(scope="module")
def numpy_backend():
    reference = Reference("numpy")
    yield reference
    reference.close()


def test_record_is_of_these_tables():
    """If not: `python -m integration_tests.ops.record`."""
    assert {c: record.digest(*r[1:]) for c, r in EDGES.items()} == {
        c: answers[0] for c, answers in RECORD["edges"].items()
    }
    assert {name: record.digest_of_bad(c) for name, c in BAD.items()} == {
        name: number for name, (number, _) in RECORD["errors"].items()
    }


def test_every_differentiable_op_is_looked_at():
    differentiable = {op.name for op in TABLE if op.gradient}
    assert not differentiable - set(edge_table.EDGES) - edge_table.SMOOTH
    assert not edge_table.SMOOTH & set(edge_table.EDGES)


@pytest.mark.parametrize("case", EDGES)
def test_gradients_at_edges(case):
    _, torch, jax = RECORD["edges"][case]
    deviation = edge_table.DEVIATIONS.get(case)
    record_checks.check_edge(*EDGES[case], torch, jax, deviation)


@pytest.mark.parametrize("case", sorted(set(EDGES) - edge_table.OTHER_VALUES))
def test_values_at_edges(case, numpy_backend):
    name, args, kwargs = EDGES[case]
    op = OPS.get(name) or Op(name, None)
    checks.check_values(op, args, kwargs, "float32", numpy_backend)


@pytest.mark.parametrize("name", BAD)
def test_bad_arguments(name, numpy_backend):
    wrong = []
    for label, raised in RECORD["errors"][name][1].items():
        if (name, label) in bad_arguments.OTHER_ERRORS:
            continue
        try:
            arguments = BAD[name][label]
            record_checks.check_error(
                name, label, *arguments, raised, numpy_backend
            )
        except checks.Disagreement as disagreement:
            wrong.append(f"{label}: {disagreement}")
    assert not wrong, "\n".join(wrong)
