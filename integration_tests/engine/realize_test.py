"""Eager realization: values, what is replaced, gradients, threads."""

import gc
import sys
import threading

import numpy as np
import pytest
from tinygrad import Context
from tinygrad import Device
from tinygrad import Tensor
from tinygrad import Variable
from tinygrad import dtypes
from tinygrad import nn

from keras.src.backend.tinygrad import engine
from keras.src.backend.tinygrad.engine import lowering
from keras.src.backend.tinygrad.engine import plan
from keras.src.backend.tinygrad.engine.internals import GlobalCounters
from keras.src.backend.tinygrad.engine.internals import KernelInfo
from keras.src.backend.tinygrad.engine.internals import Ops
from keras.src.backend.tinygrad.engine.internals import UOp
from keras.src.backend.tinygrad.engine.internals import buffers
from keras.src.backend.tinygrad.engine.transfer import from_numpy

# The package's attribute of this name is the function.
module = sys.modules["keras.src.backend.tinygrad.engine.realize"]
DEVICE = Device.DEFAULT
RNG = np.random.default_rng(0)


def array(*shape):
    return RNG.normal(size=shape).astype("float32")


def device(value):
    return from_numpy(np.asarray(value), DEVICE)


def launches(fn):
    before = GlobalCounters.kernel_count
    fn()
    return GlobalCounters.kernel_count - before


def double(x):
    """A custom kernel with a gradient: 2 * x, for a flat tensor."""

    def kernel(out, source):
        i = UOp.range(source.shape[0], 0)
        store = out[i].store(source[i] * 2).end(i)
        return store.sink(arg=KernelInfo(name="twice"))

    def gradient(g, call):
        return None, (Tensor(g) * 2).uop

    out = Tensor.empty(*x.shape, dtype=x.dtype, device=x.device)
    return Tensor.custom_kernel(out, x, fxn=kernel, grad_fxn=gradient)[0]


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def test_values_over_other_buffers():
    for _ in range(3):
        x = array(8, 10)
        t = device(x).softmax(-1)
        engine.realize(t)
        np.testing.assert_allclose(t.numpy(), softmax(x), atol=1e-6)


def test_a_graph_seen_before_is_not_scheduled_again(monkeypatch):
    engine.realize(device(array(6, 3)).exp().sum(0) * 3)
    monkeypatch.setattr(
        module, "lower", lambda *a: pytest.fail("scheduled again")
    )
    x = array(6, 3)
    t = device(x).exp().sum(0) * 3
    engine.realize(t)
    np.testing.assert_allclose(t.numpy(), np.exp(x).sum(0) * 3, rtol=1e-5)


@pytest.mark.parametrize("constant", [0.0, -0.0, float("nan"), 2.0, 3.0])
def test_constants_are_told_apart(constant):
    x = np.array([-1.0, 1.0], "float32")
    t = (device(x) > 0).where(constant, device(x))
    engine.realize(t)
    np.testing.assert_array_equal(t.numpy(), [-1.0, constant])
    assert np.signbit(t.numpy()[1]) == np.signbit(constant)


def test_aliasing_is_told_apart():
    a, b = array(4), array(4)
    x, y = device(a), device(b)
    for left, right, expected in ((x, y, a - b), (x, x, a - a), (y, x, b - a)):
        t = (left + 0) - right
        engine.realize(t)
        np.testing.assert_allclose(t.numpy(), expected)


def test_realized_tensors_have_buffers_of_their_own():
    base = device(array(4, 6))
    views = [
        base.transpose(),
        base[1:3],
        base.reshape(24)[5:9],
        base.expand(2, 4, 6),
        base.detach(),
        base.flip(0),
    ]
    expected = [v.numpy() for v in views]
    engine.realize(*views)
    for view, value in zip(views, expected):
        if view is not views[4]:
            assert view.uop.base is not base.uop.base
        assert view.uop.has_buffer_identity()
        np.testing.assert_array_equal(view.numpy(), value)


def test_realized_tensors_cost_nothing():
    t = device(array(3)) + 1
    engine.realize(t)
    assert launches(lambda: engine.realize(t, t)) == 0


