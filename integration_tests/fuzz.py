"""Random ops on random arguments, compared with the numpy backend.

Run: python -m integration_tests.fuzz --cases N --seed S [--op NAME]

A case is a row of the table with drawn arguments: of any dtype the op takes,
some with special values, some of mixed dtypes, some large or empty, some as
views. Each disagreement is shrunk and printed with the line that reproduces it.
"""

import argparse
import dataclasses
import sys

import numpy as np

from integration_tests.ops import checks
from integration_tests.ops.op_table import TABLE
from integration_tests.ops.op_table import Draw
from integration_tests.ops.op_table import Op
from integration_tests.ops.reference import Reference

SHRINK_ATTEMPTS = 15


@dataclasses.dataclass(frozen=True)
class Case:
    """What names one case.

    Attributes:
        op: `Op` of the table.
        dtype: Dtype of its arrays.
        seed: Seed of its arguments.
        small: Whether to draw small shapes.
        tame: Whether to leave out special values, mixed dtypes and views.
    """

    op: Op
    dtype: str
    seed: int
    small: bool = False
    tame: bool = False

    def disagreement(self, reference):
        """Returns in words how the results differ, or `None`."""
        wild = not self.tame
        rng = np.random.default_rng([self.seed, 1])
        edges = wild and self.op.edges and rng.integers(2) == 0
        views = rng if wild and rng.integers(3) == 0 else None
        draw = Draw(self.seed, self.dtype, self.small, wild, edges)
        args, kwargs = self.op.draw(draw)
        try:
            checks.check_values(
                self.op, args, kwargs, self.dtype, reference, views
            )
        except checks.Disagreement as disagreement:
            viewed = " of views" if views else ""
            with np.printoptions(threshold=100):
                return f"{disagreement}\nargs{viewed} {args}\nkwargs {kwargs}"
        return None

    def shrunk(self, reference):
        """Looks for a simpler case of the same op that disagrees too."""
        for small, tame in ((True, True), (True, False), (False, True)):
            for attempt in range(SHRINK_ATTEMPTS):
                case = dataclasses.replace(
                    self, seed=self.seed + attempt, small=small, tame=tame
                )
                if case.disagreement(reference):
                    return case
        return self

    def __str__(self):
        row = _rows(self.op.name).index(self.op)
        return (
            f"python -m integration_tests.fuzz --cases 1 --op {self.op.name} "
            f"--row {row} --dtype {self.dtype} --seed {self.seed}"
            + " --small" * self.small
            + " --tame" * self.tame
        )


def _rows(name):
    """Returns the table's rows for an op, or all of them."""
    return [op for op in TABLE if name in (None, op.name)]


def _cases(ops, arguments):
    rng = np.random.default_rng(arguments.seed)
    for _ in range(arguments.cases):
        op = ops[int(rng.integers(len(ops)))]
        dtypes = op.fuzzed_dtypes
        dtype = arguments.dtype or dtypes[int(rng.integers(len(dtypes)))]
        seed = int(rng.integers(2**31))
        if arguments.cases == 1:
            seed = arguments.seed
        yield Case(op, dtype, seed, arguments.small, arguments.tame)


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--op", help="only this op")
    parser.add_argument(
        "--row", type=int, help="which of several rows for this op"
    )
    parser.add_argument("--dtype", help="only this dtype")
    parser.add_argument("--small", action="store_true", help="small shapes")
    parser.add_argument(
        "--tame",
        action="store_true",
        help="no special values, mixed dtypes or views",
    )
    arguments = parser.parse_args(argv)
    ops = _rows(arguments.op)
    if arguments.row is not None:
        ops = ops[arguments.row :][:1]
    if not ops:
        parser.error(f"no op '{arguments.op}' in the table")
    reference = Reference("numpy")
    failures = 0
    for case in _cases(ops, arguments):
        if case.disagreement(reference) is None:
            continue
        failures += 1
        case = case.shrunk(reference)
        print(f"{case}\n{case.disagreement(reference)}\n", flush=True)
    reference.close()
    print(f"{arguments.cases} cases, {failures} disagreements")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
