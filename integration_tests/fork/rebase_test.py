"""Tests `rebase`: the series is replayed onto another release."""

import hashlib
import os
import shutil
import subprocess
import sys

import pytest

from integration_tests.fork.synthetic import BACKEND
from integration_tests.fork.synthetic import CONFIG
from integration_tests.fork.synthetic import LAYER
from integration_tests.fork.synthetic import REPOSITORY
from integration_tests.fork.synthetic import TEST
from integration_tests.fork.synthetic import UPSTREAM
from integration_tests.fork.synthetic import write_files
from integration_tests.fork.vendor_test import make_checkout

# Lines come in above; what the patches touch stays.
MOVED = {CONFIG: "FIRST = 1\nSECOND = 2\n" + UPSTREAM[CONFIG]}
# The line that the first patch changes is another one.
CHANGED = {CONFIG: UPSTREAM[CONFIG].replace("tensorflow", "jax")}
IN_THE_WAY = ".vendor/rebase/tree/" + CONFIG


def fails_and_changes_nothing(fork, *arguments):
    before = fork.snapshot()
    message = fork.run("rebase", *arguments, fails=True)
    assert fork.snapshot() == before
    return message


def leaves_nothing_behind(fork):
    names = {path.name for path in (fork.root / ".vendor").iterdir()}
    return names == {"git", "wheels", "written.json"}


def test_replays_onto_a_release(fork):
    wheel = fork.publish("1.1", MOVED)
    printed = fork.run("rebase", "1.1")
    assert "default: the same change, at other lines" in printed
    assert "base: the same change, at other lines" in printed
    assert "test-names: unchanged" in printed
    assert "smoke test passed" in printed
    assert fork.pin == {
        "version": "1.1",
        "file": wheel.name,
        "sha256": hashlib.sha256(wheel.read_bytes()).hexdigest(),
    }
    assert fork.read(CONFIG).startswith("FIRST = 1\n")
    assert 'DEFAULT = "tinygrad"' in fork.read(CONFIG)
    assert "@@ -22,3 +22,3 @@" in fork.patch("default")
    assert leaves_nothing_behind(fork)

    # The result is a fork like any other.
    shutil.rmtree(fork.root / ".vendor")
    assert "up to date" in fork.run("vendor")


def test_a_fresh_checkout_is_moved(fork):
    backend = fork.read(BACKEND)
    shutil.rmtree(fork.root / ".vendor")
    shutil.rmtree(fork.root / "keras")
    write_files(fork.root, {BACKEND: backend})
    fork.publish("1.1", MOVED)
    fork.run("rebase", "1.1")
    assert fork.read(CONFIG).startswith("FIRST = 1\n")
    assert "up to date" in fork.run("status")


def test_follows_a_file_that_was_renamed(fork):
    fork.publish("1.1", {LAYER: None, "keras/src/moved.py": UPSTREAM[LAYER]})
    printed = fork.run("rebase", "1.1")
    assert "base: changed" in printed and "+--- a/keras/src/moved.py" in printed
    assert "BASE = dict" in fork.read("keras/src/moved.py")
    assert not (fork.root / LAYER).exists()


def test_drops_a_patch_that_upstream_took(fork):
    taken = UPSTREAM[CONFIG].replace("tensorflow", "tinygrad")
    fork.publish("1.1", {CONFIG: taken})
    assert "default: dropped" in fork.run("rebase", "1.1")
    assert fork.series() == ["base"]
    assert "up to date" in fork.run("status")


def test_keeps_a_test_patch_for_releases_that_ship_the_test(fork):
    before = fork.patch("tests/test-names")
    fork.publish("1.1", {TEST: None})
    assert "test-names: kept as it is" in fork.run("rebase", "1.1")
    assert fork.patch("tests/test-names") == before
    fork.publish("1.2", {TEST: "FIRST = 1\n" + UPSTREAM[TEST]})
    fork.run("rebase", "1.0")
    assert "test-names: the same change" in fork.run("rebase", "1.2")


def test_check_touches_nothing(fork):
    fork.publish("1.1", MOVED)
    # Not even where a file is edited.
    fork.edit(LAYER, "BASE = dict", "BASE = list")
    before = fork.snapshot()
    printed = fork.run("rebase", "1.1", "--check")
    assert "replays cleanly" in printed and "smoke test passed" in printed
    assert fork.snapshot() == before
    assert leaves_nothing_behind(fork)


