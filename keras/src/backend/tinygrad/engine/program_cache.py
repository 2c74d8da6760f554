"""Keeps generated and compiled programs, and whole lowered graphs, on disk.

A program costs 50 to 100 ms to generate and compile, and a new process needs
the same ones again. Each entry is a file of its own, named by the hash of all
that it depends on: the kernel, tinygrad, the compiler and the processor. It
is written beside its place and renamed into it, so that any number of
processes may share the folder and one that is killed leaves no half entry;
an entry whose checksum is wrong is replaced.

Environment variables:
    `KERAS_TINYGRAD_CACHE`: the folder; `0` or `off` keeps nothing on disk.
        By default `keras-tinygrad` in the user's cache folder.
    `KERAS_TINYGRAD_CACHE_MB`: the size of all entries, 512 by default. To
        stay below it those that were longest unused are deleted.
"""

import concurrent.futures
import contextlib
import dataclasses
import functools
import hashlib
import importlib.metadata
import os
import pickle
import platform
import re
import sys
import tempfile
import time

from keras.src.backend.tinygrad.engine import compiler
from keras.src.backend.tinygrad.engine import threads
from keras.src.backend.tinygrad.engine.internals import BEAM
from keras.src.backend.tinygrad.engine.internals import ClangCompiler
from keras.src.backend.tinygrad.engine.internals import Device
from keras.src.backend.tinygrad.engine.internals import Ops
from keras.src.backend.tinygrad.engine.internals import ProgramInfo
from keras.src.backend.tinygrad.engine.internals import UOp
from keras.src.backend.tinygrad.engine.internals import do_to_program
from keras.src.backend.tinygrad.engine.internals import helpers_module
from keras.src.backend.tinygrad.engine.internals import optimize_local_size
from keras.src.backend.tinygrad.engine.internals import runtime_cache
from keras.src.backend.tinygrad.engine.internals import to_program_cache
from keras.src.backend.tinygrad.engine.internals import to_program_key

_MAGIC = b"KTG2"
# Modules here that decide what code a kernel becomes.
_CODE_GENERATION = ("narrow_floats", "patches", "rendering", "simplification")
_OFF = ("0", "off", "false", "no")
# The part of the limit that is written between two looks at the folder's size.
_TRIM_PART = 64
# How many programs are kept in memory besides those of plans.
_CAPACITY = 4096
# An entry's time of use is only written when it is this old, in seconds.
_TOUCH_AFTER = 24 * 3600
# The folder may be the user's own, with other files in it.
_TEMPORARY = ".keras-tinygrad-"
_OWN_FILE = re.compile(
    rf"(launcher|plan|program)-[0-9a-f]{{40}}|{re.escape(_TEMPORARY)}.*"
)


@functools.cache
def folder():
    """The cache's folder, or `None` where it is switched off.

    Raises:
        ValueError: As `size_limit`.
    """
    place = os.environ.get("KERAS_TINYGRAD_CACHE", "")
    if place.lower() in _OFF:
        return None
    size_limit()
    if not place:
        if sys.platform == "darwin":
            base = os.path.expanduser("~/Library/Caches")
        elif sys.platform == "win32":
            base = os.environ.get("LOCALAPPDATA", os.path.expanduser("~"))
        else:
            base = os.environ.get("XDG_CACHE_HOME")
            base = base or os.path.expanduser("~/.cache")
        place = os.path.join(base, "keras-tinygrad")
    # The process may change its directory later.
    return os.path.abspath(place)


def size_limit():
    """The folder's size limit in bytes.

    Raises:
        ValueError: If `KERAS_TINYGRAD_CACHE_MB` is not a whole number.
    """
    size = os.environ.get("KERAS_TINYGRAD_CACHE_MB", "512")
    if not size.isdecimal():
        raise ValueError(
            "KERAS_TINYGRAD_CACHE_MB must be a whole number, the size in MB "
            f"of the cache of programs. Received: {size}"
        )
    return int(size) << 20


def describe():
    """Says in a line where the cache is and how full.

    Raises:
        OSError: If the folder cannot be made or written to.
    """
    place = folder()
    if place is None:
        return "switched off by KERAS_TINYGRAD_CACHE"
    os.makedirs(place, exist_ok=True)
    if not os.access(place, os.W_OK):
        raise PermissionError(f"{place} cannot be written to")
    sizes = [size for _, size, _ in _own_files(place)]
    return (
        f"{place} ({len(sizes)} entries, {sum(sizes) >> 20} of "
        f"{size_limit() >> 20} MB)"
    )


