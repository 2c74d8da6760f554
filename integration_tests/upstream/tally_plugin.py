"""pytest plugin: tallies a run, and writes each report down as it comes."""

import json

import pytest
from tally import Tally


def _outcome(report):
    # pytest reports an expected failure as a skip with a reason.
    if hasattr(report, "wasxfail") and report.skipped:
        return "xfailed"
    if hasattr(report, "needs_network"):
        return "no network"
    # Set-up and tear-down that pass say nothing about the test.
    if report.passed and report.when != "call":
        return None
    return report.outcome


def _reason(report):
    """Returns why a test was skipped, or an empty string."""
    if isinstance(report.longrepr, tuple):
        return report.longrepr[2].removeprefix("Skipped: ")
    return ""


class TallyPlugin:
    """Keeps a `Tally`, and writes each report down as it comes."""

    def __init__(self, results):
        self.tally = Tally()
        self.file = open(results, "w") if results else None

    def add(self, report, seconds):
        line = [
            report.nodeid,
            _outcome(report),
            round(seconds, 3),
            _reason(report),
        ]
        self.tally.add(*line[:3])
        if self.file:
            print(json.dumps(line), file=self.file, flush=True)

    def pytest_runtest_logreport(self, report):
        self.add(report, report.duration)

    def pytest_collectreport(self, report):
        if not report.passed:
            self.add(report, 0.0)

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter):
        if not self.tally.outcomes:
            return
        terminalreporter.section("tally by directory")
        for line in self.tally.lines():
            terminalreporter.line(line)

    def pytest_unconfigure(self):
        if self.file:
            self.file.close()


def pytest_addoption(parser):
    parser.addoption(
        "--results",
        metavar="FILE",
        help="File to write the outcome of each test to, as they come.",
    )


def pytest_configure(config):
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(
            TallyPlugin(config.getoption("results")), "tally"
        )
