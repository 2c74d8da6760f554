"""Plans: the flat table on the CPU, the general road, nesting, wide rows."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tinygrad import Device
from tinygrad import Tensor

from keras.src.backend.tinygrad import engine
from keras.src.backend.tinygrad.engine import launcher
from keras.src.backend.tinygrad.engine import plan as module
from keras.src.backend.tinygrad.engine.host_call import host_call
from keras.src.backend.tinygrad.engine.internals import GraphRunner
from keras.src.backend.tinygrad.engine.transfer import from_numpy

# The package's attribute of this name is the function.
realize_module = sys.modules["keras.src.backend.tinygrad.engine.realize"]
FOLDER = Path(__file__).resolve().parent
RNG = np.random.default_rng(0)

pytestmark = pytest.mark.skipif(
    Device.DEFAULT != "CPU", reason="the flat table is the CPU's"
)


def array(*shape):
    return RNG.normal(size=shape).astype("float32")


def device(value):
    return from_numpy(np.asarray(value), "CPU")


def model(x, w):
    return (x @ w).relu().softmax(-1).sum(0)


def expected(x, w):
    h = np.maximum(x @ w, 0)
    e = np.exp(h - h.max(-1, keepdims=True))
    return (e / e.sum(-1, keepdims=True)).sum(0)


@pytest.fixture
def python_walk(monkeypatch):
    monkeypatch.setattr(launcher, "_walker", lambda: None)


@pytest.fixture
def general_road(monkeypatch):
    monkeypatch.setattr(module, "_runs_flat", lambda spec: False)
    engine.clear_caches()
    yield
    engine.clear_caches()


@pytest.mark.parametrize("road", [None, "python_walk", "general_road"])
def test_roads_agree(road, request):
    if road is not None:
        request.getfixturevalue(road)
    for _ in range(3):
        x, w = array(6, 5), array(5, 7)
        np.testing.assert_allclose(
            model(device(x), device(w)).numpy(), expected(x, w), rtol=1e-5
        )


@pytest.mark.parametrize("road", [None, "python_walk", "general_road"])
@pytest.mark.parametrize("count", [5, 11, 23, 60])
def test_rows_of_every_width(count, road, request):
    if road is not None:
        request.getfixturevalue(road)
    arrays = [array(3) for _ in range(count)]
    total = sum((device(a) for a in arrays[1:]), device(arrays[0]))
    np.testing.assert_allclose(total.numpy(), sum(arrays), rtol=1e-4)


def test_more_arguments_than_tinygrad_launches():
    arrays = [array(2) for _ in range(100)]
    total = device(arrays[0])
    for a in arrays[1:]:
        total = total + device(a)
    np.testing.assert_allclose(total.numpy(), sum(arrays), rtol=1e-4)


def test_the_walk_is_compiled_here():
    assert launcher._walker() is not None


def test_host_memory_is_copied_in():
    x = array(5, 3)
    t = Tensor(x) * 2
    engine.realize(t)
    np.testing.assert_allclose(t.numpy(), x * 2)


def test_a_plan_inside_a_host_call():
    # The inner plan runs while the outer one is in the middle of its table,
    # with scratch memory in use.
    def inner(a):
        t = device(a)
        return model(t, t.transpose()).numpy()[: a.shape[0]]

    x = array(4, 4)
    for _ in range(2):
        t = device(x)
        before = (t * 2).contiguous()
        (y,) = host_call(inner, [before], [((4,), "float32")])
        z = y * 3 + before.sum(0)
        np.testing.assert_allclose(
            z.numpy(),
            expected(x * 2, x.T * 2) * 3 + (x * 2).sum(0),
            rtol=1e-4,
        )


LEVELS = []


def nested_body(a):
    if len(LEVELS) == 3:
        return a + 1
    LEVELS.append(a)
    return nested(device(a)).numpy() + 1


def nested(t):
    kept = (t * 2).contiguous()
    (y,) = host_call(nested_body, [kept], [((3,), "float32")])
    return y + kept


def test_a_plan_inside_itself():
    x = array(3)

    def reference(a, level):
        inner = 2 * a + 1 if level == 3 else reference(2 * a, level + 1) + 1
        return inner + 2 * a

    LEVELS.clear()
    np.testing.assert_allclose(
        nested(device(x)).numpy(), reference(x, 0), rtol=1e-5
    )


def test_an_error_in_a_host_call_surfaces_and_passes():
    def fail(a):
        raise ArithmeticError("no solution")

    (y,) = host_call(fail, [device(array(3))], [((3,), "float32")])
    with pytest.raises(ArithmeticError, match="no solution"):
        engine.realize(y)
    x = array(3)
    np.testing.assert_allclose((device(x) + 1).numpy(), x + 1)


def test_a_failed_run_lets_go_of_its_buffers(general_road):
    def fail(a):
        raise ArithmeticError("no solution")

    (y,) = host_call(fail, [device(array(3))], [((3,), "float32")])
    with pytest.raises(ArithmeticError):
        engine.realize(y)
    (entry,) = realize_module._plans._values.values()
    assert entry.plan._runner._buffers == {}


def test_copies_without_a_compiled_walk(python_walk):
    x = array(500, 7)
    for scale in (1, 2):
        y = Tensor(scale * x).to("CPU").contiguous()
        engine.realize(y)
        np.testing.assert_array_equal(y.numpy(), scale * x)


def test_profile_lists_the_launches():
    step = engine.compile_step(lambda x: (model(x, x.transpose()), []))
    step(array(8, 8))
    (plan,) = step.plans
    times = plan.profile(3)
    assert [launch for launch, *_ in times] == list(plan.launches)
    assert all(0 < seconds < 1 for _, seconds, _ in times)
    assert all(operations for *_, operations in times)


def test_scratch_memory_is_shared_and_freed():
    engine.clear_caches()
    x = array(64, 64)
    for n in range(1, 5):
        t = device(x)
        for _ in range(n):
            t = (t.softmax(-1) + 1).contiguous()
        engine.realize(t)
    (level,) = module.arenas._levels
    # Two values live at once, whatever the length of the chain.
    assert level["CPU"].nbytes <= 4 * x.nbytes
    engine.clear_caches()
    assert module.arenas._levels == [{}]


class CountingGraph(GraphRunner):
    """A device graph that launches its kernels one by one."""

    runs = 0

    def __call__(self, input_uops, var_vals, wait=False):
        CountingGraph.runs += 1
        for i, (_, program, bound, _) in enumerate(self.calls):
            bound = list(bound)
            for place, slot in self.uop_replace[i]:
                bound[place] = input_uops[slot].buffer.ensure_allocated()
            info = program.arg
            global_size, local_size = info.launch_dims(var_vals)
            self.runtimes[i](
                *[bound[place]._buf for place in info.globals],
                global_size=global_size,
                local_size=local_size,
                vals=info.vals(var_vals),
            )


def test_a_device_with_graphs_of_its_own(monkeypatch):
    monkeypatch.setattr(module, "_runs_flat", lambda spec: False)
    monkeypatch.setattr(Device["CPU"], "graph", CountingGraph)
    CountingGraph.runs = 0

    class State:
        _value = device(array(5, 7))

    engine.track_state(State)
    step = engine.compile_step(
        lambda x: (model(x, State._value), [(State, State._value * 2 + 1)])
    )
    for n in range(4):
        x, w = array(6, 5), State._value.numpy()
        result = step(x)
        np.testing.assert_allclose(result.numpy(), expected(x, w), rtol=1e-5)
        np.testing.assert_allclose(State._value.numpy(), w * 2 + 1, rtol=1e-6)
        assert CountingGraph.runs > n
        if n == 1:
            State._value = device(array(5, 7))


def test_the_same_tests_on_another_device():
    # tinygrad's interpreter takes the road of a GPU without a graph.
    result = subprocess.run(
        [
            sys.executable,
            *("-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"),
            str(FOLDER / "compiled_step_test.py"),
            str(FOLDER / "realize_test.py"),
        ],
        env={**os.environ, "DEV": "PYTHON"},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr
