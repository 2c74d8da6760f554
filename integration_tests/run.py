"""Runs lint, this repository's own tests, and a slice of Keras' own suite."""

import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree

from integration_tests import environments
from integration_tests.upstream import run as upstream

# Cores of the smallest machine that the time limit is for.
WORKERS = "2"
REPORTS = environments.REPOSITORY / "build" / "test"

# What a user's first models stand on. It has to finish, with the rest, in 45
# minutes on two cores; the whole suite is `shell/upstream_tests.sh`.
UPSTREAM_SLICE = (
    "keras/src/backend/common",
    "keras/src/activations",
    "keras/src/initializers",
    "keras/src/losses",
    "keras/src/metrics",
    "keras/src/optimizers",
    "keras/src/layers/core",
    "keras/src/layers/convolutional",
    "keras/src/layers/normalization",
    "keras/src/layers/regularization",
    "keras/src/layers/pooling",
)


class Stages:
    """Runs one stage after the other, and keeps time and results."""

    def __init__(self):
        self.rows = []
        self.failed = False

    def run(self, name, stage):
        """Runs a stage; the next ones run whether it fails or not.

        Args:
            name: What to call the stage.
            stage: A function without arguments that returns an exit status.
        """
        print(f"\n== {name}", flush=True)
        started = time.monotonic()
        status = stage()
        seconds = time.monotonic() - started
        self.failed |= bool(status)
        outcome = f"failed (exit {status})" if status else "passed"
        self.rows.append((name, outcome, seconds))

    def lines(self):
        """Returns the table of stages."""
        width = max(len(name) for name, _, _ in self.rows)
        return [
            f"{name:<{width}}  {seconds:>7.1f} s  {outcome}"
            for name, outcome, seconds in self.rows
        ]


def set_up(python):
    environments.install_for_development(
        python, upstream.requirements(everything=False)
    )
    environments.vendor(python)


def lint(python):
    return subprocess.run(
        ["bash", "shell/lint.sh"],
        cwd=environments.REPOSITORY,
        env=environments.inside(python),
    ).returncode


def own_tests(python):
    # By group, so that tests that share an environment share a worker.
    return _pytest(
        python,
        "own",
        *("-n", WORKERS, "--dist", "loadgroup"),
        "integration_tests",
        "--ignore=integration_tests/wheel",
    )


def wheel_tests(python):
    # In one process: all of them change the same environments.
    return _pytest(python, "wheel", "integration_tests/wheel")


def _pytest(python, report, *arguments):
    return subprocess.run(
        [
            str(python),
            *("-m", "pytest"),
            f"--junit-xml={REPORTS / report}.xml",
            *arguments,
        ],
        cwd=environments.REPOSITORY,
        env=environments.inside(python),
    ).returncode


def upstream_slice(python):
    return upstream.run_tests(
        python,
        environments.REPOSITORY,
        [
            *("-n", WORKERS),
            f"--junit-xml={REPORTS / 'upstream.xml'}",
            "--quiet",
            *UPSTREAM_SLICE,
        ],
        upstream.expected_failures(with_test_patches=False),
    )


def closing_line(reports):
    """Returns the sum of pytest's reports, as one line."""
    tests = failed = skipped = 0
    for report in reports:
        for suite in ElementTree.parse(report).getroot().iter("testsuite"):
            tests += int(suite.get("tests"))
            failed += int(suite.get("failures")) + int(suite.get("errors"))
            skipped += int(suite.get("skipped"))
    passed = tests - failed - skipped
    return f"total: {passed} passed, {failed} failed, {skipped} skipped"


def main():
    REPORTS.mkdir(parents=True, exist_ok=True)
    for report in REPORTS.glob("*.xml"):
        report.unlink()
    started = time.monotonic()
    python = environments.development()
    stages = Stages()
    stages.run("set up", lambda: set_up(python))
    stages.run("lint", lambda: lint(python))
    stages.run("own tests", lambda: own_tests(python))
    stages.run("the installed wheel", lambda: wheel_tests(python))
    stages.run("slice of Keras' suite", lambda: upstream_slice(python))
    print("\n== results")
    print("\n".join(stages.lines()))
    print(f"{(time.monotonic() - started) / 60:.1f} minutes in all")
    print(closing_line(REPORTS.glob("*.xml")))
    return int(stages.failed)


if __name__ == "__main__":
    sys.exit(main())
