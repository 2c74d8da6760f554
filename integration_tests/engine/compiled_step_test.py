"""Compiled steps: state in place, signatures, host reads, aliases."""

import gc
import multiprocessing
import os
import threading

import numpy as np
import pytest
from tinygrad import Context
from tinygrad import Device
from tinygrad import Tensor
from tinygrad import nn

from keras.src.backend.tinygrad import engine
from keras.src.backend.tinygrad.complex import ComplexTensor
from keras.src.backend.tinygrad.engine import compiled_step
from keras.src.backend.tinygrad.engine.host_call import host_call
from keras.src.backend.tinygrad.engine.internals import GlobalCounters
from keras.src.backend.tinygrad.engine.internals import buffers
from keras.src.backend.tinygrad.engine.transfer import from_numpy

DEVICE = Device.DEFAULT
RNG = np.random.default_rng(0)


class State:
    """A variable, as the engine sees one."""

    def __init__(self, value):
        self._value = from_numpy(np.asarray(value, "float32"), DEVICE)
        engine.track_state(self)

    def numpy(self):
        return self._value.numpy()

    def assign(self, value):
        self._value = from_numpy(np.asarray(value, "float32"), DEVICE)


def array(*shape):
    return RNG.normal(size=shape).astype("float32")


def address(state):
    return id(buffers[state._value.uop.base]._buf)


def counted(fn):
    """Returns a step of `fn` and the list that grows with each trace."""
    traces = []

    def traced(inputs):
        traces.append(inputs)
        return fn(inputs)

    return engine.compile_step(traced), traces


def test_outputs_and_state():
    w = State(np.ones((3, 4)))

    def fn(x):
        y = x @ w._value
        return {"y": y, "n": 7, "none": None}, [(w, w._value + y.sum())]

    step, traces = counted(fn)
    weights = np.ones((3, 4), "float32")
    for i in range(4):
        x = array(2, 3)
        out = step(x)
        y = x @ weights
        np.testing.assert_allclose(out["y"].numpy(), y, rtol=1e-4)
        assert out["n"] == 7 and out["none"] is None
        weights = weights + y.sum()
        np.testing.assert_allclose(w.numpy(), weights, rtol=1e-4)
    assert len(traces) == 1


def test_state_is_updated_in_place():
    w = State(array(5))
    step = engine.compile_step(lambda x: (x, [(w, w._value + x)]))
    x = array(5)
    step(x)
    before = address(w)
    expected = w.numpy() + x
    step(x)
    assert address(w) == before
    np.testing.assert_allclose(w.numpy(), expected, rtol=1e-6)


def test_each_call_has_outputs_of_its_own():
    step = engine.compile_step(lambda x: ([x + 1, x, x.transpose()], []))
    inputs = [array(3, 3) for _ in range(4)]
    outputs = [step(x) for x in inputs]
    for x, (plus, same, turned) in zip(inputs, outputs):
        np.testing.assert_allclose(plus.numpy(), x + 1)
        np.testing.assert_allclose(same.numpy(), x)
        np.testing.assert_allclose(turned.numpy(), x.T)


def test_signatures():
    def fn(inputs):
        x, flag = inputs["x"], inputs["flag"]
        return (x * 2 if flag else x * 3), []

    step, traces = counted(fn)
    for shape, flag, n in (
        ((2, 3), True, 1),
        ((2, 3), True, 1),
        ((1, 3), True, 2),
        ((2, 3), False, 3),
        ((1, 3), True, 3),
    ):
        x = array(*shape)
        out = step({"x": x, "flag": flag})
        np.testing.assert_allclose(out.numpy(), x * (2 if flag else 3))
        assert len(traces) == n
    step({"x": x.astype("float16"), "flag": True})
    assert len(traces) == 4
    step({"x": x, "flag": True}, key="other")
    assert len(traces) == 5


