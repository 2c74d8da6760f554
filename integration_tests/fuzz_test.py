"""The fuzzer on a few hundred cases, and what it does with a failure."""

import dataclasses

import numpy as np

from integration_tests import fuzz
from integration_tests.ops import op_table


def test_500_cases_agree():
    assert fuzz.main(["--cases", "500", "--seed", "0"]) == 0


def test_a_disagreement_is_shrunk_and_reproduced(monkeypatch, capsys):
    op = next(op for op in op_table.TABLE if op.name == "exp")
    wrong = dataclasses.replace(op, compare=_never_equal())
    monkeypatch.setattr(fuzz, "TABLE", (wrong,))
    assert fuzz.main(["--cases", "3", "--seed", "1"]) == 1
    printed = capsys.readouterr().out
    assert "--cases 1 --op exp" in printed
    assert "--small" in printed
    assert "3 cases, 3 disagreements" in printed


def _never_equal():
    """Returns a comparison that no two results survive."""
    count = iter(range(10**6))
    return lambda results, args: np.float64(next(count))
