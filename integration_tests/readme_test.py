"""Runs the code blocks of README.md."""

import os
import re
import subprocess
import sys

import pytest

from integration_tests import environments
from integration_tests import readme_section
from integration_tests.benchmarks import __main__ as benchmarks
from integration_tests.upstream import record

README = environments.REPOSITORY / "README.md"
TEST_COMMAND = "bash shell/test.sh\n"
DEMO_COMMAND = "bash shell/demo.sh\n"


def blocks(language):
    text = README.read_text()
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.M | re.S)


def installs(block):
    return "--install" in block or "pip install" in block


def run_block(block, python):
    completed = subprocess.run(
        ["bash", "-e", "-u", "-o", "pipefail", "-c", block],
        cwd=environments.REPOSITORY,
        env=environments.inside(python),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert completed.returncode == 0, completed.stdout
    return completed.stdout


def test_every_block_is_one_that_is_run():
    fences = re.findall(r"^```(\w*)$", README.read_text(), re.MULTILINE)
    assert fences[1::2] == [""] * (len(fences) // 2)
    assert set(fences[::2]) == {"bash", "python"}


def test_the_two_commands_come_first():
    assert blocks("bash")[:2] == [DEMO_COMMAND, TEST_COMMAND]


def test_second_command_is_what_continuous_integration_runs():
    # Not run from here: it is what runs this test.
    ci = (environments.REPOSITORY / ".ci" / "run").read_text()
    assert "shell/test.sh" in ci


@pytest.mark.xdist_group("demo")
def test_first_command_trains_and_draws():
    picture = environments.REPOSITORY / "build" / "demo" / "digits.png"
    picture.unlink(missing_ok=True)
    output = run_block(DEMO_COMMAND, sys.executable)
    accuracy = re.search(r"^cnn: test accuracy ([\d.]+)$", output, re.M)
    assert float(accuracy.group(1)) >= 0.97, output
    assert "predictions identical after loading: True" in output
    assert f"picture: {picture}" in output
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    "block",
    [
        block
        for block in blocks("bash")
        if not installs(block) and block not in (DEMO_COMMAND, TEST_COMMAND)
    ],
)
def test_commands(block):
    run_block(block, sys.executable)


@pytest.mark.xdist_group("readme")
@pytest.mark.parametrize("block", list(filter(installs, blocks("bash"))))
def test_installation(block, tmp_path):
    python = environments.create(tmp_path / "environment")
    if environments.lacks_compiler():
        environments.install(python, "ziglang")
    run_block(block, python)
    for number, program in enumerate(blocks("python")):
        file = tmp_path / f"block_{number}.py"
        file.write_text(program)
        completed = subprocess.run(
            [str(python), str(file)],
            cwd=tmp_path,
            env=environments.outside(python, KERAS_HOME=str(tmp_path)),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert completed.returncode == 0, completed.stdout
        assert (tmp_path / "model.keras").exists()


def test_table_of_keras_own_suite_is_that_of_the_record():
    # Its file is written by shell/upstream_tests.sh --record.
    kept = record.load()
    inside = readme_section.read(record.COMMAND)
    assert inside == (record.section(kept) if kept else "")


def test_table_of_speed_has_every_model():
    # Made by shell/bench.sh --write.
    table = readme_section.read(benchmarks.README_COMMAND)
    models = re.findall(r"^\| (\w+) \| [\d. /-]+ \|", table, re.M)
    assert models == benchmarks.MODELS


def test_names_of_files_are_right():
    for name in re.findall(r"`([\w.]+/[\w./]*)`", README.read_text()):
        assert os.path.exists(environments.REPOSITORY / name) or (
            name.startswith(("build/", "dist/"))
        ), name
