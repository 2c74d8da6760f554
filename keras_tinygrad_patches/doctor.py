"""Reports what a bug report needs, and each problem with its remedy.

Nothing here imports Keras or tinygrad into this process: what has to be
tried is tried in another one, so that the report works where they do not.
"""

import base64
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import pathlib
import platform
import re
import subprocess
import sys
import tomllib

from keras_tinygrad_patches import tree
from keras_tinygrad_patches.project import BACKEND
from keras_tinygrad_patches.project import Failure
from keras_tinygrad_patches.project import Project

HERE = pathlib.Path(__file__).resolve().parents[1]
TIMEOUT = 300

# Each is run by another Python and prints one line of JSON. The engine's
# modules are imported without the packages around them, which may be broken.
ENGINE = """
import importlib, json, os, sys, types
name = "keras.src.backend.tinygrad.engine"
while name:
    package = types.ModuleType(name)
    package.__path__ = [os.path.join(sys.argv[1], *name.split("."))]
    sys.modules[name] = package
    name = name.rpartition(".")[0]
def engine(part):
    return importlib.import_module("keras.src.backend.tinygrad.engine." + part)
"""
# The engine lets the CPU do with the compilers that it finds.
DEVICE_PROBE = (
    ENGINE
    + """
from tinygrad import Device
try:
    engine("patches").apply()
except ImportError:
    pass
print(json.dumps(Device.DEFAULT))
"""
)
ENGINE_PROBE = (
    ENGINE
    + """
print(json.dumps(str(engine(sys.argv[2]).describe())))
"""
)
KERAS_PROBE = """
import json, keras, numpy as np
values = keras.ops.convert_to_tensor(np.arange(9.0), "float32")
total = float(keras.ops.sum(values + 1.0))
assert total == 45.0, f"the sum of one to nine was {total}"
print(json.dumps([keras.__version__, keras.backend.backend()]))
"""


class _Report:
    """Lines of the report, and whether any of them is a problem."""

    def __init__(self):
        self.lines = []
        self.healthy = True

    def say(self, what, value):
        self.lines.append(f"{what + ':':<14} {value}")

    def problem(self, what, trouble, remedy):
        self.healthy = False
        self.say(what, f"PROBLEM: {trouble}")
        self.lines.append(f"{'':<14} Remedy: {remedy}")


def report():
    """Looks at the environment.

    Returns:
        Tuple of the report, a string, and whether there is no problem.
    """
    made = _Report()
    made.say("Python", f"{platform.python_version()} ({sys.executable})")
    made.say("System", f"{platform.platform()}, {os.cpu_count()} cores")
    distribution = _find_distribution()
    _report_fork(made, distribution)
    _report_tree(made, distribution)
    _report_requirements(made, distribution)
    _report_settings(made)
    _report_device(made)
    for what, part in (
        ("Compiler", "compiler"),
        ("BLAS", "blas"),
        ("Cache", "program_cache"),
    ):
        _report_engine(made, what, part)
    _report_keras(made)
    made.lines.append("")
    made.lines.append(
        "No problem found." if made.healthy else "See the remedies above."
    )
    return "\n".join(made.lines), made.healthy


def _find_distribution():
    """The installed distribution that this file is of, or `None`."""
    for distribution in importlib.metadata.distributions():
        place = distribution.locate_file("keras_tinygrad_patches/pin.json")
        recorded = distribution.files or ()
        if pathlib.Path(place).resolve().parents[1] == HERE and any(
            file.as_posix() == "keras_tinygrad_patches/pin.json"
            for file in recorded
        ):
            return distribution
    return None


def _report_fork(made, distribution):
    if distribution is None:
        made.say("Fork", f"a checkout, {HERE}")
    else:
        made.say("Fork", f"{distribution.name} {distribution.version} ({HERE})")
    try:
        made.say("Upstream", f"Keras {Project(HERE).read_pin().version}")
    except Failure as failure:
        made.problem("Upstream", "the pin cannot be read.", str(failure))
    spec = importlib.util.find_spec("keras")
    found = spec and spec.origin and pathlib.Path(spec.origin).resolve()
    if found and found != HERE / "keras" / "__init__.py":
        made.problem(
            "Import",
            f"`import keras` finds {found.parent}, which is not the fork.",
            "take its folder off PYTHONPATH, or run from another folder.",
        )


def _place(name):
    """Returns the folder that a distribution is installed in."""
    distribution = importlib.metadata.distribution(name)
    return pathlib.Path(distribution.locate_file("")).resolve()


def _report_tree(made, distribution):
    if distribution is None:
        _report_checkout(made)
        return
    place = _place(distribution.name)
    others = sorted(
        name
        for name in {
            *importlib.metadata.packages_distributions().get("keras", [])
        }
        - {distribution.name}
        # One in another folder of `sys.path` overwrites nothing.
        if _place(name) == place
    )
    changed, missing = _compare_with_record(distribution)
    if not changed and not missing and not others:
        made.say("Files", "as they were installed")
        return
    trouble = []
    if changed:
        trouble.append(f"{len(changed)} files were overwritten ({changed[0]})")
    if missing:
        trouble.append(f"{len(missing)} files are missing ({missing[0]})")
    for name in others:
        version = importlib.metadata.version(name)
        trouble.append(f"{name} {version} is installed over the same files")
    pip = f"{sys.executable} -m pip"
    commands = [f"{pip} uninstall -y {' '.join(others)}"] if others else []
    commands.append(
        f"{pip} install --force-reinstall --no-deps {_source(distribution)}"
    )
    remedy = " && ".join(commands)
    if others:
        remedy += (
            ". Where a package requires `keras`, install the wheel of "
            "`pip_build.py --as-keras`, which pip takes for it."
        )
    made.problem("Files", "; ".join(trouble) + ".", remedy)


