"""Tests `vendor`, `status` and `materialise`."""

import hashlib
import shutil
import subprocess
import sys
import time
import zipfile

import pytest

from integration_tests.fork.synthetic import BACKEND
from integration_tests.fork.synthetic import CONFIG
from integration_tests.fork.synthetic import LAYER
from integration_tests.fork.synthetic import REPOSITORY
from integration_tests.fork.synthetic import TEST
from integration_tests.fork.synthetic import UPSTREAM
from integration_tests.fork.synthetic import snapshot
from integration_tests.fork.synthetic import write_files
from keras_tinygrad_patches import series
from keras_tinygrad_patches.git import AUTHOR
from keras_tinygrad_patches.project import Project

WHEEL = "keras-1.0-py3-none-any.whl"


def fails_and_changes_nothing(fork, *arguments, **settings):
    before = fork.snapshot()
    message = fork.run(*arguments, fails=True, **settings)
    assert fork.snapshot() == before
    return message


def test_materialises_a_fresh_clone(fresh_fork):
    fresh_fork.run("vendor")
    assert 'DEFAULT = "tinygrad"' in fresh_fork.read(CONFIG)
    assert "BASE = dict" in fresh_fork.read(LAYER)
    assert fresh_fork.read(TEST) == UPSTREAM[TEST]
    assert fresh_fork.read(BACKEND) == 'NAME = "tinygrad"\n'
    assert not (fresh_fork.root / "keras" / "METADATA").exists()


def test_is_idempotent_and_works_offline(fresh_fork):
    fresh_fork.run("vendor")
    times = {
        path: path.stat().st_mtime_ns
        for path in (fresh_fork.root / "keras").rglob("*.py")
    }
    shutil.rmtree(fresh_fork.index)
    assert "up to date" in fresh_fork.run("vendor")
    assert "up to date" in fresh_fork.run("status")
    assert times == {path: path.stat().st_mtime_ns for path in times}


def test_is_up_to_date_within_five_seconds():
    started = time.monotonic()
    subprocess.run(
        [sys.executable, "-m", "keras_tinygrad_patches", "vendor"],
        cwd=REPOSITORY,
        check=True,
    )
    assert time.monotonic() - started < 5


def test_follows_pin_and_series(fork):
    gone = {"keras/src/gone.py": None, "keras/src/come/__init__.py": ""}
    wheel = fork.publish("1.1", gone)
    fork.run("rebase", "1.1")
    newer = {
        path: fork.read(path)
        for path in (
            "keras_tinygrad_patches/pin.json",
            "keras_tinygrad_patches/patches/series",
        )
    }
    assert fork.pin["sha256"] == hashlib.sha256(wheel.read_bytes()).hexdigest()
    # As when somebody checks another commit out.
    older = {**fork.pin, "version": "1.0", "file": WHEEL}
    older["sha256"] = hashlib.sha256(
        (fork.index / WHEEL).read_bytes()
    ).hexdigest()
    write_files(
        fork.root,
        {"keras_tinygrad_patches/pin.json": str(older).replace("'", '"')},
    )
    assert "not up to date" in fork.run_status()
    fork.run("vendor")
    assert (fork.root / "keras/src/gone.py").exists()
    assert not (fork.root / "keras/src/come").exists()
    write_files(fork.root, newer)
    fork.run("vendor")
    assert not (fork.root / "keras/src/gone.py").exists()
    assert (fork.root / "keras/src/come/__init__.py").exists()


def test_names_edited_files_and_never_overwrites_them(fork):
    (fork.root / LAYER).write_text("EDITED = True\n")
    message = fails_and_changes_nothing(fork, "vendor")
    assert LAYER in message and CONFIG not in message
    assert "keras_tinygrad_patches refresh" in message
    assert LAYER in fork.run_status()

    fork.run("vendor", "--force")
    assert "BASE = dict" in fork.read(LAYER)


def test_brings_missing_files_back_and_leaves_others_alone(fork):
    (fork.root / LAYER).unlink()
    write_files(fork.root, {"keras/src/mine.py": "MINE = True\n"})
    printed = fork.run("vendor")
    assert "1 missing files" in printed and "keras/src/mine.py" in printed
    assert "BASE = dict" in fork.read(LAYER)
    assert fork.read("keras/src/mine.py") == "MINE = True\n"