def test_check_shows_a_conflict(fork):
    fork.publish("2.0", CHANGED)
    message = fails_and_changes_nothing(fork, "2.0", "--check")
    assert "patch default conflicts in keras/src/config.py" in message
    assert leaves_nothing_behind(fork)


def test_a_conflict_is_resolved_and_loses_nothing(fork):
    wheel = fork.publish("2.0", CHANGED)
    message = fails_and_changes_nothing(fork, "2.0")
    assert "patch default conflicts in keras/src/config.py" in message
    for line in (
        "++<<<<<<< ",
        ' +DEFAULT = "jax"',
        '++DEFAULT = "tensorflow"',
        '+ DEFAULT = "tinygrad"',
        "++>>>>>>> ",
    ):
        assert line in message, message
    assert ".vendor/rebase/tree/" in message
    assert "--continue" in message and "--abort" in message
    assert "<<<<<<< " in fork.read(IN_THE_WAY)

    # Not resolved yet; nor can another one begin.
    message = fails_and_changes_nothing(fork, "--continue")
    assert "markers are left in keras/src/config.py" in message
    assert "has stopped before" in fails_and_changes_nothing(fork, "2.0")
    message = fork.run("vendor")
    assert "up to date" in message

    text = UPSTREAM[CONFIG].replace("tensorflow", "tinygrad")
    (fork.root / IN_THE_WAY).write_text(text)
    printed = fork.run("rebase", "--continue")
    assert "default: changed" in printed
    assert "base: unchanged" in printed
    assert "smoke test passed" in printed
    assert fork.pin["file"] == wheel.name
    assert '-DEFAULT = "jax"\n+DEFAULT = "tinygrad"' in fork.patch("default")
    assert "LAST = dict" in fork.read(CONFIG)
    assert "up to date" in fork.run("status")
    assert leaves_nothing_behind(fork)


def test_two_conflicts_in_turn(fork):
    text = UPSTREAM[LAYER].replace("BASE = object", "BASE = set")
    fork.publish("2.0", {**CHANGED, LAYER: text})
    assert "patch default" in fails_and_changes_nothing(fork, "2.0")
    (fork.root / IN_THE_WAY).write_text(
        UPSTREAM[CONFIG].replace("tensorflow", "tinygrad")
    )
    message = fails_and_changes_nothing(fork, "--continue")
    assert "patch base conflicts in keras/src/layer.py" in message
    # The release's own line is kept: nothing is left for the patch to do here.
    (fork.root / ".vendor/rebase/tree" / LAYER).write_text(text)
    fork.run("rebase", "--continue")
    assert "BASE = set" in fork.read(LAYER)
    assert LAYER not in fork.patch("base")
    assert "LAST = dict" in fork.read(CONFIG)


def test_a_conflict_is_aborted(fork):
    fork.publish("2.0", CHANGED)
    before = fork.snapshot()
    fails_and_changes_nothing(fork, "2.0")
    assert "dropped" in fork.run("rebase", "--abort")
    assert fork.snapshot() == before
    assert leaves_nothing_behind(fork)
    assert "no rebase" in fails_and_changes_nothing(fork, "--abort")
    assert "no rebase" in fails_and_changes_nothing(fork, "--continue")


def test_a_series_changed_meanwhile_stops_it(fork):
    fork.publish("2.0", CHANGED)
    fails_and_changes_nothing(fork, "2.0")
    fork.edit(
        "keras_tinygrad_patches/patches/base.patch", "Why not.", "Because."
    )
    message = fails_and_changes_nothing(fork, "--continue")
    assert "changed since" in message


def test_edits_made_meanwhile_are_not_lost(fork):
    fork.publish("2.0", CHANGED)
    fails_and_changes_nothing(fork, "2.0")
    (fork.root / IN_THE_WAY).write_text(
        UPSTREAM[CONFIG].replace("tensorflow", "tinygrad")
    )
    fork.edit("keras/src/version.py", '"1.0"', '"1.0"  # edited')
    message = fails_and_changes_nothing(fork, "--continue")
    assert "keras/src/version.py" in message and "refresh" in message


