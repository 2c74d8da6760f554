"""Tests the runner of Keras' own suite on a tiny suite made here."""

import importlib.util
import os
import re
import subprocess
import sys
import textwrap

import pytest

from integration_tests.upstream import run

SUITE = {
    "keras/__init__.py": "",
    "keras/src/__init__.py": "",
    "keras/src/backend/__init__.py": """
        import os


        def backend():
            return os.environ["KERAS_BACKEND"]
        """,
    "keras/src/backend/torch/core_test.py": """
        def test_of_another_backend():
            raise AssertionError("must not run")
        """,
    "keras/src/good/good_test.py": """
        import unittest

        import pytest
        from conftest import skip_if_backend


        class GoodTest(unittest.TestCase):
            def test_passes(self):
                pass

            @skip_if_backend("tinygrad", "as a test")
            def test_skips(self):
                raise AssertionError("must not run")

            @skip_if_backend("torch", "as a test")
            def test_runs(self):
                pass

            @pytest.mark.requires_trainable_backend
            def test_trains(self):
                pass
        """,
    "keras/src/bad/bad_test.py": """
        import unittest


        class BadTest(unittest.TestCase):
            def test_fails(self):
                self.assertEqual(1, 2)

            def test_fails_in_a_subtest(self):
                for i in range(3):
                    with self.subTest(i=i):
                        self.assertNotEqual(i, 1)

            def test_passes_in_subtests(self):
                for i in range(3):
                    with self.subTest(i=i):
                        self.assertEqual(i, i)
        """,
    "keras/src/bad/import_test.py": """
        raise ImportError("Invalid backend: tinygrad")
        """,
}

BAD = "keras/src/bad/bad_test.py::BadTest"
EXPECTED = f"""
{BAD}::test_fails  # one is not two
{BAD}::test_fails_in_a_subtest  # one of three
keras/src/bad/import_test.py  # refuses every backend
"""


@pytest.fixture
def tree(tmp_path):
    for name, text in SUITE.items():
        write(tmp_path, name, text)
    return tmp_path


def write(tree, name, text):
    path = tree / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text))


