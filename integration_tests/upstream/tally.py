"""Counts the results of a run by directory, and keeps them in a file."""

import collections
import json
from pathlib import Path

# From the worst to the best: a test has several reports.
OUTCOMES = ("failed", "xfailed", "no network", "skipped", "passed")
COLUMNS = ("passed", "failed", "skipped", "xfailed", "no network")


class Tally:
    """Outcome of each test, and the seconds each directory took.

    Attributes:
        outcomes: Outcome by pytest node id.
        seconds: Seconds by directory.
    """

    def __init__(self):
        self.outcomes = {}
        self.seconds = collections.Counter()

    @classmethod
    def read(cls, path):
        """Reads what a run with `--results` has written.

        Args:
            path: The file.

        Returns:
            A `Tally`.
        """
        tally = cls()
        for node_id, outcome, seconds, _ in read_lines(path):
            tally.add(node_id, outcome, seconds)
        return tally

    def add(self, node_id, outcome, seconds=0.0):
        """Records one report; a test's worst outcome is the one that counts.

        Args:
            node_id: pytest's id of the test, or of a file that is not
                imported.
            outcome: One of `OUTCOMES`, or `None` for a step that says
                nothing about the test.
            seconds: How long it took.
        """
        self.seconds[directory_of(node_id)] += seconds
        if outcome is not None:
            self.outcomes[node_id] = min(
                self.outcomes.get(node_id, outcome), outcome, key=OUTCOMES.index
            )

    def counts(self, group=None):
        """Returns the counts of outcomes by directory.

        Args:
            group: Function from a node id to the name to count it under; by
                default its directory.

        Returns:
            A dict of `collections.Counter`, sorted by name.
        """
        group = group or directory_of
        counts = collections.defaultdict(collections.Counter)
        for node_id, outcome in self.outcomes.items():
            counts[group(node_id)][outcome] += 1
        return dict(sorted(counts.items()))

    def lines(self):
        """Returns the table: a line per directory and one for the sum."""
        counts = self.counts()
        width = max(map(len, [*counts, "directory"]))
        rows = [
            " ".join([f"{'directory':<{width}}", *map(_cell, COLUMNS)])
            + f" {'seconds':>9}"
        ]
        for name, row in counts.items():
            rows.append(_row(name, width, row, self.seconds[name]))
        total = sum(counts.values(), collections.Counter())
        rows.append(_row("all", width, total, self.seconds.total()))
        return rows


def read_lines(path):
    """Returns the lines of a file of results: id, outcome, seconds, reason."""
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def directory_of(node_id):
    return node_id.partition("::")[0].rpartition("/")[0]


def _cell(value):
    return f"{value:>10}"


def _row(name, width, counts, seconds):
    cells = [_cell(counts[outcome]) for outcome in COLUMNS]
    return " ".join([f"{name:<{width}}", *cells]) + f" {seconds:>9.1f}"
