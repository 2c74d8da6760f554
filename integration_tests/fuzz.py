"""Random ops on random arguments, compared with the numpy backend.

Run: python -m integration_tests.fuzz --cases N --seed S [--op NAME]

Each disagreement is shrunk and printed with the line that reproduces it.
"""

import argparse
import sys

import numpy as np

from integration_tests.ops import checks
from integration_tests.ops.op_table import TABLE
from integration_tests.ops.op_table import Draw
from integration_tests.ops.reference import Reference

SHRINK_ATTEMPTS = 30


def _disagrees(op, dtype, seed, small, reference):
    """Returns the disagreement of one case, or `None`."""
    args, kwargs = op.draw(Draw(seed, dtype, small))
    try:
        checks.check_values(op, args, kwargs, dtype, reference)
    except checks.Disagreement as disagreement:
        return f"{disagreement}\nargs {args}\nkwargs {kwargs}"
    return None


def _shrink(op, dtype, seed, reference):
    """Looks for a smaller case of the same op that disagrees too."""
    for attempt in range(SHRINK_ATTEMPTS):
        small_seed = seed + attempt
        found = _disagrees(op, dtype, small_seed, True, reference)
        if found:
            return small_seed, True, found
    return seed, False, _disagrees(op, dtype, seed, False, reference)


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--op", help="only this op")
    parser.add_argument("--dtype", help="only this dtype")
    parser.add_argument("--small", action="store_true")
    arguments = parser.parse_args(argv)
    ops = [op for op in TABLE if arguments.op in (None, op.name)]
    if not ops:
        parser.error(f"no op '{arguments.op}' in the table")
    rng = np.random.default_rng(arguments.seed)
    reference = Reference("numpy")
    failures = 0
    for case in range(arguments.cases):
        op = ops[int(rng.integers(len(ops)))]
        dtype = arguments.dtype or op.dtypes[int(rng.integers(len(op.dtypes)))]
        seed = int(rng.integers(2**31))
        if arguments.cases == 1:
            seed = arguments.seed
        found = _disagrees(op, dtype, seed, arguments.small, reference)
        if found is None:
            continue
        failures += 1
        seed, small, found = _shrink(op, dtype, seed, reference)
        print(
            f"python -m integration_tests.fuzz --cases 1 --op {op.name} "
            f"--dtype {dtype} --seed {seed}{' --small' if small else ''}"
            f"\n{found}\n",
            flush=True,
        )
    reference.close()
    print(f"{arguments.cases} cases, {failures} disagreements")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