def test_several_tensors_share_work():
    x = array(5, 5)
    t = device(x)
    a = (t + 1).contiguous()
    b, c, d = a * 2, a * 3, a.reshape(25)
    engine.realize(b, c, d, b)
    np.testing.assert_allclose(b.numpy(), (x + 1) * 2, rtol=1e-6)
    np.testing.assert_allclose(c.numpy(), (x + 1) * 3, rtol=1e-6)
    np.testing.assert_allclose(d.numpy(), (x + 1).reshape(25), rtol=1e-6)


@pytest.mark.parametrize("shape", [(), (1,), (7,), (0,), (2, 0, 3), (1, 1)])
def test_shapes(shape):
    x = array(*shape) if shape else np.float32(3)
    t = device(x) * 2 + 1
    engine.realize(t)
    assert t.shape == shape
    np.testing.assert_allclose(t.numpy(), x * 2 + 1, rtol=1e-6)


def test_constants_without_a_device():
    t = Tensor(3.0) + 4
    engine.realize(t)
    assert t.item() == 7


def test_numpy_and_python_sources():
    x = np.asfortranarray(array(4, 5))
    t = Tensor(x) + Tensor([[1.0], [2.0], [3.0], [4.0]])
    engine.realize(t)
    np.testing.assert_allclose(t.numpy(), x + [[1], [2], [3], [4]], rtol=1e-6)


def test_requested_nodes_stay_lazy_in_other_graphs():
    x = device(array(6))
    shared = (x * 3).contiguous()
    other = shared.square().sum()
    engine.realize(shared)
    assert shared.uop.has_buffer_identity()
    (gradient,) = other.gradient(x)
    np.testing.assert_allclose(gradient.numpy(), 18 * x.numpy(), rtol=1e-5)


def test_inner_nodes_stay_lazy_in_other_graphs():
    # A moving mean is assigned from the middle of a forward graph before the
    # gradient is taken.
    x, w = device(array(6)), device(array(6))
    hidden = double((x * w).contiguous())
    mean = hidden.mean()
    engine.realize(mean)
    loss = (hidden - mean).square().sum()
    (gradient,) = loss.gradient(w)
    h = 2 * x.numpy() * w.numpy()
    expected = 2 * (h - h.mean()) * 2 * x.numpy()
    np.testing.assert_allclose(gradient.numpy(), expected, rtol=1e-4)
    np.testing.assert_allclose(hidden.numpy(), h, rtol=1e-5)


def test_a_custom_kernel_runs_again_over_other_buffers():
    for _ in range(3):
        x = array(9)
        t = double(device(x)) + 1
        engine.realize(t)
        np.testing.assert_allclose(t.numpy(), 2 * x + 1, rtol=1e-6)


def test_an_effect_happens_once_and_everywhere():
    counter = device(np.zeros(2, "float32"))
    buffer = buffers[counter.uop.base]
    counter.assign(counter + 1)
    first, second = counter * 10, counter * 100
    engine.realize(first)
    engine.realize(second)
    engine.realize(counter)
    assert buffers[counter.uop.base] is buffer
    np.testing.assert_array_equal(counter.numpy(), [1, 1])
    np.testing.assert_array_equal(first.numpy(), [10, 10])
    np.testing.assert_array_equal(second.numpy(), [100, 100])


def test_an_effect_whose_end_is_interrupted_happens_once(monkeypatch):
    def interrupted(self):
        raise KeyboardInterrupt

    x = array(4)
    t = device(x)
    t.assign(t + 1)
    with monkeypatch.context() as patch:
        # As a signal that arrives during the launches.
        patch.setattr(plan.Plan, "_count", interrupted)
        with pytest.raises(KeyboardInterrupt):
            engine.realize(t)
    np.testing.assert_allclose(t.numpy(), x + 1)


def test_an_effect_that_found_no_memory_is_not_lost(monkeypatch):
    def full(*args):
        raise MemoryError

    x = array(4)
    t = device(x)
    y = t.assign(t + 1) * 2
    with monkeypatch.context() as patch:
        patch.setattr(plan, "new_buffer", full)
        with pytest.raises(MemoryError):
            engine.realize(y)
    np.testing.assert_allclose(t.numpy(), x + 1)


def test_stores_into_part_of_a_buffer():
    x = device(np.zeros((3, 4), "float32"))
    x[1] = 5.0
    x[:, 2] = device(np.ones(3, "float32"))
    engine.realize(x)
    expected = np.zeros((3, 4))
    expected[1], expected[:, 2] = 5, 1
    np.testing.assert_array_equal(x.numpy(), expected)