@pytest.mark.parametrize(
    "value",
    [
        np.float32(2.5),
        np.zeros((0, 3), "float32"),
        np.asfortranarray(array(3, 4)),
        array(6, 6)[::2, 1:4],
        np.arange(4),
        np.array([True, False]),
        array(3).astype("float16"),
    ],
    ids=str,
)
def test_inputs(value):
    step = engine.compile_step(lambda x: (x.cast("float32") + 1, []))
    for _ in range(2):
        result = step(value).numpy()
        assert result.shape == value.shape
        np.testing.assert_allclose(result, value.astype("float32") + 1)


def test_tensor_inputs():
    step, traces = counted(lambda x: (x * 2, []))
    for lazy in (False, True, False):
        x = array(4, 2)
        t = from_numpy(x, DEVICE)
        expected = x * 2
        if lazy:
            t, expected = t + 1, (x + 1) * 2
        np.testing.assert_allclose(step(t).numpy(), expected, rtol=1e-6)
    assert len(traces) == 1


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_complex_inputs_and_outputs(dtype):
    step, traces = counted(lambda x: ({"y": x * x, "size": x.real * 2}, []))
    for _ in range(3):
        x = (array(3, 2) + 1j * array(3, 2)).astype(dtype)
        given = (x, ComplexTensor(Tensor(x.real), Tensor(x.imag)))
        for value in given:
            result = step(value)
            assert result["y"].dtype == dtype
            y = result["y"].real.numpy() + 1j * result["y"].imag.numpy()
            np.testing.assert_allclose(y, x * x, rtol=1e-5)
            np.testing.assert_allclose(result["size"].numpy(), x.real * 2)
    # One for arrays and one for tensors.
    assert len(traces) == 2


def test_inputs_of_no_numbers_raise():
    step = engine.compile_step(lambda x: (x, []))
    with pytest.raises(TypeError, match="dtype"):
        step(np.array(["a", "b"]))


def test_a_value_assigned_by_hand_is_seen():
    w = State(array(3))
    step, traces = counted(lambda x: (x * w._value, [(w, w._value + 1)]))
    x = array(3)
    step(x)
    for _ in range(3):
        value = array(3)
        w.assign(value)
        np.testing.assert_allclose(step(x).numpy(), x * value, rtol=1e-6)
        np.testing.assert_allclose(w.numpy(), value + 1, rtol=1e-6)
    w._value = from_numpy(x, DEVICE) * 2
    np.testing.assert_allclose(step(x).numpy(), x * x * 2, rtol=1e-6)
    assert len(traces) == 1


def test_a_value_only_read_is_followed():
    w = State(array(3))
    step, traces = counted(lambda x: (x * w._value, []))
    x = array(3)
    for _ in range(3):
        value = array(3)
        w.assign(value)
        np.testing.assert_allclose(step(x).numpy(), x * value, rtol=1e-6)
    assert len(traces) == 1


def test_lazy_readers_keep_the_old_value():
    w = State(array(4))
    step = engine.compile_step(lambda x: (x, [(w, w._value + x)]))
    for _ in range(3):
        old = w.numpy()
        reader = w._value * 10
        view = w._value[1:3]
        step(array(4))
        np.testing.assert_allclose(reader.numpy(), old * 10, rtol=1e-6)
        np.testing.assert_allclose(view.numpy(), old[1:3])


def test_aliases_keep_the_old_value():
    w = State(array(4))
    step = engine.compile_step(lambda x: (x, [(w, w._value + x)]))
    old, held, alias = w.numpy(), w._value, Tensor(w._value.uop)
    x = array(4)
    step(x)
    np.testing.assert_array_equal(held.numpy(), old)
    np.testing.assert_array_equal(alias.numpy(), old)
    np.testing.assert_allclose(w.numpy(), old + x, rtol=1e-6)
    del held, alias
    before = address(w)
    step(x)
    assert address(w) == before


