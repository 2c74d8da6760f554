"""Holds Keras' own tests to a list of expected failures, strictly.

A listed test that passes fails the run, and so does a listed test that no
longer exists. A test that fails without being listed fails it as ever.
"""

import dataclasses
from pathlib import Path

import pytest
from reasons import read_reasons

# How the reason begins where a test lacks a file that releases leave out.
LEFT_OUT = "Left out of the release: "


@dataclasses.dataclass(frozen=True)
class ExpectedFailures:
    """What a list of expected failures says.

    Attributes:
        path: The file that was read.
        reasons: Reason by pytest node id. The id of a file, without a test,
            means that the file fails when it is imported.
    """

    path: Path
    reasons: dict


class Strictness:
    """The pytest plugin that applies an `ExpectedFailures` to a run."""

    def __init__(self, expected):
        self.expected = expected
        self.calling = set()
        self.failed_subtest = set()
        self.seen = set()
        self.stale = []

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item):
        self.calling.add(item.nodeid)
        try:
            return (yield)
        finally:
            self.calling.discard(item.nodeid)

    # Outermost, so that a skip for an absent package has been made by now.
    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self, item, call):
        report = yield
        reason = self.expected.reasons.get(item.nodeid)
        if reason is None:
            return report
        # A report made while the test is still running is one subtest's.
        is_subtest = item.nodeid in self.calling
        if report.failed and call.when != "teardown":
            report.outcome = "skipped"
            report.wasxfail = reason
            if is_subtest:
                self.failed_subtest.add(item.nodeid)
        elif (
            report.passed
            and call.when == "call"
            and not is_subtest
            and item.nodeid not in self.failed_subtest
        ):
            self._fail_as_passing(report, item.nodeid)
        return report

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_make_collect_report(self, collector):
        report = yield
        reason = self.expected.reasons.get(collector.nodeid)
        if reason is None:
            return report
        if report.failed:
            report.outcome = "skipped"
            report.wasxfail = reason
            report.longrepr = (
                str(collector.path),
                0,
                f"Skipped: expected to fail on import: {reason}",
            )
        elif report.passed:
            self._fail_as_passing(report, collector.nodeid)
        return report

    def _fail_as_passing(self, report, node_id):
        report.outcome = "failed"
        report.longrepr = (
            f"{node_id} is listed in {self.expected.path.name} and passes.\n"
            f"Listed because: {self.expected.reasons[node_id]}\n"
            "Remove the line."
        )

    def pytest_runtest_logreport(self, report):
        self.seen.add(report.nodeid)

    def pytest_collectreport(self, report):
        self.seen.add(report.nodeid)

    def pytest_sessionfinish(self, session):
        if hasattr(session.config, "workerinput") or not _ran_all(session):
            return
        selected = [
            (session.config.invocation_params.dir / argument).resolve()
            for argument in session.config.args
        ]
        for node_id in self.expected.reasons:
            path = session.config.rootpath / node_id.partition("::")[0]
            if node_id not in self.seen and any(
                path.is_relative_to(folder) for folder in selected
            ):
                self.stale.append(node_id)
        if self.stale:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter):
        if not self.stale:
            return
        terminalreporter.section("listed tests that do not exist", red=True)
        for node_id in self.stale:
            terminalreporter.line(
                f"{node_id} is listed in {self.expected.path.name} and was "
                "not found. Remove or correct the line."
            )


def _ran_all(session):
    """Whether every test of the selected files was to run, and did."""
    option = session.config.option
    selects = (
        option.keyword
        or option.markexpr
        or option.deselect
        or option.ignore
        or option.ignore_glob
        or option.collectonly
        or getattr(option, "lf", False)
        or any("::" in argument for argument in session.config.args)
    )
    stopped = session.shouldstop or session.shouldfail
    return not selects and not stopped


def pytest_addoption(parser):
    parser.addoption(
        "--expected-failures",
        metavar="FILE",
        help="List of tests that must fail, each with its reason.",
    )
    parser.addoption(
        "--nothing-left-out",
        action="store_true",
        help="The tree holds the files that releases leave out.",
    )


def pytest_configure(config):
    path = config.getoption("expected_failures")
    if path is None:
        return
    try:
        reasons = read_reasons(path)
    except (OSError, ValueError) as e:
        raise pytest.UsageError(str(e)) from e
    if config.getoption("nothing_left_out"):
        reasons = {
            node_id: reason
            for node_id, reason in reasons.items()
            if not reason.startswith(LEFT_OUT)
        }
    expected = ExpectedFailures(Path(path), reasons)
    config.pluginmanager.register(Strictness(expected), "strictness")