def test_stores_one_after_the_other_into_a_fresh_buffer():
    x = Tensor.empty(4, dtype=dtypes.float32, device=DEVICE)
    x.assign(device(np.arange(4, dtype="float32")))
    early = x * 1
    late = x.uop.after(x.uop.store((x + 10).uop))
    both = [early, Tensor(late)]
    engine.realize(*both)
    np.testing.assert_array_equal(both[0].numpy(), [0, 1, 2, 3])
    np.testing.assert_array_equal(both[1].numpy(), [10, 11, 12, 13])


def test_tinygrad_randomness_advances():
    Tensor.manual_seed(3)
    a, b = Tensor.rand(4).numpy(), Tensor.rand(4).numpy()
    assert (a != b).all()
    Tensor.manual_seed(3)
    np.testing.assert_array_equal(Tensor.rand(4).numpy(), a)
    np.testing.assert_array_equal(Tensor.rand(4).numpy(), b)


def test_tinygrad_optimizers():
    w = device(array(3))
    start = w.numpy()
    optimizer = nn.optim.Adam([w], lr=0.1)
    with Context(TRAINING=1):
        for _ in range(3):
            optimizer.zero_grad()
            w.square().sum().backward()
            optimizer.step()
    assert (np.abs(w.numpy()) < np.abs(start)).all()


def test_bound_variables_share_a_plan(monkeypatch):
    x = array(8, 3)
    t = device(x)

    def row(k):
        i = Variable("i", 0, 7).bind(k)
        return t.shrink(((i, i + 1), (0, 3))).reshape(3) * 2

    results = [row(0)]
    engine.realize(results[0])
    monkeypatch.setattr(
        module, "lower", lambda *a: pytest.fail("scheduled again")
    )
    for k in range(1, 8):
        results.append(row(k))
        engine.realize(results[-1])
    for k, result in enumerate(results):
        np.testing.assert_allclose(result.numpy(), x[k] * 2, rtol=1e-6)


def test_weak_dtypes_raise():
    t = device(array(3)).uop * UOp.const(2.0)
    assert t.dtype == dtypes.float32
    with pytest.raises(RuntimeError, match="weak"):
        module._realize([Tensor(UOp.const(2.0))])


def test_plans_keep_no_buffer_alive():
    x = device(array(100))
    reference = buffers[x.uop.base]
    t = x + 1
    engine.realize(t)
    alive = reference.uop_refcount
    del x, t
    gc.collect()
    assert reference.uop_refcount == alive - 1 == 0


def test_memory_is_flat_over_many_calls():
    x = device(array(50))

    def run():
        for _ in range(20):
            engine.realize((x * 2).softmax())

    run()
    gc.collect()
    before = GlobalCounters.mem_used
    run()
    gc.collect()
    assert GlobalCounters.mem_used == before


def test_four_threads():
    errors = []

    def work(seed):
        rng = np.random.default_rng(seed)
        try:
            for n in range(15):
                x = rng.normal(size=(4 + n % 3, 8)).astype("float32")
                t = device(x)
                y = (t.softmax(-1) @ t.transpose()).relu()
                expected = np.maximum(softmax(x) @ x.T, 0)
                np.testing.assert_allclose(y.numpy(), expected, atol=1e-5)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors


def test_scratch_is_placed_without_overlap():
    heap = lowering._Heap()
    live, rng = {}, np.random.default_rng(1)
    for step in range(400):
        if live and rng.random() < 0.5:
            offset = list(live)[rng.integers(len(live))]
            heap.give(offset, live.pop(offset))
        else:
            size = int(rng.integers(1, 9)) * 256
            offset = heap.take(size)
            for other, length in live.items():
                assert offset + size <= other or other + length <= offset
            live[offset] = size
            assert offset + size <= heap.peak
    for offset in list(live):
        heap.give(offset, live.pop(offset))
    assert heap._free == [(0, heap.peak)]


def test_after_a_read_the_graph_is_whole():
    x = device(array(5))
    y = x.square()
    y.numpy()
    assert y.uop.op is Ops.MUL
    (gradient,) = y.sum().gradient(x)
    np.testing.assert_allclose(gradient.numpy(), 2 * x.numpy(), rtol=1e-6)