def test_two_holders_of_one_buffer():
    a = State(array(4))
    b = State(array(4))
    b._value = a._value
    old = a.numpy()
    step = engine.compile_step(
        lambda x: (a._value + b._value, [(a, a._value + x)])
    )
    x = array(4)
    np.testing.assert_allclose(step(x).numpy(), old * 2, rtol=1e-6)
    np.testing.assert_array_equal(b.numpy(), old)
    np.testing.assert_allclose(a.numpy(), old + x, rtol=1e-6)
    expected = a.numpy() + b.numpy()
    np.testing.assert_allclose(step(x).numpy(), expected, rtol=1e-6)


def test_steps_that_share_state():
    w = State(array(4))
    train = engine.compile_step(lambda x: (x, [(w, w._value + x)]))
    test = engine.compile_step(lambda x: (w._value * x, []))
    x = array(4)
    train(x), test(x)
    place = address(w)
    for _ in range(3):
        train(x)
        np.testing.assert_allclose(test(x).numpy(), w.numpy() * x, rtol=1e-6)
    assert address(w) == place


def test_updates_that_read_each_other():
    a, b = State(array(4)), State(array(4))
    step = engine.compile_step(
        lambda x: (x, [(a, b._value * 1), (b, a._value * 1)])
    )
    first, second = a.numpy(), b.numpy()
    for _ in range(3):
        step(array(1))
        first, second = second, first
        np.testing.assert_array_equal(a.numpy(), first)
        np.testing.assert_array_equal(b.numpy(), second)


def test_updates_that_move_elements():
    a = State(array(4, 4))
    step = engine.compile_step(
        lambda x: (a._value.sum(0), [(a, a._value.transpose() + a._value)])
    )
    value = a.numpy()
    for _ in range(3):
        out = step(array(1))
        np.testing.assert_allclose(out.numpy(), value.sum(0), rtol=1e-4)
        value = value.T + value
        np.testing.assert_allclose(a.numpy(), value, rtol=1e-5)


def test_a_swap_of_whole_values():
    a, b = State(array(3)), State(array(3))
    step = engine.compile_step(lambda x: (None, [(a, b._value), (b, a._value)]))
    first, second = a.numpy(), b.numpy()
    step(array(1))
    np.testing.assert_array_equal(a.numpy(), second)
    np.testing.assert_array_equal(b.numpy(), first)


def test_update_with_a_constant():
    a = State(array(3))
    step = engine.compile_step(
        lambda x: (None, [(a, Tensor.zeros(3, device=DEVICE))])
    )
    for _ in range(2):
        a.assign(array(3))
        step(array(1))
        np.testing.assert_array_equal(a.numpy(), np.zeros(3))


def test_a_training_step_learns_as_numpy_does():
    w, m = State(array(5, 2) * 0.1), State(np.zeros((5, 2)))

    def fn(inputs):
        x, y = inputs
        loss = (x @ w._value - y).square().mean()
        (g,) = loss.gradient(w._value)
        new = m._value * 0.9 + g
        return loss, [(m, new), (w, w._value - 0.1 * new)]

    step = engine.compile_step(fn)
    weights, momentum = w.numpy(), m.numpy()
    for _ in range(10):
        x, y = array(8, 5), array(8, 2)
        loss = step((x, y))
        error = x @ weights - y
        np.testing.assert_allclose(loss.numpy(), (error**2).mean(), rtol=1e-4)
        momentum = momentum * 0.9 + 2 / error.size * x.T @ error
        weights = weights - 0.1 * momentum
        np.testing.assert_allclose(w.numpy(), weights, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    "read",
    [
        lambda t: t.numpy(),
        lambda t: t.sum().item(),
        lambda t: t.tolist(),
        lambda t: np.asarray(t),
        lambda t: t.data(),
        lambda t: float(t.sum()),
        lambda t: int(t.sum()),
        lambda t: 1 if t.sum() else 0,
    ],
)
@pytest.mark.parametrize("of_state", [False, True])
def test_host_reads_raise(read, of_state):
    w = State(array(3))

    def fn(x):
        read(w._value if of_state else x * 2)
        return x, []

    step = engine.compile_step(fn)
    line = rf"compiled_step_test\.py:{read.__code__.co_firstlineno} \(.lambda t"
    with pytest.raises(engine.HostReadError, match=line):
        step(array(3))
    # Outside, the same function reads as it likes.
    fn(from_numpy(array(3), DEVICE))


