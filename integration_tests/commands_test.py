"""Tests what stands behind `shell/test.sh`, `demo.sh` and
`upstream_tests.sh`."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from integration_tests import environments
from integration_tests import run
from integration_tests.upstream import run as upstream

PIN = environments.REPOSITORY / "keras_tinygrad_patches" / "pin.json"
TAG = "v" + json.loads(PIN.read_text())["version"]


def test_a_failing_stage_fails_the_run_and_the_next_ones_still_run():
    stages = run.Stages()
    ran = []
    for name, status in (("one", 0), ("two", 3), ("three", 0)):
        stages.run(name, lambda: ran.append(name) or status)
    assert ran == ["one", "two", "three"]
    assert stages.failed
    outcomes = [line.split(" s  ")[1] for line in stages.lines()]
    assert outcomes == ["passed", "failed (exit 3)", "passed"]


def test_closing_line_adds_up_the_reports(tmp_path):
    suites = {
        "one.xml": 'tests="7" failures="1" errors="1" skipped="2"',
        "two.xml": 'tests="3" failures="0" errors="0" skipped="0"',
    }
    for name, counts in suites.items():
        (tmp_path / name).write_text(
            f"<testsuites><testsuite {counts}></testsuite></testsuites>"
        )
    assert run.closing_line(tmp_path.glob("*.xml")) == (
        "total: 6 passed, 2 failed, 2 skipped"
    )


def test_slice_exists():
    for name in run.UPSTREAM_SLICE:
        assert list((environments.REPOSITORY / name).glob("*_test.py")), name


def test_an_active_environment_is_used(monkeypatch):
    assert environments.development() == Path(sys.executable)


def test_programs_outside_see_nothing_of_this_tree(monkeypatch, tmp_path):
    monkeypatch.setenv("PYTHONPATH", str(environments.REPOSITORY))
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    environ = environments.outside(sys.executable, KERAS_HOME=str(tmp_path))
    assert "PYTHONPATH" not in environ
    assert "KERAS_BACKEND" not in environ
    assert environ["KERAS_HOME"] == str(tmp_path)
    first = environ["PATH"].split(os.pathsep)[0]
    assert Path(first) == Path(sys.executable).parent


def test_a_broken_environment_is_made_anew(tmp_path):
    python = environments.create(tmp_path / "environment")
    (package,) = (tmp_path / "environment").glob("lib/python*/site-packages")
    (package / "pip" / "__main__.py").unlink()
    (package / "pip" / "__init__.py").unlink()
    assert environments.create(tmp_path / "environment") == python
    subprocess.run([python, "-m", "pip", "--version"], check=True)


def test_too_old_a_python_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(environments, "MINIMUM_PYTHON", (99, 0))
    with pytest.raises(SystemExit, match="99.0 or newer is needed"):
        environments.create(tmp_path / "environment")


def test_the_commands_start_without_what_they_install():
    program = (
        "import sys; sys.modules.update(pytest=None, numpy=None); "
        "import integration_tests.run; import integration_tests.upstream.run; "
        "import integration_tests.upstream.skips"
    )
    subprocess.run(
        [sys.executable, "-c", program],
        cwd=environments.REPOSITORY,
        check=True,
    )


def git(folder, *arguments):
    identity = ("-c", "user.name=test", "-c", "user.email=test")
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True)


@pytest.fixture
def checkout(tmp_path):
    """An upstream checkout with a test that the release leaves out."""
    folder = tmp_path / "checkout"
    added = folder / "keras" / "src" / "utils" / "left_out_test.py"
    added.parent.mkdir(parents=True)
    added.write_text("def test_left_out():\n    pass\n")
    changed = folder / "keras" / "src" / "utils" / "naming.py"
    changed.write_text("raise ImportError('not this one')\n")
    git(folder, "init", "--quiet")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message", "as a test")
    git(folder, "tag", TAG)
    return folder


def test_checkout_adds_the_tests_that_the_release_leaves_out(
    checkout, monkeypatch, tmp_path
):
    monkeypatch.setattr(upstream, "SCRATCH_TREE", tmp_path / "tree")
    options, _ = upstream.parse(["--keras-git", str(checkout)])
    tree = upstream.tree_for(
        sys.executable, options.with_test_patches, options.keras_git
    )
    utils = Path("keras", "src", "utils")
    assert (tree / utils / "left_out_test.py").exists()
    ours = environments.REPOSITORY / utils / "naming.py"
    assert (tree / utils / "naming.py").read_bytes() == ours.read_bytes()
    assert not (environments.REPOSITORY / utils / "left_out_test.py").exists()


def test_test_patches_go_into_a_tree_of_their_own(monkeypatch, tmp_path):
    monkeypatch.setattr(upstream, "SCRATCH_TREE", tmp_path / "tree")
    options, _ = upstream.parse(["--with-test-patches"])
    tree = upstream.tree_for(sys.executable, options.with_test_patches)
    test = Path("keras", "src", "trainers", "trainer_test.py")
    stock = (environments.REPOSITORY / test).read_text()
    assert "tinygrad" not in stock
    assert "tinygrad" in (tree / test).read_text()
