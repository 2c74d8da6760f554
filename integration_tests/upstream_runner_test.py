"""Tests the runner of Keras' own suite on a tiny suite made here."""

import importlib.util
import json
import os
import re
import subprocess
import sys
import textwrap
import types

import pytest

from integration_tests.upstream import jax_programs
from integration_tests.upstream import record
from integration_tests.upstream import run
from integration_tests.upstream import skips
from integration_tests.upstream.tally import Tally

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
    command = run.test_command(
        sys.executable,
        tree,
        [*arguments, "-p", "no:cacheprovider"],
        listed,
        tree / "results.jsonl",
    )
    completed = subprocess.run(
        command,
        cwd=tree,
        env=run.test_environ(sys.executable, tree, tree / "home"),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return completed.returncode, completed.stdout


def tally(output):
    """Returns the tally as a dict: directory to its five counts."""
    rows = re.findall(
        r"^(\S+) +(\d+) +(\d+) +(\d+) +(\d+) +(\d+) +[\d.]+$",
        output,
        re.MULTILINE,
    )
    return {name: tuple(map(int, counts)) for name, *counts in rows}


@pytest.mark.parametrize("workers", [("-n", "0"), ("-n", "2")])
def test_run_succeeds_when_just_the_listed_tests_fail(tree, workers):
    status, output = run_suite(tree, EXPECTED, *workers)
    assert status == 0, output
    assert tally(output) == {
        "keras/src/bad": (1, 0, 0, 3, 0),
        "keras/src/good": (3, 0, 1, 0, 0),
        "all": (4, 0, 1, 3, 0),
    }


@pytest.mark.parametrize("workers", [("-n", "0"), ("-n", "2")])
@pytest.mark.parametrize("unlisted", EXPECTED.strip().splitlines())
def test_unlisted_failure_fails_the_run(tree, unlisted, workers):
    status, output = run_suite(tree, EXPECTED.replace(unlisted, ""), *workers)
    assert status != 0, output
    assert tally(output)["all"][1] == 1, output
    assert unlisted.partition("  #")[0] in output


@pytest.mark.parametrize("workers", [("-n", "0"), ("-n", "2")])
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


def test_file_that_releases_leave_out_is_there_in_a_checkout(tree):
    test = "keras/src/good/good_test.py::GoodTest::test_passes"
    expected = EXPECTED + f"{test}  # Left out of the release: its data\n"
    assert run_suite(tree, expected, "keras/src/good")[0] != 0
    arguments = ("keras/src/good", "--nothing-left-out")
    assert run_suite(tree, expected, *arguments)[0] == 0


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
    assert tally(output)["all"] == (5, 1, 1, 3, 0)
    # A crash is no expected failure.
    listed = EXPECTED + f"{crashing}  # aborts\n"
    assert run_suite(tree, listed, "-n", "1")[0] != 0
    assert run_suite(tree, listed, "-n", "0")[0] != 0
    # What was done before it is kept.
    assert Tally.read(tree / "results.jsonl").outcomes


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
    assert tally(output)["keras/src/good"] == (3, 3, 4, 0, 0), output
    assert "needs tf2onnx, which is not installed" in output
    assert "optional_test.py::test_misspelt" in output
    assert "optional_test.py::test_needed_by_our_backend" in output


def test_test_without_its_network_is_told_apart(tree):
    write(
        tree,
        "keras/src/good/network_test.py",
        """
        import socket
        import urllib.request

        def read(url):
            try:
                urllib.request.urlopen(url, timeout=5)
            except Exception as e:
                raise Exception(f"URL fetch failure on {url}")

        def test_needs_a_host():
            read("http://keras.invalid/weights.h5")

        def test_needs_it_too():
            read("http://keras.invalid/data.npz")

        def test_gets_along_without():
            try:
                read("http://keras.invalid/weights.h5")
            except Exception:
                pass

        def test_fails_for_another_reason():
            try:
                read("http://keras.invalid/weights.h5")
            except Exception:
                pass
            assert 1 == 2

        def test_needs_a_server_on_this_machine():
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = free.getsockname()[1]
            read(f"http://127.0.0.1:{port}/")
        """,
    )
    status, output = run_suite(tree, EXPECTED, "keras/src/good", "-rfs")
    assert status != 0
    assert tally(output)["keras/src/good"] == (4, 2, 1, 0, 2), output
    assert "needs a network: keras.invalid could not be reached" in output


def test_jax_drops_its_programs_now_and_then(monkeypatch):
    drops = []
    jax = types.SimpleNamespace(clear_caches=lambda: drops.append(1))
    monkeypatch.setitem(sys.modules, "jax", jax)
    for _ in range(2 * jax_programs.INTERVAL):
        jax_programs.pytest_runtest_teardown(item=None)
    assert len(drops) == 2


def test_results_are_written_down(tree):
    run_suite(tree, EXPECTED, "-n", "2")
    results = tree / "results.jsonl"
    outcomes = Tally.read(results).outcomes
    assert outcomes["keras/src/good/good_test.py::GoodTest::test_runs"] == (
        "passed"
    )
    assert outcomes["keras/src/bad/import_test.py"] == "xfailed"
    assert skips.skipped(results) == {
        "keras/src/good/good_test.py::GoodTest::test_skips": "as a test"
    }
    assert skips.skipped(results, ["keras/src/bad"]) == {}
    paths = ["keras/src/bad", "keras/src/ugly"]
    assert skips.without_tests(results, paths) == ["keras/src/ugly"]


def test_named_tests_alone_are_run(tree):
    write(tree, "only.txt", f"{BAD}::test_fails\nkeras/src/good/good_test.py")
    output = run_suite(tree, EXPECTED, "--only", str(tree / "only.txt"))[1]
    assert tally(output)["all"] == (3, 0, 1, 2, 0), output


@pytest.mark.parametrize("workers", [("-n", "0"), ("-n", "2")])
def test_names_hold_no_addresses(tree, workers):
    write(
        tree,
        "keras/src/named/named_test.py",
        """
        import pytest


        @pytest.mark.parametrize("value", [object(), len], ids=repr)
        def test_named(value):
            pass
        """,
    )
    status, output = run_suite(tree, EXPECTED, *workers)
    assert status == 0, output
    results = (tree / "results.jsonl").read_text()
    assert "test_named[<object object>]" in results
    assert "0x" not in results


def test_skips_are_held_to_their_list():
    here = {"a_test.py::A::test_b": "no b", "c_test.py": "no c", "d": "no d"}
    there = {"a_test.py::A::test_b", "c_test.py::C::x", "c_test.py::D::x"}
    listed = {"a_test.py::A::*": "b is torch's", "e_test.py": "gone"}
    assert skips.compare(here, there, listed) == (
        {"a_test.py::A::test_b": "b is torch's"},
        {"c_test.py::C::x": "no c", "c_test.py::D::x": "no c"},
        ["e_test.py"],
    )


def test_record_keeps_both_kinds_of_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(record, "FILE", tmp_path / "record.json")
    results = Tally()
    results.add("keras/src/layers/core/dense_test.py::A::a", "passed")
    results.add("keras/src/layers/core/dense_test.py::A::b", "failed")
    results.add("keras/src/trainers/data_adapters/x_test.py::A::c", "skipped")
    record.add(sys.executable, record.UNCHANGED, results, 90.0, 1)
    record.add(sys.executable, record.WITH_TEST_PATCHES, results, 60.0, 0)
    kept = json.loads(record.FILE.read_text())
    assert kept["unchanged"]["tally"] == {
        "layers/core": dict.fromkeys(record.COLUMNS, 0)
        | {"passed": 1, "failed": 1},
        "trainers": dict.fromkeys(record.COLUMNS, 0) | {"skipped": 1},
    }
    assert kept["unchanged"]["minutes"] == 1.5
    assert kept["unchanged"]["versions"]["tinygrad"]
    text = record.section(kept)
    assert "| layers/core | 1 | 1 | 0 | 0 | 0 |" in text
    assert "| all | 1 | 1 | 1 | 0 | 0 |" in text
    assert "It failed." in text


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
        run.test_command(sys.executable, tree, [], listed),
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
    command = run.test_command(sys.executable, tree, rest)
    assert "keras/src" not in command
    command = run.test_command(sys.executable, tree, ["-k", "good"])
    assert command[-1] == "keras/src"
    assert command[command.index("-n") + 1] == "2"


def test_record_is_for_a_run_of_everything():
    assert run.parse(["--record"])[0].record
    with pytest.raises(SystemExit):
        run.parse(["--record", "keras/src/good"])
