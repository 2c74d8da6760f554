"""The cache on disk: hits, corruption, many processes, bounds, off-switch."""

import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from keras.src.backend.tinygrad.engine import program_cache
from keras.src.backend.tinygrad.engine.transfer import from_numpy
from keras.src.backend.tinygrad.engine.transfer import to_numpy

REPOSITORY = Path(__file__).resolve().parents[2]

# Counts compilations and lowerings while it trains a little.
SCRIPT = """
import sys
import numpy as np
from keras.src.backend.tinygrad import engine
from keras.src.backend.tinygrad.engine import internals
from keras.src.backend.tinygrad.engine import lowering
from keras.src.backend.tinygrad.engine.transfer import from_numpy
from tinygrad import Device

compiled, lowered = [], []
compiler = type(Device["CPU"].renderer.compiler)
compile_source, to_spec = compiler.compile, lowering._to_spec

def counted_compile(self, source):
    compiled.append(source)
    return compile_source(self, source)

def counted_to_spec(*args):
    lowered.append(args)
    return to_spec(*args)

compiler.compile, lowering._to_spec = counted_compile, counted_to_spec
loops = int(sys.argv[1]) if len(sys.argv) > 1 else 1
for n in range(loops):
    x = np.arange(12 + n, dtype="float32")
    t = from_numpy(x, "CPU")
    y = (t.sin() + t.exp2().sum() * 3).numpy()
    expected = np.sin(x) + np.exp2(x).sum() * 3
    np.testing.assert_allclose(y, expected, rtol=1e-4)
    print("step", n, flush=True)
print(len(compiled), len(lowered))
"""


def start(folder, *arguments, **variables):
    environment = {
        **os.environ,
        "PYTHONPATH": str(REPOSITORY),
        "KERAS_BACKEND": "tinygrad",
        "KERAS_TINYGRAD_CACHE": str(folder),
        "DEV": "CPU",
        **variables,
    }
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, *map(str, arguments)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process):
    out, error = process.communicate(timeout=300)
    assert process.returncode == 0, error
    return tuple(map(int, out.split("\n")[-2].split()))


def run(folder, *arguments, **variables):
    return finish(start(folder, *arguments, **variables))


def entries(folder):
    return sorted(p for p in folder.iterdir() if not p.name.startswith("."))


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_TINYGRAD_CACHE", str(tmp_path))
    program_cache.folder.cache_clear()
    yield tmp_path
    program_cache.folder.cache_clear()


def test_a_second_process_compiles_and_lowers_nothing(tmp_path):
    compiled, lowered = run(tmp_path)
    assert compiled > 0 and lowered > 0
    assert run(tmp_path) == (0, 0)


def test_programs_are_found_where_graphs_are_not(tmp_path):
    run(tmp_path)
    for path in entries(tmp_path):
        if path.name.startswith("plan-"):
            path.unlink()
    compiled, lowered = run(tmp_path)
    assert compiled == 0 and lowered > 0


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: b"",
        lambda content: content[: len(content) // 2],
        lambda content: content[:-1] + bytes([content[-1] ^ 1]),
        lambda content: b"KTG0" + content[4:],
    ],
)
def test_damaged_entries_are_replaced(tmp_path, damage):
    run(tmp_path)
    whole = {p: p.read_bytes() for p in entries(tmp_path)}
    for path, content in whole.items():
        path.write_bytes(damage(content))
    compiled, lowered = run(tmp_path)
    assert compiled > 0 and lowered > 0
    assert run(tmp_path) == (0, 0)


def test_what_a_search_finds_is_kept(tmp_path):
    plain, _ = run(tmp_path)
    searched, _ = run(tmp_path, BEAM="1")
    # It compiles many candidates for each kernel.
    assert searched > plain
    assert run(tmp_path, BEAM="1") == (0, 0)
    assert run(tmp_path) == (0, 0)


def test_the_off_switch(tmp_path):
    first = run("off", XDG_CACHE_HOME=str(tmp_path))
    assert first[0] > 0
    assert run("0", XDG_CACHE_HOME=str(tmp_path)) == first
    assert not (tmp_path / "keras-tinygrad").exists()


def test_the_place_by_default(tmp_path):
    if sys.platform != "linux":
        pytest.skip("the place is another one")
    run("", XDG_CACHE_HOME=str(tmp_path))
    assert entries(tmp_path / "keras-tinygrad")
    assert run("", XDG_CACHE_HOME=str(tmp_path)) == (0, 0)


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path):
    occupied = tmp_path / "file"
    occupied.write_text("in the way")
    assert run(occupied / "cache")[0] > 0


@pytest.mark.skipif(
    platform.machine() != "x86_64", reason="the flags are of x86-64"
)
def test_other_flags_of_the_compiler_use_no_entry(tmp_path):
    run(tmp_path)
    compiled, _ = run(tmp_path, DEV="CPU::x86_64,x86-64-v2")
    assert compiled > 0


def test_many_processes_at_once(tmp_path):
    processes = [start(tmp_path, 3) for _ in range(3)]
    for process in processes:
        finish(process)
    assert run(tmp_path, 3) == (0, 0)
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(".")]


def test_a_process_killed_among_others(tmp_path):
    victim, survivor = start(tmp_path, 40), start(tmp_path, 6)
    for line in victim.stdout:
        if line.startswith("step 1"):
            break
    victim.send_signal(signal.SIGKILL)
    victim.communicate()
    finish(survivor)
    run(tmp_path, 6)
    assert run(tmp_path, 6) == (0, 0)


