"""Counts the results of a run by directory."""

import collections

import pytest

OUTCOMES = ("failed", "xfailed", "skipped", "passed")


class Tally:
    """Outcome of each test, and the seconds each directory took."""

    def __init__(self):
        self.outcomes = {}
        self.seconds = collections.Counter()

    def add(self, node_id, outcome, seconds=0.0):
        """Records one report; a test's worst outcome is the one that counts."""
        worst = min(
            self.outcomes.get(node_id, outcome), outcome, key=OUTCOMES.index
        )
        self.outcomes[node_id] = worst
        self.seconds[directory_of(node_id)] += seconds

    def lines(self):
        """Returns the table: a line per directory and one for the sum."""
        counts = collections.defaultdict(collections.Counter)
        for node_id, outcome in self.outcomes.items():
            counts[directory_of(node_id)][outcome] += 1
        width = max([len(name) for name in counts] + [len("directory")])
        head = ("passed", "failed", "skipped", "xfailed")
        rows = [
            f"{'directory':<{width}} "
            + " ".join(f"{name:>8}" for name in head)
            + f" {'seconds':>9}"
        ]
        total = collections.Counter()
        for name in sorted(counts):
            rows.append(
                _row(name, width, counts[name], head, self.seconds[name])
            )
            total += counts[name]
        rows.append(_row("all", width, total, head, self.seconds.total()))
        return rows


def directory_of(node_id):
    return node_id.partition("::")[0].rpartition("/")[0]


def _row(name, width, counts, head, seconds):
    return (
        f"{name:<{width}} "
        + " ".join(f"{counts[outcome]:>8}" for outcome in head)
        + f" {seconds:>9.1f}"
    )


def _outcome(report):
    # pytest reports an expected failure as a skip with a reason.
    if hasattr(report, "wasxfail") and report.skipped:
        return "xfailed"
    return report.outcome


class TallyPlugin:
    def __init__(self):
        self.tally = Tally()

    def pytest_runtest_logreport(self, report):
        # Set-up and tear-down that pass say nothing about the test.
        if report.when == "call" or not report.passed:
            self.tally.add(report.nodeid, _outcome(report))
        self.tally.seconds[directory_of(report.nodeid)] += report.duration

    def pytest_collectreport(self, report):
        if not report.passed:
            self.tally.add(report.nodeid, _outcome(report))

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter):
        if not self.tally.outcomes:
            return
        terminalreporter.section("tally by directory")
        for line in self.tally.lines():
            terminalreporter.line(line)


def pytest_configure(config):
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(TallyPlugin(), "tally_plugin")