def test_a_file_of_ones_own_is_not_replaced(fork):
    fork.publish("1.1", {"keras/src/new.py": "THEIRS = 1\n"})
    write_files(fork.root, {"keras/src/new.py": "OURS = 1\n"})
    message = fails_and_changes_nothing(fork, "1.1")
    assert "keras/src/new.py" in message and "Move them away" in message
    assert leaves_nothing_behind(fork)


def test_names_some_of_many_files_in_the_way(fork):
    names = [f"keras/src/new_{i:02}_test.py" for i in range(12)]
    fork.publish("1.1", dict.fromkeys(names, "THEIRS = 1\n"))
    write_files(fork.root, dict.fromkeys(names, "OURS = 1\n"))
    message = fails_and_changes_nothing(fork, "1.1")
    assert [name in message for name in names] == [True] * 10 + [False] * 2
    assert "and 2 more added" in message


def test_a_backend_that_breaks_is_mended(fork):
    before = fork.read("keras_tinygrad_patches/pin.json")
    fork.publish("1.1", MOVED)
    (fork.root / BACKEND).write_text("from keras.src import no_more\n")
    message = fails_and_changes_nothing(fork, "1.1")
    assert "no_more" in message and "--continue" in message
    assert fork.read("keras_tinygrad_patches/pin.json") == before
    (fork.root / BACKEND).write_text('NAME = "tinygrad"\n')
    assert "smoke test passed" in fork.run("rebase", "--continue")
    assert fork.pin["version"] == "1.1"


def test_replays_onto_a_tag_of_a_checkout(fork, tmp_path):
    version = {"keras/src/version.py": '__version__ = "1.1.dev"\n'}
    checkout = make_checkout(tmp_path / "git", "v1.1", {**MOVED, **version})
    fork.run("rebase", "--keras-git", str(checkout), "v1.1")
    assert fork.pin["version"] == "1.1.dev"
    assert fork.pin["file"] == "git:v1.1"
    assert fork.read(CONFIG).startswith("FIRST = 1\n")

    # A clone of that needs the checkout, and says so.
    shutil.rmtree(fork.root / ".vendor")
    message = fork.run("vendor", fails=True)
    assert "v1.1" in message and "--keras-git" in message
    assert "up to date" in fork.run("vendor", "--keras-git", str(checkout))

    other = make_checkout(tmp_path / "other", "v1.1", version)
    shutil.rmtree(fork.root / ".vendor")
    message = fork.run("vendor", "--keras-git", str(other), fails=True)
    assert "digest" in message


def test_bad_input(fork, tmp_path):
    fails_and_changes_nothing(fork, "*")
    message = fails_and_changes_nothing(fork, "9.9")
    assert "could not get Keras 9.9" in message
    for arguments in ([], ["1.0", "--keras-git", str(tmp_path), "v1"]):
        assert "one of them" in fails_and_changes_nothing(fork, *arguments)
    for folder, tag in ((tmp_path / "none", "v1"), (fork.root, "v1")):
        message = fails_and_changes_nothing(
            fork, "--keras-git", str(folder), tag
        )
        assert str(folder) in message
    fork.edit(LAYER, "BASE = dict", "BASE = list")
    message = fails_and_changes_nothing(fork, "1.0")
    assert LAYER in message and "refresh" in message
    assert leaves_nothing_behind(fork)


def test_a_test_patch_that_fits_no_more_is_not_lost(fork):
    fork.publish("1.1", {TEST: None})
    fork.run("rebase", "1.1")
    fork.publish("1.2", {TEST: "BACKENDS = []\n"})
    message = fails_and_changes_nothing(fork, "1.2")
    assert "test-names" in message and "does not apply" in message
    assert leaves_nothing_behind(fork)


def test_says_when_upstream_requires_something_else(fork):
    fork.publish("1.1", requires=["numpy"])
    assert "new: numpy" in fork.run("rebase", "1.1", "--check")


@pytest.mark.parametrize("version", ["3.14.1", "3.15.0", "3.15.1"])
def test_the_real_series_replays(version):
    done = subprocess.run(
        ["sh", "shell/rebase.sh", version, "--check"],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHON": sys.executable},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "replays cleanly" in done.stdout
    assert f"Keras {version} on tinygrad: trained" in done.stdout