def _source(distribution):
    """What to give `pip install` to get the same distribution again."""
    text = distribution.read_text("direct_url.json")
    if text:
        return json.loads(text)["url"]
    return f"{distribution.name}=={distribution.version}"


def _compare_with_record(distribution):
    """Lists of the paths that changed, and that are missing."""
    changed, missing = [], []
    for file in distribution.files or ():
        if file.parts[0] != "keras" or file.hash is None:
            continue
        path = pathlib.Path(distribution.locate_file(file))
        if not path.exists():
            missing.append(file.as_posix())
            continue
        digest = hashlib.new(file.hash.mode, path.read_bytes()).digest()
        value = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        if value != file.hash.value:
            changed.append(file.as_posix())
    return changed, missing


def _report_checkout(made):
    if not (HERE / "keras" / "__init__.py").exists():
        made.problem(
            "Files", "keras/ is not materialised.", "run shell/vendor.sh"
        )
        return
    try:
        clean = tree.status(Project(HERE))[1]
    except Failure as failure:
        made.problem("Files", "the tree cannot be compared.", str(failure))
        return
    if clean:
        made.say("Files", "keras/ is up to date")
    else:
        made.problem(
            "Files",
            "keras/ is not the pinned release with the patches.",
            "`python -m keras_tinygrad_patches status` says in what.",
        )


def _report_requirements(made, distribution):
    if distribution is None:
        text = (HERE / "pyproject.toml").read_text()
        requirements = tomllib.loads(text)["project"]["dependencies"]
    else:
        requirements = [
            line for line in distribution.requires or () if ";" not in line
        ]
    found, needed = [], []
    for requirement in requirements:
        name, wanted = re.fullmatch(
            r"([\w.-]+)(?:==([\w.]+))?.*", requirement
        ).groups()
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            version = None
        found.append(f"{name} {version or 'missing'}")
        if version is None or wanted not in (None, version):
            needed.append(requirement)
    made.say("Packages", ", ".join(found))
    if needed:
        made.problem(
            "Requires",
            f"{', '.join(needed)}: needed, and not installed.",
            f"{sys.executable} -m pip install {' '.join(needed)}",
        )


def _report_settings(made):
    made.say("KERAS_BACKEND", os.environ.get("KERAS_BACKEND") or "not set")
    home = os.environ.get("KERAS_HOME") or os.path.expanduser("~/.keras")
    path = pathlib.Path(home).expanduser() / "keras.json"
    if not path.exists():
        made.say("keras.json", "none")
        return
    try:
        config = json.loads(path.read_text())
        named = config.get("backend", "no backend")
    except (AttributeError, OSError, ValueError) as error:
        made.problem(
            "keras.json", f"{path} cannot be read: {error}", f"remove {path}"
        )
        return
    made.say("keras.json", f"{path} names {named}")


def _run(probe, *arguments):
    """Runs a probe; a tuple of its result and its error, one of them `None`."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(_import_path())}
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", probe, *arguments],
            env=env,
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
        )
    except subprocess.TimeoutExpired:
        return None, f"nothing happened for {TIMEOUT} seconds"
    if done.returncode == 0:
        return json.loads(done.stdout.splitlines()[-1]), None
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    return None, lines[-1] if lines else f"exit status {done.returncode}"


def _import_path():
    """Where this Python looks, and where the fork is."""
    path = [part for part in sys.path if part]
    return path if str(HERE) in path else [str(HERE), *path]


def _report_device(made):
    device, error = _run(DEVICE_PROBE, str(HERE))
    if error:
        made.problem(
            "Device",
            f"tinygrad offers none: {error}",
            "install what is named above, or set DEV to a device that this "
            "machine has, such as DEV=CPU.",
        )
        return
    made.say("Device", f"{device} (DEV={os.environ.get('DEV') or 'not set'})")


def _report_engine(made, what, part):
    if not (HERE / BACKEND / "engine").exists():
        made.problem(
            what,
            f"the backend is not in {HERE / BACKEND}.",
            "install the fork again.",
        )
        return
    text, error = _run(ENGINE_PROBE, str(HERE), part)
    if error:
        made.problem(what, error, REMEDIES[part])
    else:
        made.say(what, text)


REMEDIES = {
    "compiler": (
        "install clang, or the ziglang package "
        f"({sys.executable} -m pip install ziglang)."
    ),
    "blas": f"{sys.executable} -m pip install --force-reinstall numpy",
    "program_cache": "make the folder writable, or name another one.",
}


def _report_keras(made):
    result, error = _run(KERAS_PROBE)
    if error:
        made.problem(
            "Keras",
            f"it does not import, or not add: {error}",
            "mend what is named above, and run this again; then report what "
            "is left, with this whole text.",
        )
        return
    version, backend = result
    made.say("Keras", f"{version} imports and adds, on {backend}")
