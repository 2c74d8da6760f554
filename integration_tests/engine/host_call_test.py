"""Host calls: values of every dtype and shape, gradients, errors, reuse."""

import collections
import functools
import gc
import signal
import sys
import time

import numpy as np
import pytest
from tinygrad import Tensor
from tinygrad import dtypes

from keras.src.backend.tinygrad import engine
from keras.src.backend.tinygrad.engine import compile_step
from keras.src.backend.tinygrad.engine import host_call as module
from keras.src.backend.tinygrad.engine import launcher
from keras.src.backend.tinygrad.engine import plan
from keras.src.backend.tinygrad.engine.gemm import matmul
from keras.src.backend.tinygrad.engine.host_call import host_call
from keras.src.backend.tinygrad.engine.scan import run as run_loop
from keras.src.backend.tinygrad.engine.scan_body import trace as trace_loop
from keras.src.backend.tinygrad.engine.transfer import TINYGRAD_DTYPES
from keras.src.backend.tinygrad.engine.transfer import from_numpy
from keras.src.backend.tinygrad.engine.transfer import to_numpy

RNG = np.random.default_rng(0)
SQUARE = ((2, 2), "float64")
MATRIX = ((2, 2), dtypes.float64)


def read(tensor):
    return to_numpy(tensor)


def rows(array):
    return from_numpy(np.asarray(array), "CPU")


@pytest.mark.parametrize("dtype", TINYGRAD_DTYPES, ids=str)
def test_every_dtype_goes_in_and_comes_out(dtype):
    x = (RNG.normal(size=(3, 5)) * 3).astype(dtype)
    (y,) = host_call(lambda a: a[::-1], [rows(x)], [((3, 5), dtype.name)])
    y = read(y)
    assert y.dtype == dtype
    np.testing.assert_array_equal(
        y.view(np.uint8), np.ascontiguousarray(x[::-1]).view(np.uint8)
    )


def test_values_are_cast_to_the_declared_dtype():
    x = RNG.normal(size=(2, 3)).astype("float32")
    (y,) = host_call(np.float64, [rows(x)], [((2, 3), "float16")])
    np.testing.assert_array_equal(read(y), x.astype("float16"))


def test_strided_and_computed_inputs_arrive_in_order():
    x = RNG.normal(size=(4, 6)).astype("float32")
    t = (rows(x) * 2).transpose()[1:5]
    (y,) = host_call(np.copy, [t], [((4, 4), "float32")])
    np.testing.assert_array_equal(read(y), (x * 2).T[1:5])


def test_inputs_are_read_only():
    def overwrite(a):
        a[0] = 1
        return a

    (y,) = host_call(overwrite, [rows(np.zeros(3))], [((3,), "float64")])
    with pytest.raises(ValueError, match="read-only"):
        read(y)


def test_scalars_and_constants():
    (y,) = host_call(
        lambda a, b: a + b,
        [rows(np.float32(2.0)), Tensor.full((), 3.0, dtype="float32")],
        [((), "float32")],
    )
    assert y.shape == ()
    assert read(y) == 5.0


def test_empty_inputs_and_outputs():
    x = rows(np.zeros((0, 3), "float32"))
    total, none, also_none = host_call(
        lambda a: (a.sum(axis=0), a, a[:, :2]),
        [x],
        [((3,), "float32"), ((0, 3), "float32"), ((0, 2), "int8")],
    )
    np.testing.assert_array_equal(read(total), np.zeros(3, "float32"))
    assert none.shape == (0, 3)
    assert read(also_none).shape == (0, 2)
    (y,) = host_call(lambda a: a, [x], [((0, 3), "float32")])
    assert read(y).shape == (0, 3)


def test_many_inputs_and_outputs():
    xs = [RNG.normal(size=(i + 1,)).astype("float32") for i in range(20)]
    ys = host_call(
        lambda *arrays: tuple(a * 2 for a in arrays),
        [rows(x) for x in xs],
        [(x.shape, "float32") for x in xs],
    )
    for x, y in zip(xs, ys):
        np.testing.assert_array_equal(read(y), x * 2)


