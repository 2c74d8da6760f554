"""Shards of kernels side by side: results, forks, many threads, settings."""

import os
import sys
import threading

import numpy as np
import pytest
from tinygrad import Device

from integration_tests.processes import run_python
from keras.src.backend.tinygrad import engine
from keras.src.backend.tinygrad.engine import blas_threads
from keras.src.backend.tinygrad.engine import convolution
from keras.src.backend.tinygrad.engine import gemm
from keras.src.backend.tinygrad.engine import kernel_options
from keras.src.backend.tinygrad.engine import launcher
from keras.src.backend.tinygrad.engine import plan
from keras.src.backend.tinygrad.engine import threads
from keras.src.backend.tinygrad.engine.transfer import from_numpy

RNG = np.random.default_rng(0)

pytestmark = pytest.mark.skipif(
    Device.DEFAULT != "CPU", reason="the pool is the CPU's"
)
needs_pool = pytest.mark.skipif(
    sys.platform == "win32", reason="no pool on Windows"
)


@pytest.fixture(autouse=True)
def three_threads(monkeypatch):
    """A pool of three threads, on however many cores."""
    monkeypatch.setattr(threads, "count", lambda: 3)
    threads.pool.cache_clear()
    convolution._words.cache_clear()
    engine.clear_caches()
    yield
    threads.pool.cache_clear()
    convolution._words.cache_clear()
    engine.clear_caches()


def array(*shape):
    return RNG.normal(size=shape).astype("float32")


def device(value):
    return from_numpy(np.asarray(value), "CPU")


@pytest.fixture
def launches(monkeypatch):
    """Collects the launches of the plans that are made."""
    found = []
    original = plan.Plan.__init__

    def init(self, spec, captured=False):
        original(self, spec, captured)
        found.extend(spec.launches)

    monkeypatch.setattr(plan.Plan, "__init__", init)
    return found


CASES = {
    "elementwise": (lambda x: x.sin() * x + 1, lambda x: np.sin(x) * x + 1),
    "rows": (lambda x: x.sum(1), lambda x: x.astype("float64").sum(1)),
    "columns": (lambda x: x.sum(0), lambda x: x.astype("float64").sum(0)),
    "maximum": (lambda x: x.max(0), lambda x: x.max(0)),
    "transposed": (
        lambda x: (x.transpose() + 1).contiguous(),
        lambda x: x.T + 1,
    ),
    "softmax": (
        lambda x: x.softmax(-1),
        lambda x: np.exp(x) / np.exp(x).sum(-1, keepdims=True),
    ),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("shape", [(2048, 512), (1021, 1031), (96, 8192)])
def test_large_kernels_are_cut_and_right(name, shape, launches):
    function, expected = CASES[name]
    x = array(*shape)
    for _ in range(3):
        y = function(device(x)).numpy()
        np.testing.assert_allclose(y, expected(x), rtol=1e-4, atol=1e-3)
    shards = [plan._shards(launch) for launch in launches]
    # No loop of a prime number of turns is cut.
    assert max(shards) > 1 or shape == (1021, 1031)


def test_small_kernels_are_not_cut(launches):
    (device(array(64, 32)) * 2 + 1).softmax(-1).numpy()
    assert {plan._shards(launch) for launch in launches} == {1}


def test_results_do_not_depend_on_the_number_of_threads(monkeypatch):
    x = device(array(2048, 512))
    together = x.softmax(-1).sum(0).numpy()
    monkeypatch.setattr(blas_threads, "is_single", lambda: True)
    np.testing.assert_array_equal(x.softmax(-1).sum(0).numpy(), together)


@pytest.mark.parametrize(
    "a, b",
    [
        ((700, 333), (333, 77)),
        ((77, 333), (333, 700)),
        ((40, 64, 96), (40, 96, 64)),
        ((2, 700, 65), (3, 1, 65, 130)),
        ((5, 4, 64, 64), (5, 4, 64, 64)),
    ],
)
@pytest.mark.parametrize("transposed", [False, True])
def test_large_products(a, b, transposed, launches):
    x, y = array(*a), array(*b)
    expected = x.astype("float64") @ y
    left, right = device(x), device(y)
    if transposed:
        left = device(np.ascontiguousarray(x.swapaxes(-1, -2)))
        right = device(np.ascontiguousarray(y.swapaxes(-1, -2)))
        left, right = left.transpose(-1, -2), right.transpose(-1, -2)
    out = gemm.matmul(left, right).numpy()
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-3)
    if gemm.one_threaded():
        assert max(plan._shards(launch) for launch in launches) > 1


