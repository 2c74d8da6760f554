"""Gets upstream releases: from the package index, or from a checkout."""

import email
import glob
import hashlib
import io
import os
import pathlib
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile

from keras_tinygrad_patches.git import run_git
from keras_tinygrad_patches.project import Failure
from keras_tinygrad_patches.project import Pin

METADATA = "METADATA"


def import_pinned(project, repository, checkout=None):
    """The commit of the pinned release, fetched if it is not there yet.

    Args:
        project: `Project`.
        repository: `Repository`.
        checkout: Directory of an upstream checkout, for a pinned tag.

    Returns:
        A commit id.

    Raises:
        Failure: If the release cannot be had, or is not what the pin says.
    """
    pin = project.read_pin()
    commit = repository.find(f"refs/upstream/{pin.sha256}")
    if commit:
        return commit
    if pin.tag and checkout is None:
        raise Failure(
            f"The pin names the tag {pin.tag} of an upstream checkout, which "
            "is not in the cache. Give the checkout: python -m "
            "keras_tinygrad_patches vendor --keras-git DIR"
        )
    if pin.tag:
        return import_tag(repository, checkout, pin.tag, expected=pin)[1]
    return import_release(project, repository, pin.version, expected=pin)[1]


def import_release(project, repository, version, expected=None):
    """Fetches a release of the package index and imports it as a commit.

    Args:
        project: `Project`.
        repository: `Repository`.
        version: String, the version to fetch.
        expected: `Pin` that the wheel has to match, if there is one.

    Returns:
        Tuple `(pin, commit)`.
    """
    wheel = _cached_wheel(project, version, expected)
    if wheel is None:
        wheel = _download_wheel(project, version, expected)
    data = wheel.read_bytes()
    pin = Pin(version, wheel.name, hashlib.sha256(data).hexdigest())
    commit = repository.find(f"refs/upstream/{pin.sha256}")
    if commit is None:
        files = _read_wheel(data, wheel.name)
        commit = _import(repository, files, pin)
    return pin, commit


def import_tag(repository, checkout, tag, expected=None):
    """Imports the `keras` directory of a tag of an upstream checkout.

    Args:
        repository: `Repository`.
        checkout: Directory of the checkout.
        tag: String, any name of a commit in it.
        expected: `Pin` that the tree has to match, if there is one.

    Returns:
        Tuple `(pin, commit)`.
    """
    files = read_tag(checkout, tag)
    digest = hashlib.sha256()
    for path, contents in sorted(files.items()):
        digest.update(f"{path}\0{len(contents)}\0".encode() + contents)
    version = re.search(
        r'^__version__ = "(.+)"$',
        files.get("keras/src/version.py", b"").decode(),
        re.MULTILINE,
    )
    if version is None:
        raise Failure(
            f"{tag} of {checkout} has no version in keras/src/version.py: it "
            "does not look like Keras 3. Nothing was changed."
        )
    pin = Pin(version.group(1), f"git:{tag}", digest.hexdigest())
    if expected and pin.sha256 != expected.sha256:
        raise Failure(
            f"{tag} of {checkout} is not the tree that the pin names: its "
            f"digest is {pin.sha256}, and {expected.sha256} was expected. "
            "Nothing was changed. Fetch the tag anew in that checkout, or "
            f"move the pin: shell/rebase.sh --keras-git DIR {tag}"
        )
    commit = repository.find(f"refs/upstream/{pin.sha256}")
    return pin, commit or _import(repository, files, pin)


def read_tag(checkout, tag):
    """Dict of path to contents, for the `keras` directory of a tag."""
    done = run_git(
        "archive",
        "--format=tar",
        tag,
        "keras",
        cwd=_directory(checkout),
        check=False,
    )
    if done.returncode:
        raise Failure(
            f"{checkout} has no tree `keras` at {tag}: "
            f"{done.stderr.decode(errors='replace').strip()}. Give a checkout "
            "of upstream and one of its tags (`git tag` lists them). Nothing "
            "was changed."
        )
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        return {
            member.name: archive.extractfile(member).read()
            for member in archive
            if member.isfile()
        }