def test_too_many_buffers_are_refused():
    x = rows(np.zeros(2))
    with pytest.raises(ValueError, match="at most 62"):
        host_call(lambda *a: a[0], [x] * 80, [((2,), "float64")], name="op")


def test_results_stay_on_the_inputs_device():
    x = RNG.normal(size=(6,)).astype("float32")
    t = rows(x).to("PYTHON")
    (y,) = host_call(np.sort, [t], [((6,), "float32")])
    assert y.device == "PYTHON"
    np.testing.assert_array_equal(read(y), np.sort(x))


def eigh(t, record=None):
    n = t.shape[-1]

    def gradient(inputs, outputs, output_grads):
        if record is not None:
            record.append(len(output_grads))
        w, v = outputs
        gw, gv = output_grads
        gap = w.reshape(1, n) - w.reshape(n, 1)
        f = gap.eq(0).where(0, 1 / gap.eq(0).where(1, gap))
        vt = v.transpose()
        inner = gw.reshape(n, 1) * Tensor.eye(n) + f * (vt @ gv)
        g = v @ inner @ vt
        return [(g + g.transpose()) / 2]

    return host_call(
        np.linalg.eigh,
        [t],
        [((n,), "float64"), ((n, n), "float64")],
        gradient=gradient,
        name="eigh",
    )


@pytest.mark.parametrize("use", ["values", "vectors", "both"])
def test_gradient_gets_each_outputs_cotangent(use):
    def loss(w, v):
        terms = {"values": (w**3).sum(), "vectors": (v**3).sum()}
        if use == "both":
            return terms["values"] + terms["vectors"]
        return terms[use]

    a = RNG.normal(size=(4, 4))
    s = a + a.T
    record = []
    t = rows(s)
    got = read(loss(*eigh(t, record)).gradient(t)[0])
    want = np.zeros_like(s)
    step = 1e-6
    for i in range(4):
        for j in range(4):
            e = np.zeros_like(s)
            e[i, j] += step / 2
            e[j, i] += step / 2
            high, low = np.linalg.eigh(s + e), np.linalg.eigh(s - e)
            want[i, j] = (loss(*high) - loss(*low)) / (2 * step)
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)
    assert record == [2]


def test_gradient_of_inputs_without_one():
    def scale(a, b, index):
        return a * b

    def gradient(inputs, outputs, output_grads):
        return [output_grads[0] * inputs[1], None, None]

    a, b = rows(np.array([1.0, 2.0])), rows(np.array([3.0, 4.0]))
    index = rows(np.array([0, 1]))
    (y,) = host_call(
        scale, [a, b, index], [((2,), "float64")], gradient=gradient
    )
    np.testing.assert_array_equal(read(y.sum().gradient(a)[0]), [3.0, 4.0])


def test_missing_gradient_names_the_operation():
    x = rows(np.array([3.0, 1.0]))
    (y,) = host_call(np.sort, [x], [((2,), "float64")], name="my_sort")
    with pytest.raises(NotImplementedError, match="my_sort"):
        y.sum().gradient(x)


def test_exceptions_reach_the_reader_and_leave_nothing_behind():
    def solve(a):
        return np.linalg.inv(a)

    singular = rows(np.zeros((2, 2)))
    (y,) = host_call(solve, [singular], [((2, 2), "float64")])
    with pytest.raises(np.linalg.LinAlgError, match="Singular"):
        read(y)
    (y,) = host_call(solve, [rows(np.eye(2))], [((2, 2), "float64")])
    np.testing.assert_array_equal(read(y), np.eye(2))


def test_undeclared_shape_is_an_error():
    (y,) = host_call(np.sum, [rows(np.zeros(3))], [((3,), "float64")])
    with pytest.raises(ValueError, match="another shape"):
        read(y)


