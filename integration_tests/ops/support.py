"""Writes README's table of what the checks of the ops say.

Run: python -m integration_tests.ops.support [--report FILE] [--write]

It counts, for each module of `keras.ops`, the functions that passed them: in
the report that `shell/test.sh` left, say (`build/test/own.xml`), or else in a
run of its own.
"""

import argparse
import collections
import inspect
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

from integration_tests import environments
from integration_tests import readme_section

COMMAND = "python -m integration_tests.ops.support --write"
TESTS = (
    "integration_tests/ops/ops_test.py",
    "integration_tests/ops/record_test.py",
)
# Column to the tests behind it.
CHECKS = {
    "values": ("test_values", "test_views"),
    "dtypes": ("test_symbolic_shapes_and_dtypes",),
    "compiled": ("test_compiled",),
    "gradients": ("test_gradients",),
    "edges": ("test_gradients_at_edges", "test_values_at_edges"),
    "bad input": ("test_bad_arguments",),
}
INTRODUCTION = """\
How many functions of `keras.ops` there are, how many of them are in this
repository's table of ops, and how many of these passed its checks: values and
dtypes against the numpy backend, compiled steps against eager code, gradients
against finite differences, and edges and exceptions against the torch and jax
backends.
"""
COLUMNS = ("module", "functions", "in the table", *CHECKS)


class Results:
    """Which ops passed which tests.

    Args:
        report: Path of pytest's report in JUnit's format.
    """

    def __init__(self, report):
        self._passed = collections.defaultdict(list)
        for case in ElementTree.parse(report).getroot().iter("testcase"):
            found = re.fullmatch(r"(\w+)\[([\w.]+)(-.*)?\]", case.get("name"))
            if found and ".ops." in case.get("classname"):
                bad = {child.tag for child in case} & {"failure", "error"}
                self._passed[found[1], found[2]].append(not bad)

    def count(self, tests, names):
        """Returns how many of `names` passed, and how many were checked."""
        verdicts = [
            all(outcomes)
            for outcomes in (
                sum((self._passed.get((t, name), []) for t in tests), [])
                for name in names
            )
            if outcomes
        ]
        return sum(verdicts), len(verdicts)


def functions():
    """Returns the functions of `keras.ops`, in a list for each module."""
    import keras

    modules = collections.defaultdict(dict)
    spaces = {"": keras.ops, **vars(keras.ops)}
    for space, holder in spaces.items():
        if space and not inspect.ismodule(holder):
            continue
        for name, value in vars(holder).items():
            if not inspect.isfunction(value):
                continue
            module = value.__module__.rsplit(".", 1)[-1]
            if value.__module__.startswith("keras.src.ops."):
                known = modules[module].setdefault(value, set())
                known.add(name)
                known.add(f"{space}.{name}".lstrip("."))
    return {m: list(modules[m].values()) for m in sorted(modules)}


def table_names():
    """Returns the names of the ops in the table."""
    from integration_tests.ops.op_table import TABLE

    return {op.name for op in TABLE}


def rows():
    """Returns `(module, number of functions, names in the table)`."""
    tabled = table_names()
    return [
        (
            module,
            len(known),
            sorted(tabled.intersection(set().union(*known))),
        )
        for module, known in functions().items()
    ]


def section(results):
    """Returns the table, in Markdown."""
    lines = [_line(COLUMNS), _line(["---"] + ["--:"] * (len(COLUMNS) - 1))]
    totals = [0] * (2 + 2 * len(CHECKS))
    for module, count, names in rows():
        numbers = [count, len(names)]
        for tests in CHECKS.values():
            numbers += results.count(tests, names)
        totals = [a + b for a, b in zip(totals, numbers)]
        lines.append(_row(f"`{module}`", numbers))
    lines.append(_row("all", totals))
    return "\n".join(lines)


def _row(name, numbers):
    pairs = zip(numbers[2::2], numbers[3::2])
    cells = [f"{a} of {b}" if a < b else str(b) for a, b in pairs]
    return _line([name, *map(str, numbers[:2]), *cells])


def _line(cells):
    return f"| {' | '.join(cells)} |"


def written():
    """Returns the table in README, a list of rows of cells."""
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in readme_section.read(COMMAND).splitlines()
        if line.startswith("|")
    ]


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--report", help="of tests that have run")
    parser.add_argument("--write", action="store_true", help="into README.md")
    arguments = parser.parse_args(argv)
    report = arguments.report
    if report is None:
        report = environments.REPOSITORY / "build" / "test" / "ops.xml"
        subprocess.run(
            [sys.executable, "-m", "pytest", f"--junit-xml={report}", *TESTS],
            cwd=environments.REPOSITORY,
        )
    table = section(Results(report))
    print(table)
    if arguments.write:
        readme_section.write(COMMAND, f"{INTRODUCTION}\n{table}")


if __name__ == "__main__":
    main()