def test_names_some_of_many_files_and_all_in_status(fork):
    names = [f"keras/src/mine_{i:02}_test.py" for i in range(12)]
    write_files(fork.root, dict.fromkeys(names, ""))
    printed = fork.run("vendor")
    assert [name in printed for name in names] == [True] * 10 + [False] * 2
    assert "    and 2 more added\n" in printed
    printed = fork.run_status()
    assert all(name in printed for name in names) and "more" not in printed


@pytest.mark.parametrize(
    "text, expected",
    [
        (b"<<<<<<< ours\n{}\n=======\n{}\n>>>>>>> theirs\n", "conflict"),
        (b"", "Expecting value"),
        (b"[]", "must be a mapping"),
        (b'{"version": "1.0"}', "missing 2 required"),
        (b'{"version": 1, "file": "", "sha256": ""}', "`version` is not"),
        (b'"\xe9"', "UTF-8"),
    ],
)
def test_a_pin_that_is_none(fork, text, expected):
    pin = "keras_tinygrad_patches/pin.json"
    (fork.root / pin).write_bytes(text)
    for command in (["vendor"], ["status"], ["rebase", "1.0"]):
        message = fails_and_changes_nothing(fork, *command)
        assert message.startswith(f"{command[0]}: {pin} ")
        assert expected in message and f"git checkout HEAD {pin}" in message
        assert message.count("\n") == 1


def test_a_pin_that_is_none_is_a_problem_for_doctor(fork):
    write_files(fork.root, {"keras_tinygrad_patches/pin.json": "<<<<<<< x\n"})
    printed = fork.run("doctor", fails=True)
    assert "PROBLEM: the pin cannot be read." in printed
    assert "See the remedies above." in printed


@pytest.mark.parametrize("name", ["base.patch", "series", "tests/series"])
def test_a_series_that_is_not_utf_8(fork, name):
    path = f"keras_tinygrad_patches/patches/{name}"
    data = (fork.root / path).read_bytes()
    (fork.root / path).write_bytes(data + "é".encode("latin-1"))
    message = fails_and_changes_nothing(fork, "rebase", "1.0", "--check")
    assert message.startswith(f"rebase: {path} cannot be read: ")
    assert "UTF-8" in message and f"git checkout HEAD {path}" in message
    assert {path.name for path in (fork.root / ".vendor").iterdir()} == {
        "git",
        "wheels",
        "written.json",
    }


def test_refuses_a_tampered_download(fresh_fork):
    with zipfile.ZipFile(fresh_fork.index / WHEEL, "a") as archive:
        archive.writestr("keras/src/evil.py", "")
    message = fails_and_changes_nothing(fresh_fork, "vendor")
    assert "SHA-256" in message and fresh_fork.pin["sha256"] in message
    assert not list((fresh_fork.root / ".vendor/wheels").iterdir())


def test_fetches_a_tampered_cache_again(fork):
    shutil.rmtree(fork.root / ".vendor/git")
    wheel = fork.root / ".vendor/wheels" / WHEEL
    wheel.write_bytes(wheel.read_bytes() + b"x")
    assert "up to date" in fork.run("vendor")
    assert wheel.read_bytes() == (fork.index / WHEEL).read_bytes()


def test_unknown_version(fresh_fork):
    pin = fresh_fork.read("keras_tinygrad_patches/pin.json")
    write_files(
        fresh_fork.root,
        {"keras_tinygrad_patches/pin.json": pin.replace("1.0", "9.9")},
    )
    message = fails_and_changes_nothing(fresh_fork, "vendor")
    assert "could not get Keras 9.9" in message
    assert "Check the version" in message
    assert "(from versions: 1.0)" in message


def test_no_network_and_no_cache(fresh_fork):
    shutil.rmtree(fresh_fork.index)
    message = fails_and_changes_nothing(fresh_fork, "vendor")
    assert "could not get Keras 1.0" in message
    assert "network" in message and WHEEL in message


def test_no_pip(fresh_fork):
    blocked = fresh_fork.root.parent / "blocked"
    write_files(
        blocked, {"pip.py": "raise ImportError('No module named pip')\n"}
    )
    message = fails_and_changes_nothing(
        fresh_fork, "vendor", PYTHONPATH=str(blocked)
    )
    assert "ensurepip" in message and WHEEL in message


@pytest.mark.parametrize(
    "old, new, expected",
    [
        ('-DEFAULT = "tensorflow"', '-DEFAULT = "theano"', "does not apply"),
        ("@@ -20,3 +20,3 @@", "@@ -19,3 +19,3 @@", "not apply exactly"),
        ("diff --git ", "no diff ", "no `diff --git`"),
    ],
)
def test_series_that_does_not_apply(fork, old, new, expected):
    fork.edit("keras_tinygrad_patches/patches/default.patch", old, new)
    message = fails_and_changes_nothing(fork, "vendor")
    assert expected in message and "default" in message