def requirements(repository, commit):
    """Set of what a release's wheel requires; `None` for a checkout's tree."""
    blob = repository.files(commit).get(METADATA)
    if blob is None:
        return None
    metadata = email.message_from_bytes(repository.read([blob])[blob])
    python = metadata.get_all("Requires-Python", [])
    return {
        *metadata.get_all("Requires-Dist", []),
        *(f"Python {version}" for version in python),
    }


def _directory(path):
    if not os.path.isdir(path):
        raise Failure(f"{path} is not a directory. Nothing was changed.")
    return path


def _import(repository, files, pin):
    commit = repository.import_files(
        files, f"Import Keras {pin.version}\n\n{pin.file}\n{pin.sha256}\n"
    )
    repository.keep(f"refs/upstream/{pin.sha256}", commit)
    return commit


def _read_wheel(data, name):
    try:
        archive = zipfile.ZipFile(io.BytesIO(data))
    except zipfile.BadZipFile:
        raise Failure(f"{name} is not a wheel. Nothing was changed.") from None
    files = {}
    with archive:
        for member in archive.namelist():
            if member.startswith("keras/") and not member.endswith("/"):
                files[member] = archive.read(member)
            elif member.endswith(".dist-info/METADATA"):
                files[METADATA] = archive.read(member)
    return files


def _wheels(project):
    return project.cache / "wheels"


def _cached_wheel(project, version, expected):
    if expected is None:
        names = f"keras-{glob.escape(version)}-*.whl"
        found = sorted(_wheels(project).glob(names))
        return found[0] if found else None
    wheel = _wheels(project) / expected.file
    if not wheel.exists() or _digest(wheel) != expected.sha256:
        return None
    return wheel


def _digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _download_wheel(project, version, expected):
    wheels = _wheels(project)
    wheels.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=wheels) as directory:
        _pip_download(version, directory, wheels, expected)
        found = sorted(pathlib.Path(directory).glob("*.whl"))
        if len(found) != 1 or (expected and found[0].name != expected.file):
            names = ", ".join(path.name for path in found) or "nothing"
            wanted = expected.file if expected else f"keras {version}"
            raise Failure(
                f"pip downloaded {names} where {wanted} was asked for. Nothing "
                "was changed. Check which index and constraints pip is set to "
                "(`python -m pip config list`)."
            )
        if expected and _digest(found[0]) != expected.sha256:
            raise Failure(
                f"The download {found[0].name} is not the pinned file: its "
                f"SHA-256 is {_digest(found[0])}, and {expected.sha256} was "
                "expected. It was thrown away and nothing was changed. Try "
                "again; if it stays so, the index that pip is set to (`python "
                "-m pip config list`) offers a different file."
            )
        target = wheels / found[0].name
        os.replace(found[0], target)
    return target


def _pip_download(version, directory, wheels, expected):
    by_hand = (
        f"put {expected.file} into {wheels}" if expected else "ask for another"
    )
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--disable-pip-version-check",
            "--no-input",
            "--no-deps",
            "--only-binary=:all:",
            f"--dest={directory}",
            # Three signs, or a local version of the same number would do.
            f"keras==={version}",
        ],
        capture_output=True,
        text=True,
    )
    if not done.returncode:
        return
    if "No module named pip" in done.stderr:
        raise Failure(
            f"{sys.executable} has no pip, which fetches Keras {version}. Run "
            f"`{sys.executable} -m ensurepip`, or {by_hand}. Nothing was "
            "changed."
        )
    errors = [
        line.removeprefix("ERROR: ")
        for line in done.stderr.splitlines()
        if line.startswith("ERROR: ")
    ] or done.stderr.strip().splitlines()[-1:]
    error = re.sub(
        # All releases there ever were; the last ones do.
        r"(\(from versions: )[^)]*, ((?:[^,)]+, ){5}[^)]+\))",
        r"\1..., \2",
        errors[0] if errors else "",
    )
    raise Failure(
        f"pip could not get Keras {version}: {error}\n"
        "Check the version, the network, and which index pip is set to "
        f"(`python -m pip config list`), or {by_hand}. Nothing was changed."
    )
