"""Tests how the benchmark of models runs its processes and tells of them."""

import stat
import sys
import textwrap

import pytest

from integration_tests.benchmarks import __main__ as benchmark


@pytest.fixture
def program(tmp_path):
    """Returns a function that makes a worker's stand-in of a few lines."""

    def make(lines):
        file = tmp_path / "program"
        file.write_text(f"#!{sys.executable}\n{textwrap.dedent(lines)}")
        file.chmod(file.stat().st_mode | stat.S_IXUSR)
        return file

    return make


def test_what_a_stopped_process_found_is_kept(program, tmp_path):
    python = program(
        """
        import time
        print('{"first_step_s": 0.5}', flush=True)
        print('{"losses": [1.0', end="", flush=True)
        time.sleep(60)
        """
    )
    figures = benchmark._measure("torch", "mlp", python, str(tmp_path), 3)
    assert figures == {"first_step_s": 0.5, "error": "stopped after 3 s"}


def test_a_limit_before_the_first_step_is_reported_as_such(program, tmp_path):
    python = program("import time; time.sleep(60)")
    results = benchmark._run(["mlp"], ["plugin"], {"plugin": python}, 1)
    table = benchmark._table(results, "plugin", False)
    assert "| mlp | over 1 |" in table
    assert "- mlp, plugin: stopped after 1 s." in table


def test_a_process_that_fails_says_why(program, tmp_path):
    python = program("raise SystemExit('no such layer')")
    figures = benchmark._measure("jax", "mlp", python, str(tmp_path), 30)
    assert figures == {"error": "no such layer"}


def test_a_backend_beside_stock_keras_runs_by_that_keras(program, tmp_path):
    python = program(
        """
        import json, os, sys
        told = [os.environ["KERAS_BACKEND"], os.environ.get("PYTHONPATH")]
        print(json.dumps({"told": told + sys.argv[3:]}))
        """
    )
    figures = benchmark._measure("plugin", "cnn", python, str(tmp_path), 30)
    assert figures == {"told": ["tinygrad", None, "cnn", "--epochs", "3"]}


def test_losses_that_differ_are_found():
    results = {
        "mlp": {"torch": {"losses": [1.0, 0.9]}, "jax": {"losses": [1.0, 0.8]}},
        "cnn": {
            "torch": {"losses": [1.0]},
            "jax": {"losses": [1.00001]},
            "plugin": {"error": "stopped after 1 s"},
        },
    }
    (found,) = benchmark._disagreements(results)
    assert found.startswith("mlp: jax and torch")


def test_another_process_keeps_a_core_busy():
    with benchmark._busy_core() as process:
        assert process.poll() is None
    assert process.poll() is not None