def run_suite(tree, expected, *arguments):
    """Returns the exit status and the output of a run on `tree`."""
    listed = tree / "expected_failures.txt"
    listed.write_text(textwrap.dedent(expected))
    command = run.test_command(sys.executable, tree, listed, list(arguments))
    completed = subprocess.run(
        [*command, "-p", "no:cacheprovider"],
        cwd=tree,
        env=run.test_environ(sys.executable, tree, tree / "home"),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return completed.returncode, completed.stdout


def tally(output):
    """Returns the tally as a dict: directory to its four counts."""
    rows = re.findall(
        r"^(\S+) +(\d+) +(\d+) +(\d+) +(\d+) +[\d.]+$", output, re.MULTILINE
    )
    return {name: tuple(map(int, counts)) for name, *counts in rows}


@pytest.mark.parametrize("workers", [(), ("-n", "2")])
def test_run_succeeds_when_just_the_listed_tests_fail(tree, workers):
    status, output = run_suite(tree, EXPECTED, *workers)
    assert status == 0, output
    assert tally(output) == {
        "keras/src/bad": (1, 0, 0, 3),
        "keras/src/good": (3, 0, 1, 0),
        "all": (4, 0, 1, 3),
    }


@pytest.mark.parametrize("workers", [(), ("-n", "2")])
@pytest.mark.parametrize("unlisted", EXPECTED.strip().splitlines())
def test_unlisted_failure_fails_the_run(tree, unlisted, workers):
    status, output = run_suite(tree, EXPECTED.replace(unlisted, ""), *workers)
    assert status != 0, output
    assert tally(output)["all"][1] == 1, output
    assert unlisted.partition("  #")[0] in output


@pytest.mark.parametrize("workers", [(), ("-n", "2")])
@pytest.mark.parametrize(
    "listed",
    [
        "keras/src/good/good_test.py::GoodTest::test_passes",
        f"{BAD}::test_passes_in_subtests",
        "keras/src/good/good_test.py",
    ],
)
def test_listed_test_that_passes_fails_the_run(tree, listed, workers):
    status, output = run_suite(
        tree, EXPECTED + f"{listed}  # outdated\n", *workers
    )
    assert status != 0, output
    assert f"{listed} is listed in expected_failures.txt and passes" in output
    assert "Listed because: outdated" in output
    assert tally(output)["all"][1] == 1, output


def test_listed_test_that_does_not_exist_fails_a_run_of_its_file(tree):
    gone = "keras/src/good/good_test.py::GoodTest::test_gone"
    expected = EXPECTED + f"{gone}  # was there once\n"
    status, output = run_suite(tree, expected)
    assert status != 0, output
    assert f"{gone} is listed in expected_failures.txt and was not" in output
    # A run that selects less cannot tell.
    assert run_suite(tree, expected, "keras/src/bad")[0] == 0
    assert run_suite(tree, expected, "-k", "passes")[0] == 0


@pytest.mark.parametrize(
    "line, complaint",
    [
        (f"{BAD}::test_fails", "expected `NODE ID"),
        (f"{BAD}::test_fails  # ", "expected `NODE ID"),
        (f"{BAD}::test_fails  # again", "is listed twice"),
    ],
)
def test_malformed_list_is_refused(tree, line, complaint):
    status, output = run_suite(tree, EXPECTED + line + "\n")
    assert status == pytest.ExitCode.USAGE_ERROR
    assert complaint in output


def test_tests_of_other_backends_are_left_out_and_said_once(tree):
    status, output = run_suite(tree, EXPECTED, "-n", "2")
    assert status == 0, output
    assert output.count("tests of other backends") == 1
    assert "test_of_another_backend" not in output


def test_crash_of_a_worker_is_a_failure(tree):
    write(
        tree,
        "keras/src/good/crash_test.py",
        """
        import os


        def test_crashes():
            os.abort()


        def test_passes():
            pass
        """,
    )
    crashing = "keras/src/good/crash_test.py::test_crashes"
    status, output = run_suite(tree, EXPECTED, "-n", "1")
    assert status != 0
    assert re.search(f"crashed while running '{crashing}'", output)
    assert tally(output)["all"] == (5, 1, 1, 3)
    # A crash is no expected failure.
    listed = EXPECTED + f"{crashing}  # aborts\n"
    assert run_suite(tree, listed, "-n", "1")[0] != 0
    assert run_suite(tree, listed)[0] != 0


@pytest.mark.skipif(
    importlib.util.find_spec("tf2onnx") is not None,
    reason="tf2onnx stands for a package that is not installed",
)
def test_absent_optional_package_skips_what_needs_it(tree):
    write(
        tree,
        "keras/src/good/optional_test.py",
        """
        from keras.src.backend.tinygrad import broken

        def test_absent():
            import tf2onnx.convert

        def test_absent_through_a_lazy_module():
            try:
                import tf2onnx
            except ImportError:
                raise ImportError("Install tf2onnx.")

        def test_absent_but_not_the_cause():
            try:
                import tf2onnx
            except ImportError:
                raise ValueError("something else")

        def test_misspelt():
            import numqy

        def test_needed_by_our_backend():
            broken()
        """,
    )
    write(tree, "keras/src/good/whole_test.py", "import tf2onnx")
    write(
        tree,
        "keras/src/backend/tinygrad/__init__.py",
        """
        def broken():
            import tf2onnx
        """,
    )
    status, output = run_suite(tree, EXPECTED, "keras/src/good", "-rfs")
    assert status != 0
    assert tally(output)["keras/src/good"] == (3, 3, 4, 0), output
    assert "needs tf2onnx, which is not installed" in output
    assert "optional_test.py::test_misspelt" in output
    assert "optional_test.py::test_needed_by_our_backend" in output


def test_another_keras_is_refused(tree, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    for name in list(SUITE)[:3]:
        target = elsewhere / name
        target.parent.mkdir(parents=True, exist_ok=True)
        os.rename(tree / name, target)
    listed = tree / "expected_failures.txt"
    listed.write_text("")
    environ = run.test_environ(sys.executable, tree, tree / "home")
    environ["PYTHONPATH"] += os.pathsep + str(elsewhere)
    completed = subprocess.run(
        run.test_command(sys.executable, tree, listed, []),
        cwd=tree,
        env=environ,
        capture_output=True,
        text=True,
    )
    assert completed.returncode == pytest.ExitCode.USAGE_ERROR
    assert "outside" in completed.stderr


def test_arguments_are_split_between_the_runner_and_pytest(tree):
    options, rest = run.parse(
        ["--with-test-patches", "-k", "dense", "keras/src/good", "-n", "2"]
    )
    assert options.with_test_patches
    assert rest == ["-k", "dense", "keras/src/good", "-n", "2"]
    command = run.test_command(sys.executable, tree, "list", rest)
    assert "keras/src" not in command
    assert "keras/src" in run.test_command(
        sys.executable, tree, "list", ["-k", "good"]
    )