@pytest.mark.parametrize(
    "module", ["kernel_options", *program_cache._CODE_GENERATION]
)
def test_other_rules_use_no_entry(module, tmp_path, monkeypatch):
    before = program_cache.fingerprint("CPU")
    package = Path(program_cache.__file__).parent
    shutil.copytree(package, tmp_path / "engine")
    with open(tmp_path / "engine" / f"{module}.py", "a") as file:
        file.write("# Other rules.\n")
    program_cache._source_fingerprint.cache_clear()
    monkeypatch.setattr(
        program_cache, "__file__", str(tmp_path / "engine" / "module.py")
    )
    assert program_cache.fingerprint("CPU") != before
    program_cache._source_fingerprint.cache_clear()
    monkeypatch.undo()
    assert program_cache.fingerprint("CPU") == before


def test_store_and_load(place):
    program_cache.store("program", b"key", {"a": np.arange(3)})
    np.testing.assert_array_equal(
        program_cache.load("program", b"key")["a"], np.arange(3)
    )
    assert program_cache.load("program", b"other") is None
    assert program_cache.load("plan", b"key") is None


def test_a_size_that_is_no_number_is_named(monkeypatch):
    monkeypatch.setenv("KERAS_TINYGRAD_CACHE_MB", "lots")
    with pytest.raises(ValueError, match="whole number.*Received: lots"):
        program_cache.size_limit()


def test_a_size_that_is_no_number_is_named_each_time(place, monkeypatch):
    monkeypatch.setenv("KERAS_TINYGRAD_CACHE_MB", "lots")
    for _ in range(2):
        with pytest.raises(ValueError, match="KERAS_TINYGRAD_CACHE_MB"):
            program_cache.load("program", b"key")
        with pytest.raises(ValueError, match="KERAS_TINYGRAD_CACHE_MB"):
            program_cache.store("program", b"key", 1)


def test_what_is_written_is_bounded_as_it_is_written(place, monkeypatch):
    monkeypatch.setenv("KERAS_TINYGRAD_CACHE_MB", "1")
    monkeypatch.setattr(program_cache._Trimmer, "left", 0)
    for n in range(40):
        program_cache.store("program", b"%d" % n, os.urandom(100_000))
        total = sum(path.stat().st_size for path in entries(place))
        assert total <= 1 << 20


def test_a_plan_is_kept_for_all_devices_that_it_runs_on(place, monkeypatch):
    asked = []
    actual = program_cache.fingerprint

    def fingerprint(device):
        asked.append(device)
        return actual(device)

    monkeypatch.setattr(program_cache, "fingerprint", fingerprint)
    x = from_numpy(np.arange(5, dtype="float32"), "PYTHON")
    y = (x.to("CPU") * 2.5).to("PYTHON") + 11
    np.testing.assert_array_equal(to_numpy(y), np.arange(5) * 2.5 + 11)
    assert {"CPU", "PYTHON"} <= set(asked)


def test_the_folder_is_bounded(place, monkeypatch):
    monkeypatch.setenv("KERAS_TINYGRAD_CACHE_MB", "1")
    value = os.urandom(100_000)
    for n in range(30):
        program_cache.store("program", b"%d" % n, value)
        path = program_cache._path("program", b"%d" % n)
        os.utime(path, (n, n))
    program_cache.trim()
    kept = [
        n
        for n in range(30)
        if program_cache.load("program", b"%d" % n) is not None
    ]
    # The ones used last.
    assert kept == list(range(20, 30))


def test_files_of_others_are_left_alone_and_not_counted(place, monkeypatch):
    monkeypatch.setenv("KERAS_TINYGRAD_CACHE_MB", "1")
    names = ["thesis.doc", "old.tmp", "plan-b", "program-" + "0" * 41]
    for name in names:
        (place / name).write_bytes(bytes(2 << 20))
        os.utime(place / name, (1, 1))
    program_cache.store("program", b"key", 1)
    program_cache.trim()
    assert all((place / name).exists() for name in names)
    assert program_cache.load("program", b"key") == 1
    assert "(1 entries, 0 of 1 MB)" in program_cache.describe()


def test_what_a_run_writes_can_be_trimmed(tmp_path):
    run(tmp_path)
    kinds = {path.name.split("-")[0] for path in entries(tmp_path)}
    assert {"plan", "program"} <= kinds
    owned = {path for _, _, path in program_cache._own_files(tmp_path)}
    assert owned == {str(path) for path in tmp_path.iterdir()}


def test_a_relative_folder_stays_where_it_was(place, monkeypatch):
    monkeypatch.chdir(place)
    monkeypatch.setenv("KERAS_TINYGRAD_CACHE", "cache")
    program_cache.folder.cache_clear()
    program_cache.store("program", b"key", 1)
    (place / "elsewhere").mkdir()
    monkeypatch.chdir(place / "elsewhere")
    assert program_cache.load("program", b"key") == 1
    program_cache.store("program", b"other", 2)
    assert len(entries(place / "cache")) == 2
    assert not entries(place / "elsewhere")


def test_use_is_noted(place):
    program_cache.store("program", b"key", 1)
    path = program_cache._path("program", b"key")
    long_ago = time.time() - 7 * 24 * 3600
    os.utime(path, (long_ago, long_ago))
    assert program_cache.load("program", b"key") == 1
    assert os.stat(path).st_mtime > long_ago + 3600


def test_half_written_files_are_deleted_in_time(place):
    program_cache.store("program", b"key", 1)
    old, new = [place / (program_cache._TEMPORARY + n) for n in ("a", "b")]
    old.write_bytes(b"x")
    new.write_bytes(b"x")
    os.utime(old, (1, 1))
    program_cache.trim()
    assert not old.exists() and new.exists()
    assert program_cache.load("program", b"key") == 1


def test_tinygrad_keeps_no_database(tmp_path):
    run(tmp_path / "cache", XDG_CACHE_HOME=str(tmp_path / "home"))
    assert not list(tmp_path.rglob("*.db*"))