def load(kind, key):
    """Reads an entry.

    Args:
        kind: `"launcher"`, `"plan"` or `"program"`.
        key: Bytes that identify it among entries of its kind.

    Returns:
        The object, or `None` if there is none that is whole.
    """
    path = _path(kind, key)
    if path is None:
        return None
    try:
        with open(path, "rb") as file:
            content = file.read()
        payload = content[36:]
        if content[:4] != _MAGIC:
            return None
        if content[4:36] != hashlib.sha256(payload).digest():
            return None
        value = pickle.loads(payload)
        if time.time() - os.stat(path).st_mtime > _TOUCH_AFTER:
            os.utime(path)
        return value
    except Exception:
        # Missing, unreadable, or written by other code: it is made anew.
        return None


def store(kind, key, value):
    """Writes an entry; a folder that cannot be written is no error.

    Args:
        kind: `"launcher"`, `"plan"` or `"program"`.
        key: Bytes that identify it among entries of its kind.
        value: Object that can be pickled.
    """
    path = _path(kind, key)
    if path is None:
        return
    payload = pickle.dumps(value, protocol=5)
    content = _MAGIC + hashlib.sha256(payload).digest() + payload
    temporary = None
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        handle, temporary = tempfile.mkstemp(
            prefix=_TEMPORARY, dir=os.path.dirname(path)
        )
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.replace(temporary, path)
    except OSError:
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
        return
    _Trimmer.left -= len(content)
    if _Trimmer.left < 0:
        _Trimmer.left = size_limit() // _TRIM_PART
        trim()


class _Trimmer:
    left = 0


def trim():
    """Deletes the entries longest unused until they fit the limit.

    There is room then for what is written until the next time.
    """
    limit = size_limit() - size_limit() // _TRIM_PART
    try:
        files = _own_files(folder())
    except OSError:
        return
    now, total = time.time(), 0
    for used, size, path in sorted(files, reverse=True):
        # What a killed process left half written is deleted after an hour.
        is_temporary = os.path.basename(path).startswith(_TEMPORARY)
        total += size
        if is_temporary and now - used > 3600 or total > limit:
            with contextlib.suppress(OSError):
                os.unlink(path)


def _own_files(place):
    """Lists the time of use, size and path of each file of the cache."""
    files = []
    with os.scandir(place) as scan:
        for entry in scan:
            # Another process may delete it meanwhile.
            with contextlib.suppress(OSError):
                if _OWN_FILE.fullmatch(entry.name):
                    status = entry.stat()
                    files.append((status.st_mtime, status.st_size, entry.path))
    return files


def _path(kind, key):
    place = folder()
    if place is None:
        return None
    digest = hashlib.sha256(kind.encode() + b"\0" + key).hexdigest()
    return os.path.join(place, f"{kind}-{digest[:40]}")


@functools.cache
def _tinygrad_fingerprint():
    sizes = []
    top = os.path.dirname(helpers_module.__file__)
    for root, folders, files in os.walk(top):
        folders.sort()
        for name in sorted(files):
            if name.endswith(".py"):
                size = os.path.getsize(os.path.join(root, name))
                sizes.append(f"{name}:{size}")
    version = importlib.metadata.version("tinygrad")
    return f"{version} {hashlib.sha256(' '.join(sizes).encode()).hexdigest()}"


@functools.cache
def _source_fingerprint(module):
    path = os.path.join(os.path.dirname(__file__), f"{module}.py")
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


@functools.cache
def _processor_fingerprint():
    try:
        with open("/proc/cpuinfo") as file:
            lines = file.read().split("\n\n")[0].splitlines()
        names = ("model name", "flags", "Features", "CPU part")
        return "\n".join(x for x in lines if x.split("\t")[0] in names)
    except OSError:
        return platform.processor()


@functools.cache
def _compiler_fingerprint(kind):
    parts = [kind.__name__]
    if issubclass(kind, ClangCompiler):
        parts.append(compiler.identity())
    return " ".join(parts)


def fingerprint(device):
    """What a device's programs depend on besides their kernels.

    Args:
        device: Canonical tinygrad device.

    Returns:
        String with tinygrad's, the compiler's and the processor's identity.
    """
    renderer = Device[device].renderer
    parts = [_tinygrad_fingerprint(), type(renderer).__name__]
    parts += [repr(renderer.target), sys.platform]
    parts += map(_source_fingerprint, _CODE_GENERATION)
    if renderer.compiler is not None:
        parts.append(str(renderer.compiler.cachekey))
        parts.append(_compiler_fingerprint(type(renderer.compiler)))
    if device.split(":")[0] == "CPU":
        parts.append(_processor_fingerprint())
        parts.append(_source_fingerprint("kernel_options"))
    return "\n".join(parts)


