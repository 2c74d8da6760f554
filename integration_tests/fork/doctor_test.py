"""Tests the environment report."""

import os
import shutil
import subprocess
import sys
import zipfile

import pytest

import pip_build
from integration_tests.fork.synthetic import REPOSITORY
from keras_tinygrad_patches.project import Project

PROJECT = Project(REPOSITORY)
pytestmark = pytest.mark.xdist_group("fork-wheel")


@pytest.fixture(scope="module")
def installed(tmp_path_factory, wheel):
    """A folder with the wheel installed in it."""
    folder = tmp_path_factory.mktemp("installed")
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"),
            *("--disable-pip-version-check", "--target", folder / "site"),
            wheel,
        ],
        check=True,
    )
    return folder / "site"


@pytest.fixture
def site(installed, tmp_path):
    return shutil.copytree(installed, tmp_path / "site")


def doctor(folder, healthy, **settings):
    """Runs the report of the fork in a folder, and returns it."""
    env = {**os.environ, "PYTHONPATH": str(folder)}
    del env["KERAS_BACKEND"]
    env.update(settings)
    done = subprocess.run(
        [sys.executable, "-m", "keras_tinygrad_patches", "doctor"],
        cwd=folder.parent,
        env=env,
        capture_output=True,
        text=True,
    )
    assert done.stderr == ""
    assert done.returncode == (0 if healthy else 1), done.stdout
    assert ("PROBLEM" not in done.stdout) is healthy
    assert done.stdout.count("PROBLEM") == done.stdout.count("Remedy: ")
    return done.stdout


def lines_of(report, what):
    """The lines of a report that begin with a word."""
    return [
        line.partition(":")[2].strip()
        for line in report.splitlines()
        if line.startswith(f"{what}:")
    ]


def test_reports_what_a_bug_report_needs(site):
    report = doctor(site, healthy=True)
    version = PROJECT.read_pin().version
    name, built = pip_build.distribution(PROJECT)
    (fork,) = lines_of(report, "Fork")
    assert fork.startswith(f"{name} {built}")
    assert lines_of(report, "Upstream") == [f"Keras {version}"]
    assert lines_of(report, "Files") == ["as they were installed"]
    assert "tinygrad 0.14.0" in lines_of(report, "Packages")[0]
    for what in ("Python", "System", "Device", "Compiler", "BLAS", "Cache"):
        (line,) = lines_of(report, what)
        assert line
    (line,) = lines_of(report, "Keras")
    assert line == f"{version} imports and adds, on tinygrad"


def test_a_stock_keras_over_the_fork(site):
    # Just what pip does: it unpacks the files over those that are there.
    pin = PROJECT.read_pin()
    wheel = PROJECT.cache / "wheels" / pin.file
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    report = doctor(site, healthy=False, KERAS_BACKEND="tinygrad")
    (files,) = lines_of(report, "Files")
    assert "files were overwritten" in files
    assert f"keras {pin.version} is installed over the same files" in files
    assert f"{sys.executable} -m pip uninstall -y keras && " in report
    assert "pip install --force-reinstall --no-deps" in report
    assert "--as-keras" in report

    # As it is after `pip uninstall keras`.
    shutil.rmtree(site / "keras" / "src" / "layers")
    shutil.rmtree(site / f"keras-{pin.version}.dist-info")
    (files,) = lines_of(doctor(site, healthy=False), "Files")
    assert "files are missing (keras/src/layers/__init__.py" in files
    assert "is installed over" not in files


def test_works_where_keras_does_not_import(site):
    (site / "keras" / "__init__.py").write_text("raise ImportError('broken')")
    (site / "keras/src/backend/__init__.py").write_text("nonsense(")
    report = doctor(site, healthy=False)
    (files,) = lines_of(report, "Files")
    assert "2 files were overwritten (keras/__init__.py)" in files
    (line,) = lines_of(report, "Keras")
    assert "broken" in line
    # The engine still says what it found.
    (line,) = lines_of(report, "BLAS")
    assert "PROBLEM" not in line


def test_names_what_is_not_installed(site, tmp_path):
    blocked = tmp_path / "blocked"
    blocked.mkdir()
    (blocked / "tinygrad.py").write_text("raise ImportError('no tinygrad')")
    metadata = next(site.glob("keras_tinygrad_fork-*.dist-info/METADATA"))
    text = metadata.read_text()
    metadata.write_text(
        text.replace("tinygrad==0.14.0", "tinygrad==99.0").replace(
            "Requires-Dist: namex\n",
            "Requires-Dist: namex\nRequires-Dist: no-such-package\n",
        )
    )
    path = os.pathsep.join([str(blocked), str(site)])
    report = doctor(site, healthy=False, PYTHONPATH=path)
    (line,) = lines_of(report, "Packages")
    assert "tinygrad 0.14.0" in line and "no-such-package missing" in line
    (line,) = lines_of(report, "Requires")
    assert "tinygrad==99.0, no-such-package: needed" in line
    assert "pip install tinygrad==99.0 no-such-package\n" in report
    (line,) = lines_of(report, "Device")
    assert "no tinygrad" in line


def test_what_shadows_the_fork_and_its_settings(site, tmp_path):
    other = tmp_path / "other"
    (other / "keras").mkdir(parents=True)
    (other / "keras" / "__init__.py").write_text("")
    (tmp_path / "keras.json").write_text("nonsense")
    path = os.pathsep.join([str(other), str(site)])
    report = doctor(
        site, healthy=False, PYTHONPATH=path, KERAS_HOME=str(tmp_path)
    )
    (line,) = lines_of(report, "Import")
    assert str(other / "keras") in line
    (line,) = lines_of(report, "keras.json")
    assert str(tmp_path / "keras.json") in line


def test_a_checkout():
    done = subprocess.run(
        [sys.executable, "-m", "keras_tinygrad_patches", "doctor"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
    )
    assert lines_of(done.stdout, "Fork") == [f"a checkout, {REPOSITORY}"]
    assert lines_of(done.stdout, "Files") == ["keras/ is up to date"]


def test_a_checkout_without_a_tree(fresh_fork):
    report = fresh_fork.run("doctor", fails=True)
    (line,) = lines_of(report, "Files")
    assert "not materialised" in line
    assert "shell/vendor.sh" in report


def test_other_commands_need_a_checkout(site):
    done = subprocess.run(
        [sys.executable, "-m", "keras_tinygrad_patches", "vendor"],
        cwd=site.parent,
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert "checkout" in done.stderr and "Traceback" not in done.stderr