@pytest.mark.parametrize(
    "shape, kernel, strides, groups",
    [
        ((8, 30, 30, 16), (3, 3, 16, 24), (1, 1), 1),
        ((3, 41, 37, 16), (3, 3, 16, 32), (2, 2), 1),
        ((1, 64, 64, 16), (3, 3, 16, 16), (1, 1), 1),
        ((4, 64, 64, 1), (5, 5, 1, 16), (1, 1), 1),
        ((6, 40, 40, 16), (3, 3, 8, 32), (1, 1), 2),
    ],
)
def test_large_convolutions(
    shape, kernel, strides, groups, launches, monkeypatch
):
    x, w = device(array(*shape)), device(array(*kernel))

    def run():
        out = convolution.convolution(
            x, w, strides, [(1, 1), (0, 2)], (1, 1), groups
        )
        g = device(np.cos(np.arange(out.numel())).astype("float32"))
        grads = (out * g.reshape(out.shape)).sum().gradient(x, w)
        return [t.numpy() for t in (out, *grads)]

    together = run()
    if gemm.one_threaded():
        assert max(plan._shards(launch) for launch in launches) > 1
    monkeypatch.setattr(threads, "count", lambda: 1)
    convolution._words.cache_clear()
    engine.clear_caches()
    for one, other in zip(run(), together):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-2)