def test_in_a_compiled_step():
    def sort(x):
        (y,) = host_call(np.sort, [x * 2], [((8,), "float32")])
        return y + 1, []

    step = compile_step(sort)
    for _ in range(4):
        x = RNG.normal(size=(8,)).astype("float32")
        np.testing.assert_array_equal(read(step(x)), np.sort(x * 2) + 1)


def test_exceptions_leave_a_compiled_step():
    def invert(x):
        (y,) = host_call(np.linalg.inv, [x], [((2, 2), "float64")])
        return y, []

    step = compile_step(invert)
    np.testing.assert_array_equal(read(step(np.eye(2))), np.eye(2))
    with pytest.raises(np.linalg.LinAlgError):
        step(np.zeros((2, 2)))
    np.testing.assert_array_equal(read(step(np.eye(2))), np.eye(2))


class Slot:
    def __init__(self, value):
        self._value = value


@pytest.fixture(params=["compiled walk", "python walk", "general road"])
def road(request, monkeypatch):
    """Runs a test on each of the roads of a plan on the CPU."""
    if request.param == "python walk":
        monkeypatch.setattr(launcher, "_walker", lambda: None)
    elif request.param == "general road":
        monkeypatch.setattr(plan, "_runs_flat", lambda spec: False)
    engine.clear_caches()
    yield
    engine.clear_caches()


def test_a_failed_call_leaves_the_state_as_it_was(road):
    count, total = Slot(rows(np.zeros(2))), Slot(rows(np.eye(2)))

    def invert(x):
        (y,) = host_call(np.linalg.inv, [x], [SQUARE])
        return y, [
            (count, count._value + 1),
            (total, total._value + y),
        ]

    step = compile_step(invert)
    read(step(np.eye(2)))
    for _ in range(2):
        with pytest.raises(np.linalg.LinAlgError):
            step(np.zeros((2, 2)))
        np.testing.assert_array_equal(read(count._value), np.ones(2))
        np.testing.assert_array_equal(read(total._value), 2 * np.eye(2))
    read(step(np.eye(2)))
    np.testing.assert_array_equal(read(count._value), np.full(2, 2.0))


def test_a_store_beside_a_failed_call_is_done_once(road):
    state = rows(np.zeros(3))
    stored = state.assign(state + 1)
    (y,) = host_call(np.linalg.inv, [rows(np.zeros((2, 2)))], [SQUARE])
    (z,) = host_call(
        lambda a, b: a + b, [stored, y.sum().expand(3)], [((3,), "float64")]
    )
    for _ in range(2):
        with pytest.raises(np.linalg.LinAlgError):
            read(z)
    np.testing.assert_array_equal(read(state), np.ones(3))


def test_a_store_of_a_failed_calls_result_is_dropped(road):
    state = rows(np.eye(2))
    (y,) = host_call(np.linalg.inv, [rows(np.zeros((2, 2)))], [SQUARE])
    state.assign(state + y)
    with pytest.raises(np.linalg.LinAlgError):
        engine.realize(state)
    np.testing.assert_array_equal(read(state), np.eye(2))
    # A trace does what other tensors wait for, before it begins.
    step = compile_step(lambda x: (x + 1, []))
    np.testing.assert_array_equal(read(step(np.ones(2))), np.full(2, 2.0))


def test_a_store_interrupted_by_the_host_is_tried_again(road):
    answers = collections.deque([KeyboardInterrupt(), None])

    def answer(a):
        error = answers.popleft()
        if error is not None:
            raise error
        return a

    state = rows(np.ones(2))
    (y,) = host_call(answer, [state], [((2,), "float64")])
    state.assign(state + y)
    with pytest.raises(KeyboardInterrupt):
        engine.realize(state)
    np.testing.assert_array_equal(read(state), np.full(2, 2.0))


def test_nothing_runs_after_a_failed_call(road):
    calls = collections.deque()

    def fail(a):
        calls.append("first")
        raise ArithmeticError("no solution")

    def count(a):
        calls.append("second")
        return a

    (y,) = host_call(fail, [rows(np.ones(2))], [((2,), "float64")])
    (z,) = host_call(count, [y + 1], [((2,), "float64")])
    with pytest.raises(ArithmeticError, match="no solution"):
        read(z)
    assert list(calls) == ["first"]


