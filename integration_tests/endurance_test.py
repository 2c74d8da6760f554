"""Training holds no more after many steps than after a few."""

import pytest

from integration_tests.benchmarks import endurance


@pytest.mark.parametrize("model", ["mlp", "cnn"])
def test_nothing_grows(model):
    rows = list(endurance.endure(model, 120))
    assert len(rows) == endurance.PARTS
    assert rows[-1][0] >= 120
    assert all(megabytes > 10 for _, megabytes, _, _ in rows)
    assert endurance.growth(rows) == []


def test_growth_is_told():
    flat = [(100 * i, 50.0 + 0.1 * i, 7, 1) for i in range(10)]
    assert endurance.growth(flat) == []
    leaks = [(i, 50.0 + i, 7 + i, 1 + i) for i in range(10)]
    assert [x.split()[0] for x in endurance.growth(leaks)] == [
        "memory",
        "open",
        "threads",
    ]
