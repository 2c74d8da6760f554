"""Tests `refresh`: edits of the materialised tree become patches."""

import shutil

import pytest

from integration_tests.fork.synthetic import CONFIG
from integration_tests.fork.synthetic import LAYER
from integration_tests.fork.synthetic import TEST
from integration_tests.fork.synthetic import UPSTREAM
from integration_tests.fork.synthetic import snapshot
from integration_tests.fork.synthetic import write_files

TESTING = "keras/src/testing/__init__.py"


def gives_the_same_tree_again(fork):
    """Whether a new clone with these patches materialises what is here."""
    edited = {
        path: text
        for path, text in fork.snapshot().items()
        if path.startswith("keras/")
    }
    shutil.rmtree(fork.root / ".vendor")
    fork.run("vendor", "--force")
    return edited == {
        path: text
        for path, text in fork.snapshot().items()
        if path.startswith("keras/")
    }


def fails_and_changes_nothing(fork, *arguments):
    before = fork.snapshot()
    message = fork.run(*arguments, fails=True)
    assert fork.snapshot() == before
    return message


def test_an_edit_goes_to_the_patch_that_touches_the_file(fork):
    fork.edit(LAYER, "BASE = dict", "BASE = list")
    assert fork.run("refresh").split() == ["base:", "changed"]
    assert "+BASE = list" in fork.patch("base")
    assert "Why not." in fork.patch("base")
    assert "up to date" in fork.run("vendor")
    assert gives_the_same_tree_again(fork)


def test_edits_of_one_file_go_to_the_patches_of_their_lines(fork):
    fork.edit(CONFIG, '"tinygrad"', '"tinygrad"  # ours')
    fork.edit(CONFIG, "LAST = dict", "LAST = dict\nVERY_LAST = set")
    printed = fork.run("refresh")
    assert "default: changed" in printed and "base: changed" in printed
    assert '+DEFAULT = "tinygrad"  # ours' in fork.patch("default")
    assert "VERY_LAST" not in fork.patch("default")
    assert "+VERY_LAST = set" in fork.patch("base")
    assert gives_the_same_tree_again(fork)


def test_an_edit_between_patches_has_to_be_given_to_one(fork):
    fork.edit(CONFIG, "NUMBER_3 = 3", "NUMBER_3 = 4")
    message = fails_and_changes_nothing(fork, "refresh")
    assert CONFIG in message and "--patch NAME" in message
    fork.run("refresh", "--patch", "default")
    assert "+NUMBER_3 = 4" in fork.patch("default")
    assert gives_the_same_tree_again(fork)


def test_an_edit_that_no_patch_touches_needs_a_name_and_a_reason(fork):
    fork.edit("keras/src/version.py", '"1.0"', '"1.0"  # forked')
    write_files(fork.root, {"keras/src/new.py": "NEW = 1\n"})
    message = fails_and_changes_nothing(fork, "refresh")
    assert "--new NAME" in message
    message = fails_and_changes_nothing(fork, "refresh", "--new", "fresh")
    assert "why" in message
    fork.run("refresh", "--new", "fresh", "-m", "A subject", "-m", "A reason.")
    assert fork.series() == ["default", "base", "fresh"]
    assert "Subject: [PATCH] A subject\n" in fork.patch("fresh")
    assert "\nA reason.\n---\n" in fork.patch("fresh")
    assert "new file mode" in fork.patch("fresh")
    assert gives_the_same_tree_again(fork)


@pytest.mark.parametrize("message", [("", "Why."), ("A subject", "a\n--- b")])
def test_a_message_that_no_patch_can_hold(fork, message):
    write_files(fork.root, {"keras/src/new.py": "NEW = 1\n"})
    texts = [part for text in message for part in ("-m", text)]
    fails_and_changes_nothing(fork, "refresh", "--new", "fresh", *texts)


def test_a_binary_file_is_no_patch(fork):
    (fork.root / "keras" / "src" / "new.bin").write_bytes(b"\0\1\xff")
    message = fails_and_changes_nothing(
        fork, "refresh", "--new", "fresh", "-m", "A subject", "-m", "Why."
    )
    assert "keras/src/new.bin is binary" in message