@needs_pool
def test_many_python_threads_at_once():
    x = array(1024, 512)
    expected = np.exp(x) / np.exp(x).sum(-1, keepdims=True)
    failures = []

    def run(seed):
        for i in range(5):
            scale = 1 + seed + i
            y = (device(x) + scale).softmax(-1).numpy()
            if not np.allclose(y, expected, rtol=1e-3):
                failures.append((seed, i))

    workers = [threading.Thread(target=run, args=(i,)) for i in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not failures


_WORK = """
import os
import numpy as np
from keras.src.backend.tinygrad.engine import threads
from keras.src.backend.tinygrad.engine.transfer import from_numpy

x = np.random.default_rng(0).normal(size=(1024, 512)).astype("float32")

def work():
    y = (from_numpy(x, "CPU") * 2).softmax(-1).numpy()
    e = np.exp(2 * x)
    np.testing.assert_allclose(y, e / e.sum(-1, keepdims=True), rtol=1e-3)
"""


_LOOPS = """
import threading
import numpy as np
from tinygrad import Device
from keras import ops

failures = []

def work(seed):
    try:
        for n in range(3):
            width = 10 * seed + n + 3
            x = np.full((4, width), 0.5, "float32")
            carry, _ = ops.scan(
                lambda c, t: (c * 0.5 + ops.sin(t) * width, c * width),
                ops.zeros((width,)),
                ops.convert_to_tensor(x),
            )
            expected = np.full(width, width * np.sin(0.5) * 1.875)
            np.testing.assert_allclose(carry, expected, rtol=1e-4)
    except BaseException as error:
        failures.append(error)

workers = [threading.Thread(target=work, args=(i,)) for i in range(4)]
for worker in workers:
    worker.start()
for worker in workers:
    worker.join()
assert not failures, failures
compiler = Device["CPU"].renderer.compiler
assert type(compiler).__name__ != "Deferred", compiler
np.testing.assert_allclose(ops.exp(np.ones((3, 7))), np.full((3, 7), np.e))
"""


def test_loops_of_several_threads_at_once():
    for _ in range(2):
        done = run_python(_LOOPS, KERAS_TINYGRAD_CACHE="off")
        assert done.returncode == 0, done.stderr


@needs_pool
@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_fork_after_use():
    code = _WORK + (
        "work()\n"
        "for _ in range(3):\n"
        "    child = os.fork()\n"
        "    if not child:\n"
        "        work()\n"
        "        os._exit(7)\n"
        "    status = os.waitpid(child, 0)[1]\n"
        "    assert os.waitstatus_to_exitcode(status) == 7\n"
        "    work()\n"
    )
    done = run_python(code, KERAS_TINYGRAD_THREADS="3")
    assert done.returncode == 0, done.stderr


@needs_pool
@pytest.mark.skipif(
    not os.path.exists("/proc/self/task"), reason="counts Linux' tasks"
)
def test_idle_threads_sleep_and_their_number_stays():
    code = _WORK + (
        "import time\n"
        "work()\n"
        "before = len(os.listdir('/proc/self/task'))\n"
        "for _ in range(20): work()\n"
        "assert len(os.listdir('/proc/self/task')) == before\n"
        "time.sleep(0.5)\n"
        "start = time.process_time()\n"
        "time.sleep(1)\n"
        "assert time.process_time() - start < 0.1\n"
        "print(before)\n"
    )
    several = run_python(code, KERAS_TINYGRAD_THREADS="4")
    assert several.returncode == 0, several.stderr
    one = run_python(code, KERAS_TINYGRAD_THREADS="1")
    assert one.returncode == 0, one.stderr
    assert int(several.stdout) == int(one.stdout) + 3


@needs_pool
@pytest.mark.skipif(
    not os.path.exists("/proc/self/task"), reason="counts Linux' tasks"
)
def test_another_import_of_the_backend_starts_no_other_threads():
    code = """
import os
import numpy as np
import keras

x = np.ones((1024, 512), "float32")

def work():
    from keras import ops

    y = ops.convert_to_numpy(ops.softmax(ops.convert_to_tensor(x)))
    np.testing.assert_allclose(y, x / 512, rtol=1e-5)
    return len(os.listdir("/proc/self/task"))

before = work()
for _ in range(3):
    keras.config.set_backend("numpy")
    keras.config.set_backend("tinygrad")
    assert work() == before
print(before)
"""
    several = run_python(code, KERAS_TINYGRAD_THREADS="3")
    assert several.returncode == 0, several.stderr
    one = run_python(code, KERAS_TINYGRAD_THREADS="1")
    assert one.returncode == 0, one.stderr
    assert int(several.stdout) == int(one.stdout) + 2


@pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity"), reason="there is no affinity here"
)
def test_a_process_on_one_core_has_one_thread():
    code = (
        "import os\nos.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
    ) + _WORK
    code += "work()\nassert threads.count() == 1\n"
    done = run_python(code, KERAS_TINYGRAD_THREADS=None)
    assert done.returncode == 0, done.stderr


def test_cores_taken_away_later():
    code = _WORK + (
        "work()\n"
        "if hasattr(os, 'sched_setaffinity'):\n"
        "    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "for _ in range(50): work()\n"
    )
    done = run_python(code, KERAS_TINYGRAD_THREADS="3")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("value", ["0", "-1", "many", ""])
def test_a_bad_setting(value):
    code = _WORK + "work()"
    done = run_python(code, KERAS_TINYGRAD_THREADS=value)
    assert done.returncode != 0
    assert "KERAS_TINYGRAD_THREADS must be a positive integer" in done.stderr


def test_a_walk_without_a_compiler_runs_shards_too(monkeypatch):
    monkeypatch.setattr(launcher, "_walker", lambda: None)
    x = array(2048, 512)
    y = (device(x) * 4 + x).numpy()
    np.testing.assert_allclose(y, x * 5, rtol=1e-6)


@pytest.mark.parametrize("size, most, expected", [(12, 8, 6), (7, 4, 1)])
def test_largest_divisor(size, most, expected):
    assert kernel_options._largest_divisor(size, most) == expected