def test_a_failed_trace_leaves_no_mark():
    w = State(array(3))

    def fn(x):
        w._value.assign(w._value + 1)
        x.numpy()
        return x, []

    old = w.numpy()
    step = engine.compile_step(fn)
    for _ in range(2):
        with pytest.raises(engine.HostReadError):
            step(array(3))
    np.testing.assert_array_equal(w.numpy(), old)


def test_static_values_may_be_read():
    def fn(x):
        n = (Tensor([1, 2, 3], device=DEVICE) * 2).sum().item()
        return x * n, []

    x = array(3)
    np.testing.assert_allclose(engine.compile_step(fn)(x).numpy(), x * 12)


def test_a_tensor_that_leaks_from_a_trace_raises():
    leaked = []

    def fn(x):
        leaked.append(x * 2)
        return x, []

    engine.compile_step(fn)(array(3))
    with pytest.raises(RuntimeError, match="while the step was traced"):
        leaked[0].numpy()


def test_a_step_inside_a_step_raises():
    inner = engine.compile_step(lambda x: (x, []))
    outer = engine.compile_step(lambda x: (inner(x), []))
    with pytest.raises(RuntimeError, match="inner step"):
        outer(array(3))
    assert inner(array(3)).shape == (3,)


def test_a_step_inside_its_own_host_call_raises():
    def again(x):
        if len(calls) < 2:
            calls.append(1)
            step(x)
        return x

    calls = []
    step = engine.compile_step(
        lambda x: (host_call(again, [x], [((3,), "float32")])[0], [])
    )
    with pytest.raises(RuntimeError, match="host call within itself"):
        step(array(3))