def test_only_the_named_files_are_taken(fork):
    fork.edit(LAYER, "BASE = dict", "BASE = list")
    fork.edit(CONFIG, '"tinygrad"', '"tinygrad"  # ours')
    assert fork.run("refresh", LAYER).split() == ["base:", "changed"]
    assert "# ours" in fork.read(CONFIG)
    assert CONFIG in fork.run_status()
    message = fails_and_changes_nothing(fork, "refresh", "keras/src/gone.py")
    assert "no edit in keras/src/gone.py" in message


def test_a_missing_file_is_an_edit_only_where_it_is_named(fork):
    (fork.root / "keras/src/gone.py").unlink()
    message = fails_and_changes_nothing(fork, "refresh")
    assert "No upstream file" in message
    fork.run("refresh", "keras/src/gone.py", "--patch", "base")
    assert "deleted file mode" in fork.patch("base")
    assert gives_the_same_tree_again(fork)


def test_an_edit_that_undoes_a_patch_drops_it(fork):
    fork.edit(CONFIG, '"tinygrad"', '"tensorflow"')
    assert "empty now" in fork.run("refresh")
    assert fork.series() == ["base"]
    assert gives_the_same_tree_again(fork)


def test_a_test_is_kept_apart(fork):
    fork.edit(TEST, '    "jax",\n', '    "torch",\n    "jax",\n')
    write_files(fork.root, {TESTING: UPSTREAM[TESTING] + "TPU = False\n"})
    message = fails_and_changes_nothing(fork, "refresh", "--patch", "base")
    assert "what is not a test" in message

    # Taken out of the tree, which is to hold upstream's tests as they are.
    fork.run("refresh", TEST)
    assert fork.read(TEST) == UPSTREAM[TEST]
    assert '+    "torch",' in fork.patch("tests/test-names")
    assert '+    "tinygrad",' in fork.patch("tests/test-names")
    fork.run("refresh", "--new", "testing", "-m", "It knows no TPU.")
    assert fork.series() == ["default", "base"]
    assert fork.series(tests=True) == ["test-names", "testing"]
    assert "up to date" in fork.run("status")


def test_edits_of_a_materialised_tree(fork, tmp_path):
    target = tmp_path / "tree"
    fork.run("materialise", str(target), "--with-test-patches")
    for path, old, new in (
        (TEST, '"tinygrad"', '"tinygrad", "numpy"'),
        (LAYER, "BASE = dict", "BASE = list"),
    ):
        text = (target / path).read_text()
        (target / path).write_text(text.replace(old, new))
    fork.run("refresh", "--tree", str(target))
    assert '+    "tinygrad", "numpy",' in fork.patch("tests/test-names")
    assert "+BASE = list" in fork.patch("base")
    before = snapshot(target)
    fork.run("materialise", str(target), "--with-test-patches")
    before.pop(".keras_tinygrad_tree.json")
    after = snapshot(target)
    after.pop(".keras_tinygrad_tree.json")
    assert after == before

    # The checkout follows.
    assert "not up to date" in fork.run_status()
    fork.run("vendor")
    assert "BASE = list" in fork.read(LAYER)


def test_an_edit_of_lines_of_a_later_patch_goes_to_no_earlier_one(fork):
    fork.edit(CONFIG, "LAST = dict", "LAST = list")
    message = fails_and_changes_nothing(fork, "refresh", "--patch", "default")
    assert "depends on lines" in message and CONFIG in message


@pytest.mark.parametrize("name", ["Bad Name", "default"])
def test_names_of_patches(fork, name):
    fork.edit(LAYER, "BASE = dict", "BASE = list")
    fails_and_changes_nothing(fork, "refresh", "--new", name, "-m", "x")


def test_a_tree_of_another_series_is_refused(fork):
    fork.edit(
        "keras_tinygrad_patches/patches/base.patch", "Why not.", "Because."
    )
    fork.edit(LAYER, "BASE = dict", "BASE = list")
    message = fails_and_changes_nothing(fork, "refresh")
    assert "another pin or series" in message
