"""Finds the C compiler for the CPU device's kernels.

tinygrad runs `clang` from PATH. Where there is none, the `ziglang` wheel has
one (`zig cc`), which needs no more than to be installed. What is found here
takes the place of tinygrad's call of `clang`.
"""

import atexit
import functools
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass

from keras.src.backend.tinygrad.engine.internals import PARALLEL
from keras.src.backend.tinygrad.engine.internals import ClangCompiler
from keras.src.backend.tinygrad.engine.internals import CompileError

REMEDY = (
    "Kernels for the CPU need a C compiler, and neither clang (on PATH, or "
    "named by the environment variable CC) nor the ziglang package was "
    "found. Install one of them: `pip install ziglang`, or clang with the "
    "system's package manager (`apt-get install clang`, `dnf install clang`, "
    "`xcode-select --install`). Or run on another device: set DEV, for "
    "example DEV=CUDA."
)
FLAGS = (
    *("-c", "-x", "c", "-O2", "-g0", "-fPIC", "-ffreestanding"),
    # Without errno a square root is an instruction, not a call.
    *("-fno-math-errno", "-nostdlib", "-fno-ident"),
    # Integers wrap around, as with NumPy.
    "-fwrapv",
)

_FLOAT16_FLAGS = ["-mno-avx512f"]


@dataclass(frozen=True)
class Toolchain:
    """A C compiler on this machine.

    Attributes:
        name: `"clang"` or `"zig"`.
        path: File of the program.
    """

    name: str
    path: str

    def command(self, architecture):
        """Returns the words that compile C for bare `architecture`."""
        if self.name == "clang":
            return [self.path, f"--target={architecture}-none-unknown-elf"]
        # zig spells targets its own way, and knows no other.
        architecture = {"arm64": "aarch64"}.get(architecture, architecture)
        return [self.path, "cc", "-target", f"{architecture}-freestanding"]

    def options(self, arguments):
        """Returns tinygrad's compiler arguments as this compiler spells them.

        Args:
            arguments: List of clang's arguments for a processor.
        """
        if self.name == "clang":
            return list(arguments)
        # zig writes the names of processors with underscores alone.
        return [
            a[:7] + a[7:].replace("-", "_") if a.startswith("-march=") else a
            for a in arguments
        ]


@functools.cache
def find():
    """Returns the `Toolchain` in use, or `None` if none is installed."""
    chosen = os.environ.get("CC")
    # Other tools read CC too, and may mean gcc by it.
    if chosen and "clang" in (_version(chosen) or ""):
        return Toolchain("clang", shutil.which(chosen))
    for name in ("clang", *(f"clang-{n}" for n in range(30, 13, -1))):
        path = shutil.which(name)
        if path is not None:
            return Toolchain("clang", path)
    spec = importlib.util.find_spec("ziglang")
    if spec is not None:
        binary = "zig.exe" if sys.platform == "win32" else "zig"
        path = os.path.join(os.path.dirname(spec.origin), binary)
        if os.path.exists(path):
            return Toolchain("zig", path)
    path = shutil.which("zig")
    return None if path is None else Toolchain("zig", path)


def describe():
    """Returns one line about the compiler, for the environment report."""
    toolchain = find()
    if toolchain is None:
        return f"none found. {REMEDY}"
    arguments = ["version"] if toolchain.name == "zig" else []
    version = _version(toolchain.path, *arguments)
    label = "zig cc, zig " if toolchain.name == "zig" else ""
    return f"{label}{version} ({toolchain.path})"


def identity():
    """Returns a string that is another one if compiled code may differ."""
    toolchain = find()
    if toolchain is None:
        return "no compiler"
    path = os.path.realpath(toolchain.path)
    status = os.stat(path)
    return " ".join(
        [path, str(status.st_size), str(status.st_mtime_ns)]
        + toolchain.command("any")[1:]
        + list(FLAGS)
        + _FLOAT16_FLAGS * _mixes_up_float16(toolchain)
    )


def install():
    """Makes tinygrad's CPU device compile with what is found here.

    Nothing is looked for until a kernel is compiled, so that a device that
    needs no C compiler does not ask for one.
    """
    ClangCompiler.compile = _compile
    # tinygrad's pool of compiling processes would know of none of this.
    PARALLEL.value = 0


def _compile(self, source):
    """Compiles C to an object file; replaces `ClangCompiler.compile`."""
    toolchain = find()
    if toolchain is None:
        raise RuntimeError(REMEDY)
    command = [*toolchain.command(self.arch), *FLAGS]
    command += toolchain.options(self.args)
    if (
        "__fp16" in source
        and self.arch == "x86_64"
        and _mixes_up_float16(toolchain)
    ):
        command += _FLOAT16_FLAGS
    # clang 14 crashes on some float16 kernels while it optimizes them.
    for less_optimized in ([], ["-O1"], ["-O0"]):
        result = subprocess.run(
            [*command, *less_optimized, "-", "-o", "-"],
            input=source.encode(),
            capture_output=True,
            env=_environment(toolchain),
        )
        if not result.returncode:
            break
    if result.returncode:
        raise CompileError(
            f"{toolchain.path} could not compile a kernel:\n"
            f"{result.stderr.decode(errors='replace')}\n{source}"
        )
    return result.stdout


@functools.cache
def _mixes_up_float16(toolchain):
    """Whether strided float16 loads get wrong elements with AVX-512.

    clang 14 does so where it makes vectors of them, not with AVX2.
    """
    version = re.search(r"clang version (\d+)", _version(toolchain.path) or "")
    return version is not None and int(version[1]) < 15


def _environment(toolchain):
    if toolchain.name == "clang":
        return None
    # Its cache is of no use here, where each kernel is compiled once.
    folder = _scratch_folder(os.getpid())
    return {
        **os.environ,
        "ZIG_GLOBAL_CACHE_DIR": folder,
        "ZIG_LOCAL_CACHE_DIR": folder,
    }


@functools.cache
def _scratch_folder(process):
    folder = tempfile.mkdtemp(prefix="keras-tinygrad-zig-")
    atexit.register(_remove, folder, process)
    return folder


def _remove(folder, process):
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)


def _version(program, *arguments):
    try:
        output = subprocess.run(
            [program, *(arguments or ["--version"])],
            capture_output=True,
            check=True,
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    return output.decode(errors="replace").strip().split("\n")[0]