def test_series_that_names_a_patch_that_is_not_there(fork):
    write_files(
        fork.root,
        {"keras_tinygrad_patches/patches/series": "default\nbase\nother\n"},
    )
    message = fails_and_changes_nothing(fork, "vendor")
    assert "other" in message


def test_a_failed_write_leaves_the_old_tree(fork, monkeypatch):
    from keras_tinygrad_patches import tree

    fork.publish("1.1", {LAYER: UPSTREAM[LAYER] + "NEW = 1\n"})
    project = Project(fork.root)
    stack = tree.read_stack(project)
    files = {CONFIG: b"new", LAYER: b"new", "keras/src/new.py": b"new"}
    commit = stack.repository.import_files(files, "x\n", parent=stack.head)
    before, replace = fork.snapshot(), tree.os.replace

    def fail_at_last(source, target):
        if str(target).endswith("src/new.py"):
            raise OSError("disk full")
        replace(source, target)

    monkeypatch.setattr(tree.os, "replace", fail_at_last)
    with pytest.raises(OSError, match="disk full"):
        tree.install(stack.repository, commit, fork.root)
    assert fork.snapshot() == before


def test_materialises_elsewhere_with_test_patches(fork, tmp_path):
    target = tmp_path / "tree"
    fork.run("materialise", str(target), "--with-test-patches")
    assert '"tinygrad",' in (target / TEST).read_text()
    assert "BASE = dict" in (target / LAYER).read_text()
    assert (target / BACKEND).exists()

    # Again, with a backend that moved on.
    (fork.root / BACKEND).write_text('NAME = "other"\n')
    fork.run("materialise", str(target))
    assert (target / TEST).read_text() == UPSTREAM[TEST]
    assert (target / BACKEND).read_text() == 'NAME = "other"\n'

    (target / LAYER).write_text("EDITED = True\n")
    before = snapshot(target)
    message = fails_and_changes_nothing(fork, "materialise", str(target))
    assert "refresh --tree" in message
    assert snapshot(target) == before


def test_materialise_spares_a_folder_of_somebody_else(fork, tmp_path):
    write_files(tmp_path / "mine", {"notes.txt": "mine"})
    message = fails_and_changes_nothing(
        fork, "materialise", str(tmp_path / "mine")
    )
    assert "not empty" in message


def test_takes_what_releases_leave_out_from_a_checkout(fork, tmp_path):
    checkout = make_checkout(
        tmp_path / "checkout",
        "v1.0",
        {LAYER: "OTHER = 1\n", "keras/src/left_out_test.py": "LEFT = 1\n"},
    )
    target = tmp_path / "tree"
    fork.run("materialise", str(target), "--keras-git", str(checkout))
    assert (target / "keras/src/left_out_test.py").read_text() == "LEFT = 1\n"
    assert "BASE = dict" in (target / LAYER).read_text()
    message = fails_and_changes_nothing(
        fork,
        *("materialise", str(tmp_path / "other")),
        *("--keras-git", str(checkout), "--tag", "v7"),
    )
    assert "v7" in message


def make_checkout(folder, tag, changes):
    """Returns a git checkout of upstream with a tag."""
    write_files(folder, {**UPSTREAM, **changes})
    for arguments in (
        ["init", "--quiet"],
        ["add", "--all"],
        ["-c", "user.name=x", "-c", "user.email=x@x", "commit", "-qm", "x"],
        ["tag", tag],
    ):
        subprocess.run(["git", *arguments], cwd=folder, check=True)
    return folder


def test_git_am_accepts_the_real_series(tmp_path):
    project = Project(REPOSITORY)
    patches = series.read_all(project)
    assert {path for p in patches for path in p.files}
    for patch in patches:
        subject, reason = patch.message.split("\n\n", 1)
        assert len(subject) < 73 and "nnecessary" in reason, patch.name
        assert patch.author == AUTHOR
    from keras_tinygrad_patches import tree

    stack = tree.read_stack(project, tests=True)
    with stack.repository.worktree(stack.base) as worktree:
        folders = {True: project.test_patches, False: project.patches}
        worktree.git(
            *("am", "--quiet"),
            *(folders[p.tests] / f"{p.name}.patch" for p in patches),
        )
        applied = worktree.git("rev-parse", "HEAD^{tree}").stdout.decode()
    assert applied.strip() == stack.repository.tree(stack.head)
