"""Runs just the tests that a file names, of those that are collected."""

from pathlib import Path


def pytest_addoption(parser):
    parser.addoption(
        "--only",
        metavar="FILE",
        help="File of node ids, one a line; a file's id stands for its tests.",
    )


def pytest_collection_modifyitems(config, items):
    path = config.getoption("only")
    if path is None:
        return
    named = set(Path(path).read_text().splitlines())
    kept, dropped = [], []
    for item in items:
        of_file = item.nodeid.partition("::")[0]
        is_named = item.nodeid in named or of_file in named
        (kept if is_named else dropped).append(item)
    items[:] = kept
    config.hook.pytest_deselected(items=dropped)