def test_tinygrad_training_inside_a_step():
    x, y = array(16, 4), array(16, 1)

    def train(compiled):
        w = from_numpy(np.linspace(-1, 1, 4, dtype="float32")[:, None], DEVICE)
        optimizer = nn.optim.Adam([w], lr=0.05)

        def fn(inputs):
            with Context(TRAINING=1):
                optimizer.zero_grad()
                loss = (inputs[0] @ w - inputs[1]).square().mean()
                loss.backward()
                value = loss.clone().realize()
                optimizer.step()
                return value, []

        if compiled:
            step = engine.compile_step(fn)
        else:

            def step(inputs):
                inputs = [from_numpy(i, DEVICE) for i in inputs]
                return fn(inputs)[0]

        losses = [step((x, y)).item() for _ in range(6)]
        return losses, w.numpy()

    losses, w = [], np.linspace(-1, 1, 4, dtype="float32")[:, None]
    m = v = 0
    for t in range(1, 7):
        error = x @ w - y
        losses.append((error**2).mean())
        g = 2 / error.size * x.T @ error
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        update = (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
        w = w - 0.05 * update
    for compiled in (True, False):
        found_losses, found_w = train(compiled)
        np.testing.assert_allclose(found_losses, losses, rtol=1e-4)
        np.testing.assert_allclose(found_w, w, rtol=1e-3, atol=1e-5)


def test_a_tensor_without_a_buffer_is_state_too():
    total = Tensor(0.0)
    seen = Tensor.zeros(3, device=DEVICE)

    def fn(x):
        total.replace(total + x.sum())
        seen.assign(seen + x)
        return seen * 2, []

    step = engine.compile_step(fn)
    expected = np.zeros(3, "float32")
    for _ in range(3):
        x = array(3)
        expected = expected + x
        np.testing.assert_allclose(step(x).numpy(), expected * 2, rtol=1e-5)
        np.testing.assert_allclose(seen.numpy(), expected, rtol=1e-5)
        np.testing.assert_allclose(total.item(), expected.sum(), rtol=1e-4)


def test_tinygrad_randomness_inside_a_step():
    Tensor.manual_seed(5)
    eager = [Tensor.rand(4).numpy() for _ in range(4)]
    Tensor.manual_seed(5)
    step = engine.compile_step(lambda x: (Tensor.rand(4), []))
    compiled = [step(array(1)).numpy() for _ in range(3)]
    np.testing.assert_array_equal(compiled, eager[:3])
    np.testing.assert_array_equal(Tensor.rand(4).numpy(), eager[3])


def test_memory_is_flat():
    w = State(array(50))
    step = engine.compile_step(lambda x: (x.sum(), [(w, w._value + x)]))
    x = array(50)

    def run():
        logs = [step(x) for _ in range(20)]
        return float(logs[-1].numpy())

    run()
    gc.collect()
    before = GlobalCounters.mem_used, threading.active_count()
    run()
    run()
    gc.collect()
    assert (GlobalCounters.mem_used, threading.active_count()) == before


def test_a_dropped_step_frees_its_buffers():
    w = State(array(10))
    gc.collect()
    before = GlobalCounters.mem_used

    def run():
        step = engine.compile_step(lambda x: (x @ w._value, []))
        step(array(200, 10))

    run()
    gc.collect()
    assert GlobalCounters.mem_used - before < 4096


def test_other_threads_run_ops_while_a_step_runs():
    w = State(array(8, 8))
    step = engine.compile_step(
        lambda x: ((x @ w._value).sum(), [(w, w._value * 0.5 + x)])
    )
    stop, errors = threading.Event(), []

    def preprocess(seed):
        rng = np.random.default_rng(seed)
        try:
            while not stop.is_set():
                x = rng.normal(size=(5, 7)).astype("float32")
                y = (from_numpy(x, DEVICE) * 2 + 1).relu().numpy()
                np.testing.assert_allclose(y, np.maximum(x * 2 + 1, 0))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=preprocess, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    value = w.numpy()
    for _ in range(30):
        x = array(8, 8)
        out = step(x)
        np.testing.assert_allclose(
            out.numpy(), (x @ value).sum(), rtol=1e-2, atol=1e-1
        )
        value = value * np.float32(0.5) + x
    stop.set()
    for thread in threads:
        thread.join()
    assert not errors, errors
    np.testing.assert_allclose(w.numpy(), value, rtol=1e-5)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_after_the_device_was_opened():
    w = State(array(16, 16))
    step = engine.compile_step(lambda x: (w._value.sum(), [(w, w._value + x)]))
    step(array(16, 16))
    before = w.numpy()
    context = multiprocessing.get_context("fork")
    results = context.Queue()

    def child():
        x = np.ones((16, 16), "float32")
        for _ in range(20):
            step(x)
            (from_numpy(x, DEVICE) * 3).exp().realize()
        results.put((w.numpy() - before).mean())

    processes = [context.Process(target=child) for _ in range(2)]
    for process in processes:
        process.start()
    kept = [
        from_numpy(np.full((16, 16), i, "float32"), DEVICE) * 1
        for i in range(9)
    ]
    engine.realize(*kept)
    moved = [results.get(timeout=60) for _ in processes]
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    np.testing.assert_allclose(moved, 20, rtol=1e-3)
    np.testing.assert_array_equal(w.numpy(), before)
    for i, t in enumerate(kept):
        np.testing.assert_array_equal(t.numpy(), i)


def test_fork_while_another_thread_computes():
    if not hasattr(os, "fork"):
        pytest.skip("needs fork")
    stop = threading.Event()

    def work():
        while not stop.is_set():
            (from_numpy(array(50), DEVICE) + 1).realize()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        for _ in range(5):
            pid = os.fork()
            if pid == 0:
                value = (from_numpy(np.ones(3, "float32"), DEVICE) + 1).numpy()
                os._exit(0 if value.sum() == 6 else 1)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    finally:
        stop.set()
        thread.join()


def test_constants_as_inputs():
    step, traces = counted(lambda x: (x * 2, []))
    for value in (0.0, 1.0, 5.0):
        np.testing.assert_array_equal(
            step(Tensor.full((2, 3), value)).numpy(), np.full((2, 3), 2 * value)
        )
    assert len(traces) == 1


def test_numbers_that_are_equal_and_not_the_same():
    step, traces = counted(lambda x: (Tensor([1.0]).realize() * x, []))
    assert np.signbit(step(-0.0).numpy()) == [True]
    assert np.signbit(step(0.0).numpy()) == [False]
    assert np.isnan(step(float("nan")).numpy()) == [True]
    step(float("nan"))
    assert len(traces) == 3


def test_a_constant_output_is_each_calls_own():
    step, _ = counted(lambda x: (Tensor.full((2,), 1.0), []))
    x = array(2)
    step(x).assign(Tensor([9.0, 9.0])).realize()
    np.testing.assert_array_equal(step(x).numpy(), [1, 1])


def test_an_interrupt_after_the_trace_leaves_no_mark(monkeypatch):
    count = Tensor([0.0]).contiguous().realize()

    def fn(x):
        return count.assign(count + x.sum()) * 1, []

    def interrupted(*args):
        raise KeyboardInterrupt

    step = engine.compile_step(fn)
    x = np.ones((2, 3), "float32")
    with monkeypatch.context() as patch:
        patch.setattr(compiled_step, "lower", interrupted)
        with pytest.raises(KeyboardInterrupt):
            step(x)
    assert count.tolist() == [0]
    step(x)
    assert count.tolist() == [6]


def test_a_tensor_that_leaks_from_a_failed_trace_raises():
    kept = []

    def fn(x):
        kept.append(x.sum())
        return kept[0].item(), []

    with pytest.raises(engine.HostReadError):
        engine.compile_step(fn)(array(2))
    with pytest.raises(RuntimeError, match="while the step was traced"):
        kept[0].numpy()


def test_a_tensor_written_to_outside_is_followed():
    weight = Tensor([1.0, 1.0]).contiguous().realize()
    step, traces = counted(lambda x: (x * weight, []))
    x = np.ones((2,), "float32")
    assert step(x).tolist() == [1, 1]
    weight.assign(Tensor([5.0, 6.0]))
    assert step(x).tolist() == [5, 6]
    assert len(traces) == 1
    weight.replace(Tensor([1, 2], dtype="uint8"))
    with pytest.raises(ValueError, match="another size.*received"):
        step(x)


def test_inputs_of_all_shapes_seen_do_not_stay():
    step, _ = counted(lambda x: (x.sum(), []))
    held = []
    for n in range(1, 5):
        step(np.ones((n, 1 << 20), "float32"))
        held.append(GlobalCounters.mem_used)
    step(np.ones((1, 1 << 20), "float32"))
    assert max(held) - GlobalCounters.mem_used < 14 << 20
    assert held[-1] - held[0] < 14 << 20


def test_what_another_thread_writes_is_not_the_steps():
    total = Tensor([0.0]).contiguous().realize()
    weight = Tensor([1.0, 2.0]).realize()
    started = threading.Event()

    def other():
        started.wait()
        (weight * weight).sum().backward()
        total.assign(total + 5)

    thread = threading.Thread(target=other)

    def fn(x):
        started.set()
        thread.join(0.5)
        return x * 2, []

    thread.start()
    step = engine.compile_step(fn)
    step(array(3))
    thread.join()
    step(array(3))
    assert weight.grad.tolist() == [2, 4]
    assert total.tolist() == [5]
