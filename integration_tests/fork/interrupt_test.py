"""Tests that Ctrl-C and SIGTERM leave nothing half done."""

import concurrent.futures
import itertools
import os
import shutil
import subprocess
import sys

import pytest

from integration_tests.fork.rebase_test import MOVED
from integration_tests.fork.rebase_test import leaves_nothing_behind
from integration_tests.fork.synthetic import CONFIG
from integration_tests.fork.synthetic import LAYER
from integration_tests.fork.synthetic import REPOSITORY
from integration_tests.fork.synthetic import allow_interrupts
from integration_tests.fork.synthetic import write_files
from keras_tinygrad_patches import tree
from keras_tinygrad_patches.project import Project

# It interrupts whoever started it when it comes to the named command, and
# takes its time over that.
GIT = """#!/bin/sh
case " $* " in *" {command} "*)
    echo >>{calls}
    if [ "$(wc -l <{calls})" -eq {nth} ]; then
        kill -s {signal} $PPID
        sleep 0.5
        {git} "$@" && echo ended >>{calls}
        exit
    fi
esac
exec {git} "$@"
"""
PIP = """
import os, signal, time
os.kill(os.getppid(), signal.{signal})
time.sleep(60)
"""
SIGNALS = {"INT": 130, "TERM": 143}


@pytest.fixture
def git_that_interrupts(tmp_path):
    """Returns a function: the `PATH` with such a git in front."""

    def make(command, signal="INT", nth=1):
        folder = tmp_path / "bin"
        calls = tmp_path / "calls"
        calls.write_text("")
        text = GIT.format(
            command=command,
            calls=calls,
            nth=nth,
            signal=signal,
            git=shutil.which("git"),
        )
        write_files(folder, {"git": text})
        (folder / "git").chmod(0o755)
        return f"{folder}{os.pathsep}{os.environ['PATH']}"

    return make


def is_quiet(message, command):
    return message == (
        f"{command}: interrupted; nothing is left half written.\n"
    )


def stages(fork):
    return list((fork.root / "keras").glob(".stage-*"))


@pytest.mark.parametrize("signal, status", SIGNALS.items())
def test_while_a_release_is_fetched(fresh_fork, signal, status):
    before = fresh_fork.snapshot()
    pip = fresh_fork.root.parent / "pip"
    write_files(pip, {"pip.py": PIP.format(signal=f"SIG{signal}")})
    message = fresh_fork.run("vendor", fails=status, PYTHONPATH=str(pip))
    assert is_quiet(message, "vendor")
    assert fresh_fork.snapshot() == before
    assert not list((fresh_fork.root / ".vendor/wheels").iterdir())


@pytest.mark.parametrize("signal, status", SIGNALS.items())
def test_while_a_wheel_is_built(tmp_path, signal, status):
    write_files(tmp_path, {"pip.py": PIP.format(signal=f"SIG{signal}")})
    done = subprocess.run(
        [sys.executable, "pip_build.py"],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        preexec_fn=allow_interrupts,
    )
    assert is_quiet(done.stdout + done.stderr, "pip_build.py")
    assert done.returncode == status


@pytest.mark.parametrize(
    "command", ["init", "fast-import", "update-ref", "apply"]
)
def test_before_anything_is_written(fresh_fork, git_that_interrupts, command):
    before = fresh_fork.snapshot()
    message = fresh_fork.run(
        "vendor", fails=130, PATH=git_that_interrupts(command)
    )
    assert is_quiet(message, "vendor")
    assert fresh_fork.snapshot() == before
    assert (fresh_fork.root.parent / "calls").read_text().endswith("ended\n")
    fresh_fork.run("vendor")
    assert "BASE = dict" in fresh_fork.read(LAYER)


@pytest.mark.parametrize("signal, status", SIGNALS.items())
def test_while_the_tree_is_written(
    fresh_fork, git_that_interrupts, signal, status
):
    message = fresh_fork.run(
        "vendor", fails=status, PATH=git_that_interrupts("cat-file", signal)
    )
    assert is_quiet(message, "vendor")
    assert "up to date" in fresh_fork.run("status")
    assert leaves_nothing_behind(fresh_fork) and not stages(fresh_fork)


def test_a_rebase_is_done_or_not(fork, git_that_interrupts):
    fork.publish("1.1", MOVED)
    before = fork.snapshot()
    # The last of these calls is where pin, series and tree are written.
    for nth in itertools.count(1):
        path = git_that_interrupts("cat-file", nth=nth)
        message = fork.run("rebase", "1.1", fails=130, PATH=path)
        assert message.endswith("half written.\n")
        assert leaves_nothing_behind(fork)
        if fork.snapshot() != before:
            break
    assert nth > 1 and fork.pin["version"] == "1.1"
    assert "@@ -22,3 +22,3 @@" in fork.patch("default")
    assert fork.read(CONFIG).startswith("FIRST = 1\n")
    assert "up to date" in fork.run("status")


def test_a_refresh_is_done_or_not(fork, git_that_interrupts):
    fork.edit(LAYER, "BASE = dict", "BASE = list")
    path = git_that_interrupts("cat-file")
    fork.run("refresh", fails=130, PATH=path)
    assert "+BASE = list" in fork.patch("base")
    assert "up to date" in fork.run("status")


def test_a_new_tree_is_one_of_ours(fork, git_that_interrupts, tmp_path):
    arguments = ("materialise", str(tmp_path / "tree"))
    fork.run(*arguments, fails=130, PATH=git_that_interrupts("cat-file"))
    assert "holds the tree" in fork.run(*arguments)


def test_what_a_killed_run_left_goes_and_a_live_one_keeps(fork):
    repository = tree.read_stack(Project(fork.root)).repository
    with concurrent.futures.ThreadPoolExecutor() as pool:
        with tree.writing(repository, fork.root):
            write_files(fork.root, {"keras/.stage-x/new/keras/x.py": ""})
            other = pool.submit(fork.run, "vendor")
            with pytest.raises(concurrent.futures.TimeoutError):
                other.result(timeout=2)
            assert stages(fork)
        assert "up to date" in other.result()
    assert not stages(fork)
