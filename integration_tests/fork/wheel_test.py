"""Tests what `pip_build.py` puts into the wheel."""

import email
import importlib.util
import re
import subprocess
import sys
import tomllib
import zipfile

import pytest

import pip_build
from integration_tests.fork.synthetic import REPOSITORY
from keras_tinygrad_patches import tree
from keras_tinygrad_patches.project import BACKEND
from keras_tinygrad_patches.project import Failure
from keras_tinygrad_patches.project import Project

PROJECT = Project(REPOSITORY)
pytestmark = pytest.mark.xdist_group("fork-wheel")


@pytest.fixture(scope="module")
def contents(wheel):
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def metadata(wheel):
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [n for n in archive.namelist() if n.endswith("/METADATA")]
        return email.message_from_bytes(archive.read(name))


def test_holds_upstreams_files_patched_and_the_backend(contents):
    stack = tree.read_stack(PROJECT)
    upstream = tree.keras_files(stack.repository, stack.head)
    ours = {
        path.relative_to(REPOSITORY).as_posix()
        for path in (REPOSITORY / BACKEND).rglob("*.py")
    }
    held = {
        name: tree.blob_id(data)
        for name, data in contents.items()
        if name.startswith("keras/")
    }
    assert {p: b for p, b in held.items() if p not in ours} == upstream
    assert ours < held.keys()
    tests = [name for name in held if name.endswith("_test.py")]
    assert len(tests) > 250
    assert not any(name.startswith(BACKEND) for name in tests)


def test_holds_the_report_and_the_licences(contents):
    others = {name for name in contents if not name.startswith("keras/")}
    info = next(n for n in others if n.endswith("/METADATA")).split("/")[0]
    assert "keras_tinygrad_patches/doctor.py" in others
    assert "keras_tinygrad_patches/pin.json" in others
    assert "keras_tinygrad_patches/patches/register-backend.patch" in others
    licenses = f"{info}/licenses"
    assert b"Apache License" in contents[f"{licenses}/LICENSE"]
    notice = contents[f"{licenses}/keras_tinygrad_patches/NOTICE"].decode()
    assert "Keras by the Keras team" in notice
    roots = {name.split("/")[0] for name in others}
    assert roots == {"keras_tinygrad_patches", info}


def test_names_and_versions(wheel, tmp_path):
    version = PROJECT.read_pin().version
    plain = metadata(wheel)
    as_keras = metadata(pip_build.build(PROJECT, True, tmp_path))
    assert plain["Name"] == "keras-tinygrad-fork"
    assert re.fullmatch(rf"{re.escape(version)}\.post\d+", plain["Version"])
    assert as_keras["Name"] == "keras"
    assert re.fullmatch(
        rf"{re.escape(version)}\+tinygrad\.\d+", as_keras["Version"]
    )
    for key in ("Requires-Dist", "Provides-Extra", "Requires-Python"):
        assert plain.get_all(key) == as_keras.get_all(key)


def test_metadata(wheel):
    held = metadata(wheel)
    assert held["Requires-Python"] == ">=3.11"
    assert held["License-Expression"] == "Apache-2.0"
    assert held.get_payload().strip() == (
        (REPOSITORY / "README.md").read_text().strip()
    )
    requirements = set(held.get_all("Requires-Dist"))
    stack = tree.read_stack(PROJECT)
    upstream = pip_build.upstream.requirements(stack.repository, stack.base)
    assert {r for r in upstream if not r.startswith("Python")} < requirements
    assert "tinygrad==0.14.0" in requirements
    assert 'ziglang; extra == "cpu"' in requirements
    assert 'pytest; extra == "test"' in requirements


def test_the_index_would_take_it(wheel):
    # A development tool: without it there is nothing to run.
    assert importlib.util.find_spec("twine"), "requirements.txt has twine"
    subprocess.run(
        [sys.executable, "-m", "twine", "check", "--strict", wheel],
        check=True,
    )


def test_requirements_txt_has_what_the_wheel_requires():
    text = (REPOSITORY / "pyproject.toml").read_text()
    wanted = tomllib.loads(text)["project"]["dependencies"]
    lines = (REPOSITORY / "requirements.txt").read_text().splitlines()
    assert set(wanted) <= {*lines}


def test_a_tree_with_edits_is_refused(tmp_path, monkeypatch):
    edits = tree.Edits(["keras/src/x.py"], [], [])
    monkeypatch.setattr(tree, "find_edits", lambda *_: edits)
    with pytest.raises(Failure, match="keras/src/x.py"):
        pip_build.build(PROJECT, dist=tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_keras_that_is_in_the_way_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(
        pip_build.importlib.metadata,
        "packages_distributions",
        lambda: {"keras": ["keras"]},
    )
    with pytest.raises(Failure, match="uninstall keras"):
        pip_build.install_wheel(tmp_path / "x.whl", "keras-tinygrad-fork")