def test_a_failed_call_in_a_loop(road):
    state, calls = Slot(rows(np.zeros(2))), collections.deque()

    def invert(a):
        calls.append(a)
        return np.linalg.inv(a)

    def run(x):
        def body(carries, slices):
            (y,) = host_call(invert, [slices[0]], [SQUARE])
            return [carries[0] + y], []

        zeros = Tensor.zeros(2, 2, dtype="float64", device="CPU")
        loop = trace_loop(body, [MATRIX], [MATRIX], "CPU")
        (total,), _ = run_loop(loop, [zeros], [x], 4)
        return total, [(state, state._value + total.sum())]

    step = compile_step(run)
    x = np.stack([np.eye(2)] * 4)
    np.testing.assert_array_equal(read(step(x)), 4 * np.eye(2))
    x[1] = 0
    calls.clear()
    with pytest.raises(np.linalg.LinAlgError):
        step(x)
    assert len(calls) == 2
    np.testing.assert_array_equal(read(state._value), np.full(2, 8.0))


def test_tinygrads_own_road_raises_too(tmp_path):
    file = tmp_path / "singular"
    file.write_bytes(bytes(32))
    singular = Tensor(file).bitcast(dtypes.float64).reshape(2, 2).to("CPU")
    (y,) = host_call(np.linalg.inv, [singular], [SQUARE])
    with pytest.raises(np.linalg.LinAlgError):
        read(y)
    np.testing.assert_array_equal(read(rows(np.zeros(3)) + 1), np.ones(3))


class Alarm(BaseException):
    pass


@pytest.mark.skipif(sys.platform == "win32", reason="no timers of signals")
def test_an_interrupt_that_arrives_before_the_call():
    # While the product runs, so that it is seen as the call begins.
    def ring(*_):
        raise Alarm

    size = 2048
    x = rows(np.ones((size, size), "float32"))
    state = Slot(rows(np.zeros(1, "float32")))

    def run(x):
        (y,) = host_call(
            lambda a: a[:1, 0], [matmul(x, x)], [((1,), "float32")]
        )
        return y, [(state, state._value + y)]

    step = compile_step(run)
    read(step(x))
    seconds = []
    for _ in range(2):
        start = time.perf_counter()
        read(step(x))
        seconds.append(time.perf_counter() - start)
    previous = signal.signal(signal.SIGALRM, ring)
    try:
        signal.setitimer(signal.ITIMER_REAL, min(seconds) / 2)
        with pytest.raises(Alarm):
            step(x)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    np.testing.assert_array_equal(read(state._value), [3.0 * size])
    np.testing.assert_array_equal(read(step(x)), [size])


def test_equal_functions_share_an_entry():
    def scaled(factor):
        return lambda a: a * factor

    x = rows(np.ones(3))
    before = set(module._entries)
    for _ in range(5):
        (y,) = host_call(scaled(2), [x], [((3,), "float64")])
        assert read(y)[0] == 2
        (y,) = host_call(
            functools.partial(np.sum, axis=0), [x], [((), "float64")]
        )
        assert read(y) == 3
    assert len(set(module._entries) - before) == 2
    for factor, dtype in ((True, "bool"), (1, "int64"), (1.0, "float64")):
        (y,) = host_call(
            lambda a, c=factor: np.asarray(c).dtype.kind == "f",
            [x],
            [((), "bool")],
        )
        assert read(y) == (dtype == "float64")


def test_entries_do_not_accumulate():
    x = rows(np.ones(3))
    for i in range(2 * module.MAX_HANDLES):
        (y,) = host_call(lambda a, shift=i: a + shift, [x], [((3,), "float64")])
    assert read(y)[0] == i + 1
    del y
    gc.collect()
    assert len(module._entries) <= module.MAX_HANDLES + 1