def compile_calls(calls):
    """Finds or makes the programs of a schedule.

    Args:
        calls: Sequence of `CALL` uops.

    Returns:
        List with one `PROGRAM` uop for each call, `None` for what is no
        kernel.
    """
    if len(to_program_cache) > _CAPACITY:
        # Plans keep their own.
        to_program_cache.clear()
        runtime_cache.clear()
    wanted = [_kernel(call) for call in calls]
    missing = {}
    for kernel in wanted:
        if kernel is None:
            continue
        ast, device = kernel
        key = to_program_key(ast, Device[device].renderer)
        if key in to_program_cache or key in missing:
            continue
        found = load("program", _program_key(key, device))
        if found is None:
            missing[key] = kernel
        else:
            to_program_cache[key] = unpack(found)
    if missing:
        _compile(missing)
    programs = []
    for call, kernel in zip(calls, wanted):
        if kernel is None:
            programs.append(None)
            continue
        ast, device = kernel
        key = to_program_key(ast, Device[device].renderer)
        program = to_program_cache[key]
        sized = optimize_local_size(call, program)
        programs.append(program if sized is None else sized.src[0])
    return programs


def _kernel(call):
    body = call.src[0]
    if body.op is Ops.SINK:
        if BEAM.value >= 1 and body.arg.beam == 0:
            arg = dataclasses.replace(body.arg, beam=BEAM.value)
            body = body.replace(arg=arg)
        return body, call.src[1].device
    return (body, call.src[1].device) if body.op is Ops.PROGRAM else None


def _program_key(key, device):
    text = "\n".join([fingerprint(device), *map(repr, key[2:])])
    return key[0] + text.encode()


def _compile(missing):
    """Generates sources here, while threads wait for compiler processes."""
    with concurrent.futures.ThreadPoolExecutor(threads.limit()) as pool:
        generated = {}
        for key, (ast, device) in missing.items():
            renderer = Device[device].renderer
            with _deferred(renderer, pool) as compiling:
                program = do_to_program(ast, renderer)
            generated[key] = program, device, compiling
        for key, (program, device, compiling) in generated.items():
            if compiling:
                binary = UOp(Ops.BINARY, arg=compiling[0].result())
                program = program.replace(src=(*program.src[:3], binary))
            program = strip(program)
            to_program_cache[key] = program
            store("program", _program_key(key, device), pack(program))


@contextlib.contextmanager
def _deferred(renderer, pool):
    # A search for options times each candidate, so it compiles at once.
    actual, compiling = renderer.compiler, []
    if actual is None or BEAM.value >= 1:
        yield compiling
        return

    class Deferred:
        def __getattr__(self, name):
            return getattr(actual, name)

        def compile_cached(self, source):
            compiling.append(pool.submit(actual.compile, source))
            return b"pending"

    renderer.compiler = Deferred()
    try:
        yield compiling
    finally:
        renderer.compiler = actual


def strip(program):
    """Drops from a compiled program what only its making needed.

    Args:
        program: `PROGRAM` uop with its binary.

    Returns:
        `PROGRAM` uop that runs the same and keeps no graph alive.
    """
    sink, linear, source, binary = program.src
    params = tuple(u for u in linear.src if u.op is Ops.PARAM)
    return program.replace(
        src=(
            UOp(Ops.SINK, arg=sink.arg),
            UOp(Ops.LINEAR, src=params),
            source,
            binary,
        )
    )


def pack(program):
    """Turns a stripped program into a tuple that pickles small and fast."""
    sink, linear, source, binary = program.src
    return program.arg, sink.arg, linear.src, source.arg, binary.arg


def unpack(packed):
    """Makes a `PROGRAM` uop of what `pack` returned."""
    info, kernel, params, source, binary = packed
    if not isinstance(info, ProgramInfo):
        raise TypeError(f"Expected ProgramInfo, got {type(info)}")
    return UOp(
        Ops.PROGRAM,
        src=(
            UOp(Ops.SINK, arg=kernel),
            UOp(Ops.LINEAR, src=params),
            UOp(Ops.SOURCE, arg=source),
            UOp(Ops.BINARY, arg=binary),
        ),
        arg=info,
    )
