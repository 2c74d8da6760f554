"""The command line: `python -m keras_tinygrad_patches COMMAND`."""

import argparse
import pathlib
import sys

from keras_tinygrad_patches import command
from keras_tinygrad_patches import doctor
from keras_tinygrad_patches import rebase
from keras_tinygrad_patches import refresh
from keras_tinygrad_patches import tree
from keras_tinygrad_patches.project import Project


def make_parser():
    parser = argparse.ArgumentParser(
        prog="python -m keras_tinygrad_patches",
        description="Keeps the fork: upstream, patches, and their replay.",
    )
    commands = parser.add_subparsers(dest="command", required=True)

    vendor = commands.add_parser(
        "vendor", help="make keras/ the pinned release with the patches applied"
    )
    vendor.add_argument(
        "--force", action="store_true", help="throw local edits away"
    )
    vendor.add_argument(
        "--keras-git",
        metavar="DIR",
        help="the upstream checkout, where the pin names a tag of one",
    )

    commands.add_parser("status", help="show pin, series and all local edits")

    fold = commands.add_parser(
        "refresh", help="turn local edits of upstream files into patches"
    )
    fold.add_argument("paths", nargs="*", metavar="PATH")
    which = fold.add_mutually_exclusive_group()
    which.add_argument("--patch", metavar="NAME", help="the patch to extend")
    which.add_argument("--new", metavar="NAME", help="a patch to make")
    fold.add_argument(
        "-m",
        dest="message",
        action="append",
        default=[],
        metavar="TEXT",
        help="why the new patch is needed; twice for a subject, and why",
    )
    fold.add_argument(
        "--tree", metavar="DIR", help="take the edits of a materialised tree"
    )

    replay = commands.add_parser(
        "rebase", help="replay the patches onto another release"
    )
    replay.add_argument("version", nargs="?", metavar="VERSION")
    replay.add_argument(
        "--keras-git",
        nargs=2,
        metavar=("DIR", "TAG"),
        help="an upstream checkout and a tag of it, in place of a release",
    )
    mode = replay.add_mutually_exclusive_group()
    mode.add_argument(
        "--check",
        dest="mode",
        action="store_const",
        const="check",
        help="only try it, and touch nothing",
    )
    mode.add_argument(
        "--continue",
        dest="mode",
        action="store_const",
        const="continue",
        help="go on after a conflict was resolved",
    )
    mode.add_argument(
        "--abort",
        dest="mode",
        action="store_const",
        const="abort",
        help="drop a rebase that has stopped",
    )

    write = commands.add_parser(
        "materialise", help="write a whole tree, backend included, elsewhere"
    )
    write.add_argument("directory", metavar="DIR")
    write.add_argument("--with-test-patches", action="store_true")
    write.add_argument(
        "--keras-git",
        metavar="DIR",
        help="an upstream checkout, for the files that releases leave out",
    )
    write.add_argument(
        "--tag", help="its tag; by default the one of the pinned version"
    )

    commands.add_parser("doctor", help="report the environment, with remedies")
    return parser


def run(arguments):
    """Runs a command.

    Returns:
        The exit status.
    """
    if arguments.command == "doctor":
        text, healthy = doctor.report()
        print(text)
        return 0 if healthy else 1
    project = Project.here()
    if arguments.command == "vendor":
        print(tree.vendor(project, arguments.force, arguments.keras_git))
    elif arguments.command == "status":
        text, clean = tree.status(project)
        print(text)
        return 0 if clean else 1
    elif arguments.command == "refresh":
        report = refresh.refresh(
            project,
            arguments.paths,
            arguments.patch,
            arguments.new,
            arguments.message,
            arguments.tree,
        )
        print("\n".join(report))
    elif arguments.command == "rebase":
        rebase.run(
            project, arguments.version, arguments.keras_git, arguments.mode
        )
    elif arguments.command == "materialise":
        overlay = arguments.keras_git and (arguments.keras_git, arguments.tag)
        skipped = tree.materialise(
            project,
            pathlib.Path(arguments.directory),
            arguments.with_test_patches,
            overlay,
        )
        print(f"{arguments.directory} holds the tree.")
        for name in skipped:
            print(f"{name}: skipped, its tests are not in this release.")
    return 0


def main():
    arguments = make_parser().parse_args()
    return command.call(arguments.command, lambda: run(arguments))


if __name__ == "__main__":
    sys.exit(main())
