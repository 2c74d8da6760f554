"""A small fork of a small upstream, to try the tool on."""

import dataclasses
import hashlib
import json
import os
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
BACKEND = "keras/src/backend/tinygrad/__init__.py"
CONFIG = "keras/src/config.py"
LAYER = "keras/src/layer.py"
TEST = "keras/src/config_test.py"

NUMBERS = "".join(f"NUMBER_{i} = {i}\n" for i in range(20))
UPSTREAM = {
    "keras/__init__.py": "from keras.src.version import __version__\n",
    "keras/src/__init__.py": "",
    "keras/src/version.py": '__version__ = "1.0"\n',
    "keras/src/backend/__init__.py": "",
    CONFIG: f'{NUMBERS}DEFAULT = "tensorflow"\nMIDDLE = 0\nLAST = None\n',
    LAYER: f"{NUMBERS}BASE = object\n{NUMBERS}",
    "keras/src/gone.py": "",
    TEST: f'{NUMBERS}BACKENDS = [\n    "jax",\n]\n',
    "keras/src/testing/__init__.py": f"{NUMBERS}GPU = False\n",
}
SMOKE = """
from keras.src.backend import tinygrad
from keras.src import config
assert config.DEFAULT == tinygrad.NAME, "the backend is not the default"
print("smoke test passed")
"""


def allow_interrupts():
    """Called in a new process: tests may run where Ctrl-C is ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def write_files(folder, files):
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)


def snapshot(folder):
    """Everything in a folder but caches."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
        and not {"__pycache__", ".vendor", ".git"} & {*path.parts}
    }


@dataclasses.dataclass
class Fork:
    """A checkout of a fork, and the package index that it uses.

    Attributes:
        root: Folder of the checkout.
        index: Folder that is pip's only index.
    """

    root: Path
    index: Path

    def run(self, *arguments, fails=False, **settings):
        """Runs the tool and returns what it printed.

        Args:
            *arguments: Strings, for the tool.
            fails: Whether it has to fail, or the exit status it has to have.
            **settings: Environment variables.
        """
        env = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("PIP_") and name != "PYTHONPATH"
        }
        done = subprocess.run(
            [sys.executable, "-m", "keras_tinygrad_patches", *arguments],
            cwd=self.root,
            env={
                **env,
                "PIP_CONFIG_FILE": os.devnull,
                "PIP_NO_INDEX": "1",
                "PIP_FIND_LINKS": str(self.index),
                **settings,
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            preexec_fn=allow_interrupts,
        )
        assert '__main__.py", line' not in done.stderr, done.stderr
        assert done.returncode == fails, done.stdout + done.stderr
        return done.stdout + done.stderr

    def run_status(self):
        """What `status` prints where something is not as it should be."""
        return self.run("status", fails=True)

    def publish(self, version, changes=(), requires=()):
        """Puts a release on the index: the first one, with changes.

        Args:
            version: String.
            changes: Dict of path to text; `None` for a file that is gone.
            requires: Names of what it requires.
        """
        files = {**UPSTREAM, **dict(changes)}
        files["keras/src/version.py"] = f'__version__ = "{version}"\n'
        info = f"keras-{version}.dist-info"
        files[f"{info}/METADATA"] = (
            f"Metadata-Version: 2.1\nName: keras\nVersion: {version}\n"
            + "".join(f"Requires-Dist: {name}\n" for name in requires)
        )
        files[f"{info}/WHEEL"] = (
            "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        files[f"{info}/RECORD"] = ""
        wheel = self.index / f"keras-{version}-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            for path, text in files.items():
                if text is not None:
                    archive.writestr(zipfile.ZipInfo(path), text)
        return wheel

    def read(self, path):
        return (self.root / path).read_text()

    def edit(self, path, old, new):
        text = self.read(path)
        assert text.count(old) == 1
        (self.root / path).write_text(text.replace(old, new))

    def patch(self, name):
        return self.read(f"keras_tinygrad_patches/patches/{name}.patch")

    def series(self, tests=False):
        folder = "keras_tinygrad_patches/patches" + ("/tests" if tests else "")
        return self.read(f"{folder}/series").split()

    @property
    def pin(self):
        return json.loads(self.read("keras_tinygrad_patches/pin.json"))

    def snapshot(self):
        return snapshot(self.root)


def pin_wheel(fork, wheel):
    """Makes a wheel the pinned one."""
    pin = {
        "version": wheel.name.split("-")[1],
        "file": wheel.name,
        "sha256": hashlib.sha256(wheel.read_bytes()).hexdigest(),
    }
    path = fork.root / "keras_tinygrad_patches" / "pin.json"
    path.write_text(json.dumps(pin))
