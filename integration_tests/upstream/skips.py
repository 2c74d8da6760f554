"""Lists the tests that run on torch and are skipped on tinygrad.

    python -m integration_tests.upstream.skips [--with-test-patches] [PATH ...]

Of the last run of shell/upstream_tests.sh on tinygrad it takes the tests that
were skipped, under a path or all of them, and runs those on torch. Each that is
not skipped there has to be in skips.txt, with its reason.
"""

import argparse
import sys
from pathlib import Path

from integration_tests import environments
from integration_tests.upstream import record
from integration_tests.upstream import run
from integration_tests.upstream.reasons import read_reasons
from integration_tests.upstream.tally import Tally
from integration_tests.upstream.tally import read_lines

LIST = Path(__file__).with_name("skips.txt")
TORCH = Path(__file__).with_name("requirements_torch.txt")
RAN = ("passed", "failed", "xfailed")


def matches(pattern, node_id):
    """Whether a line of the list is about a test.

    Args:
        pattern: A node id, or the start of some, followed by `*`.
        node_id: The test's.
    """
    if pattern.endswith("*"):
        return node_id.startswith(pattern[:-1])
    return node_id == pattern


def skipped(results, paths=()):
    """Returns the tests that were skipped in a run, with the reasons.

    Args:
        results: File of results.
        paths: Where the tests lie; by default, anywhere.

    Returns:
        A dict of reasons by node id. An id may be that of a file.
    """
    outcomes = Tally.read(results).outcomes
    return {
        node_id: reason
        for node_id, outcome, _, reason in read_lines(results)
        if outcome == outcomes[node_id] == "skipped"
        and (not paths or node_id.startswith(tuple(paths)))
    }


def without_tests(results, paths):
    """Returns those of the paths that a run did not reach."""
    ids = Tally.read(results).outcomes
    return [p for p in paths if not any(i.startswith(p) for i in ids)]


def ran(results):
    """Returns the ids of the tests that ran."""
    outcomes = Tally.read(results).outcomes
    return {k for k, outcome in outcomes.items() if outcome in RAN}


def compare(skipped_here, ran_there, listed):
    """Holds the skips to the list.

    Args:
        skipped_here: Reasons by node id of what was skipped on tinygrad.
        ran_there: Node ids of what ran on torch.
        listed: Reasons by pattern: the list.

    Returns:
        A tuple of the tests that are listed and of those that are not, each a
        dict of reasons by node id, and of the lines that are about none.
    """
    explained, unexplained, used = {}, {}, set()
    for node_id in sorted(ran_there):
        why = skipped_here.get(node_id) or skipped_here.get(
            node_id.partition("::")[0]
        )
        patterns = [p for p in listed if matches(p, node_id)]
        used.update(patterns)
        if patterns:
            explained[node_id] = listed[patterns[0]]
        else:
            unexplained[node_id] = why
    return explained, unexplained, [p for p in listed if p not in used]


def run_on_torch(python, tree, node_ids):
    """Runs tests on torch.

    Args:
        python: Interpreter to run them with.
        tree: Folder that holds `keras`.
        node_ids: The tests, or files of tests.

    Returns:
        The file of results.
    """
    run.BUILD.mkdir(parents=True, exist_ok=True)
    named = run.BUILD / "skips.txt"
    named.write_text("\n".join(node_ids))
    results = run.results_of("skips")
    # What it exits with does not matter: a test that fails has run.
    run.run_tests(
        python,
        tree,
        [
            *run.IN_TWO_PROCESSES,
            *("--only", str(named), "--quiet", "--tb=no"),
            *sorted({node_id.partition("::")[0] for node_id in node_ids}),
        ],
        results=results,
        backend="torch",
    )
    return results


def main():
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("paths", nargs="*", metavar="PATH")
    parser.add_argument("--with-test-patches", action="store_true")
    options = parser.parse_args()
    results = run.results_of(record.variant(options.with_test_patches))
    if not results.exists():
        parser.error(f"{results} is missing: run shell/upstream_tests.sh first")
    for path in without_tests(results, options.paths):
        parser.error(
            f"{results} has no test of {path}: run shell/upstream_tests.sh "
            f"{path} first"
        )
    listed = read_reasons(LIST)
    skipped_here = skipped(results, options.paths)
    python = environments.development()
    environments.install_for_development(
        python, run.requirements(everything=not options.paths), TORCH
    )
    tree = run.tree_for(python, options.with_test_patches)
    ran_there = set()
    if skipped_here:
        ran_there = ran(run_on_torch(python, tree, skipped_here))
    explained, unexplained, unused = compare(skipped_here, ran_there, listed)
    for node_id, reason in explained.items():
        print(f"{node_id}  # {reason}")
    for node_id, reason in unexplained.items():
        print(f"{node_id} runs on torch and is not in {LIST.name}: {reason}")
    # Lines about a file that was not run, or about what the test patches let
    # run, are not wrong.
    seen = {node_id.partition("::")[0] for node_id in skipped_here}
    stale = [
        pattern
        for pattern in unused
        if pattern.partition("::")[0] in seen and not options.with_test_patches
    ]
    for pattern in stale:
        print(f"{LIST.name}: no test is {pattern}. Remove or correct the line.")
    print(f"{len(explained)} listed, {len(unexplained)} not listed")
    return int(bool(unexplained or stale))


if __name__ == "__main__":
    sys.exit(main())
