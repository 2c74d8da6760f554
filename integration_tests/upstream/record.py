"""Keeps the results of the last whole run, and writes README's table of them.

python -m integration_tests.upstream.record [--write]
"""

import argparse
import collections
import datetime
import json
import os
import platform
import subprocess
import sys
from pathlib import Path

from integration_tests import environments
from integration_tests import readme_section
from integration_tests.upstream.tally import COLUMNS

FILE = Path(__file__).with_name("record.json")
COMMAND = "python -m integration_tests.upstream.record --write"

UNCHANGED = "unchanged"
WITH_TEST_PATCHES = "with_test_patches"

# What a result may depend on.
DISTRIBUTIONS = (
    "tinygrad",
    "numpy",
    "scipy",
    "tensorflow-cpu",
    "tensorflow",
    "torch",
    "jax",
)

ASK_VERSIONS = """
import importlib.metadata
import json
import platform
import sys

versions = {"python": platform.python_version()}
for name in sys.argv[1:]:
    try:
        versions[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pass
print(json.dumps(versions))
"""

HEADINGS = {
    "passed": "passed",
    "failed": "failed",
    "skipped": "skipped",
    "xfailed": "expected to fail",
    "no network": "needs a network",
}


def variant(with_test_patches):
    """Returns the name of a run with or without the patches of the tests."""
    return WITH_TEST_PATCHES if with_test_patches else UNCHANGED


def part_of(node_id):
    """Returns the part of Keras that a test is of: `ops`, `layers/core`."""
    names = node_id.partition("::")[0].split("/")[2:-1]
    return "/".join(names[: 2 if names[:1] == ["layers"] else 1]) or "(top)"


def add(python, name, tally, seconds, status):
    """Keeps the results of a whole run.

    Args:
        python: Interpreter that the tests ran with.
        name: What `variant` returned.
        tally: The `Tally` of the run.
        seconds: How long it took.
        status: pytest's exit status.
    """
    pin = environments.REPOSITORY / "keras_tinygrad_patches" / "pin.json"
    versions = subprocess.run(
        [str(python), "-c", ASK_VERSIONS, *DISTRIBUTIONS],
        env=environments.outside(python),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout
    record = load()
    record[name] = {
        "date": datetime.date.today().isoformat(),
        "exit_status": status,
        "minutes": round(seconds / 60, 1),
        "cores": os.cpu_count(),
        "platform": f"{platform.system()} {platform.machine()}",
        "versions": {
            "keras": json.loads(pin.read_text())["version"],
            **json.loads(versions),
        },
        "tally": {
            part: {outcome: counts[outcome] for outcome in COLUMNS}
            for part, counts in tally.counts(part_of).items()
        },
    }
    FILE.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
    print(f"{FILE} holds the results. Then, for README's table:")
    print("    python -m integration_tests.upstream.record --write")


def total(run):
    """Returns the sum of a run's tally over the parts of Keras."""
    counts = collections.Counter()
    for part in run["tally"].values():
        counts.update(part)
    return counts


def section(record):
    """Returns README's section: a table of the parts, and what was run.

    Args:
        record: What record.json holds.
    """
    run = record[UNCHANGED]
    rows = [["", *(HEADINGS[outcome] for outcome in COLUMNS)]]
    for part, counts in run["tally"].items():
        rows.append([part, *(counts[outcome] for outcome in COLUMNS)])
    counts = total(run)
    rows.append(["all", *(counts[outcome] for outcome in COLUMNS)])
    table = [_table_row(row) for row in rows]
    table.insert(1, _table_row([":--", *(["--:"] * len(COLUMNS))]))
    text = [*table, "", _sentence(run)]
    if WITH_TEST_PATCHES in record:
        patched = record[WITH_TEST_PATCHES]
        counts = total(patched)
        text += [
            "With the patches that name tinygrad in the tests: "
            + ", ".join(f"{counts[k]} {HEADINGS[k]}" for k in COLUMNS)
            + f" ({patched['date']}, {patched['minutes']} minutes)."
        ]
    return "\n".join(text)


def _table_row(cells):
    return f"| {' | '.join(map(str, cells))} |"


def _sentence(run):
    versions = ", ".join(
        f"{name} {number}"
        for name, number in run["versions"].items()
        if name != "keras"
    )
    return (
        f"Keras {run['versions']['keras']}'s own suite, unchanged: the run of "
        f"{run['date']}, {run['minutes']} minutes on {run['cores']} cores "
        f"({run['platform']}; {versions}). It "
        + ("passed." if run["exit_status"] == 0 else "failed.")
    )


def load():
    """Returns what record.json holds: a dict, empty if there is none."""
    return json.loads(FILE.read_text()) if FILE.exists() else {}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--write", action="store_true", help="write it into README.md"
    )
    options = parser.parse_args()
    record = load()
    if UNCHANGED not in record:
        parser.error("run shell/upstream_tests.sh --record first")
    text = section(record)
    if not options.write:
        print(text)
        return 0
    readme_section.write(COMMAND, text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
