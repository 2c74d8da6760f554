"""`scan` and its relatives: values, gradients, and one trace for all steps."""

import numpy as np
import pytest
from tinygrad import Tensor
from tinygrad import Variable

import keras
from keras import ops
from keras.src import backend
from keras.src.backend.tinygrad import engine
from keras.src.backend.tinygrad.core import remat
from keras.src.backend.tinygrad.engine import scan_kernel
from keras.src.backend.tinygrad.engine.gradient import gradients
from keras.src.backend.tinygrad.engine.plan import Plan
from keras.src.backend.tinygrad.engine.transfer import from_numpy
from keras.src.backend.tinygrad.engine.transfer import to_numpy


def normal(*shape):
    return np.random.default_rng(sum(shape)).normal(size=shape)


def tensor(array):
    return from_numpy(np.asarray(array), "CPU")


@pytest.fixture(params=["kernel", "launches"])
def road(request, monkeypatch):
    """Runs a test on the CPU's road and on that of other devices."""
    if request.param == "launches":
        monkeypatch.setattr(scan_kernel, "_calls", lambda program: None)


def check_gradients(function, *arrays):
    """Compares a scalar function's gradients with finite differences."""
    tensors = [tensor(a) for a in arrays]
    found = [to_numpy(g) for g in gradients(function(*tensors), tensors)]
    for i, array in enumerate(arrays):
        direction = normal(*array.shape, 7)[..., 0]
        ends = []
        for sign in (1, -1):
            moved = list(tensors)
            moved[i] = tensor(array + sign * 1e-6 * direction)
            ends.append(float(to_numpy(function(*moved))))
        slope = (ends[0] - ends[1]) / 2e-6
        np.testing.assert_allclose(
            (found[i] * direction).sum(), slope, rtol=1e-6, atol=1e-8
        )


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("size", [3, 8])
def test_scan_gradients(road, reverse, size):
    def function(start, xs, weights, bias):
        def step(carry, x):
            new = ops.tanh(ops.matmul(carry, weights) + x + bias)
            return new, carry * x

        last, ys = ops.scan(step, start, xs, reverse=reverse)
        return ops.sum(last * last) + ops.sum(ys * ys * ys)

    check_gradients(
        function,
        normal(2, size),
        normal(5, 2, size),
        normal(size, size) * 0.3,
        normal(size),
    )


def test_scan_matches_a_plain_loop(road):
    xs = normal(6, 3).astype("float32")

    def step(carry, x):
        (a, n) = carry
        return (a * 0.5 + x["x"], n + 1), {"before": a, "count": n}

    start = (np.zeros(3, "float32"), np.int32(0))
    (last, count), ys = ops.scan(step, start, {"x": xs}, reverse=True)
    carry, before = np.zeros(3), []
    for x in xs[::-1]:
        before.insert(0, carry)
        carry = carry * 0.5 + x
    np.testing.assert_allclose(to_numpy(last), carry, rtol=1e-6)
    np.testing.assert_allclose(to_numpy(ys["before"]), before, atol=1e-6)
    assert int(count) == 6
    assert to_numpy(ys["count"]).tolist() == [5, 4, 3, 2, 1, 0]


def test_no_steps_give_empty_results():
    state = keras.Variable(np.zeros(2))

    def step(carry, x):
        state.assign_add(x)
        return carry + x, (x * 2, ops.cast(x[0], "int32"))

    carry, (doubled, first) = ops.scan(step, np.ones(2), np.ones((0, 2)))
    np.testing.assert_array_equal(carry, [1, 1])
    assert doubled.shape == (0, 2) and first.shape == (0,)
    assert backend.standardize_dtype(first.dtype) == "int32"
    np.testing.assert_array_equal(state, [0, 0])
    for name in ("map", "vectorized_map"):
        mapped = getattr(ops, name)(lambda x: x[None] + 1, np.ones((0, 2)))
        assert mapped.shape == (0, 1, 2)


def test_body_is_traced_once_and_compiled_once():
    calls = []

    def step(carry, x):
        calls.append(1)
        return carry * 0.25 + x, carry

    for length in (10, 1000):
        del calls[:]
        xs = np.ones((length, 5), "float32")
        last, _ = ops.scan(step, np.zeros(5, "float32"), xs)
        np.testing.assert_allclose(to_numpy(last), 4 / 3, rtol=1e-6)
        assert len(calls) == 1


def test_nested_scans_differentiate():
    def function(start, xs):
        def inner(carry, x):
            return carry * 0.5 + x * x, carry

        def outer(carry, x):
            return ops.scan(inner, carry, x)

        last, ys = ops.scan(outer, start, xs)
        return ops.sum(last * last) + ops.sum(ys * ys)

    check_gradients(function, normal(3), normal(4, 2, 3))


@pytest.mark.parametrize("size", [1, 2, 40])
def test_unused_slices_may_have_any_shape(road, size):
    xs = np.arange(3, dtype="float32"), np.ones((3, size), "float32")
    last, _ = ops.scan(lambda c, x: (c + x[0], c), np.float32(0), xs)
    assert float(last) == 3


def test_carries_that_trade_places():
    def step(carry, _):
        a, b = carry
        return (b, a + b), a

    _, ys = ops.scan(step, (np.int32(0), np.int32(1)), length=9)
    assert to_numpy(ys).tolist() == [0, 1, 1, 2, 3, 5, 8, 13, 21]


def test_integer_carry_becomes_floating():
    result = ops.fori_loop(0, 3, lambda i, x: x * 0.5, 8)
    assert backend.standardize_dtype(result.dtype) == "float32"
    assert float(result) == 1.0


def test_variables_are_carried_from_step_to_step():
    total = keras.Variable(np.zeros(2, "float32"))

    def step(carry, x):
        total.assign(total + x)
        return carry, total.value

    _, ys = ops.scan(step, np.float32(0), np.ones((4, 2), "float32"))
    assert to_numpy(ys)[:, 0].tolist() == [1, 2, 3, 4]
    assert to_numpy(total.value).tolist() == [4, 4]


class Penalized(keras.layers.Layer):
    """Adds a loss with an activity regularizer, and one of its own."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(2, activity_regularizer="l2")

    def build(self, shape):
        self.dense.build(shape)

    def call(self, x):
        self.add_loss(ops.sum(ops.tanh(x)))
        return self.dense(x)


class Mapped(keras.layers.Layer):
    """Calls a layer for each step, in a loop or one by one."""

    def __init__(self, layer, loop):
        super().__init__()
        self.layer, self.loop = layer, loop

    def call(self, x):
        if self.loop:
            return ops.map(self.layer, x)
        return ops.stack([self.layer(v) for v in x])


def test_losses_of_a_body_are_summed_up():
    x = normal(4, 3, 2).astype("float32")
    layer = Penalized()
    layer.build(x.shape[1:])

    def losses_and_gradients(loop):
        mapped = Mapped(layer, loop)
        values = [tensor(v) for v in layer.get_weights()]
        pairs = list(zip(layer.trainable_variables, values))
        with keras.StatelessScope(pairs, collect_losses=True):
            y = mapped(x)
            losses = [sum(mapped.losses), sum(layer.dense.losses)]
        total = losses[0] + ops.sum(y * y)
        return [to_numpy(g) for g in (*losses, *gradients(total, values))]

    for mine, expected in zip(*map(losses_and_gradients, (True, False))):
        np.testing.assert_allclose(mine, expected, rtol=1e-5)
    mapped = Mapped(layer, True)
    mapped(x)
    assert len(mapped.losses) == 2
    eager = float(sum(mapped.losses))
    Mapped(layer, False)(x)
    np.testing.assert_allclose(eager, float(sum(layer.losses)), rtol=1e-5)


def test_losses_of_a_body_outside_all_layers_are_of_the_last_step():
    layer = Penalized()
    x = normal(3, 2, 2).astype("float32")
    ops.map(layer, x)
    total = float(sum(layer.losses))
    layer(x[-1])
    np.testing.assert_allclose(total, float(sum(layer.losses)), rtol=1e-6)


def test_time_distributed_calls_its_layer_once():
    calls = []

    class Counted(keras.layers.Layer):
        def call(self, x):
            calls.append(1)
            return x * 2

    layer = keras.layers.TimeDistributed(Counted())
    for length in (10, 1000):
        x = normal(2, length, 3).astype("float32")
        layer(x)
        del calls[:]
        np.testing.assert_array_equal(to_numpy(layer(x)), 2 * x)
        assert len(calls) == 1


def test_random_numbers_differ_from_step_to_step():
    generator = keras.random.SeedGenerator(0)
    drawn = ops.map(
        lambda x: keras.random.uniform((3,), seed=generator), np.ones(5)
    )
    assert len(np.unique(to_numpy(drawn))) == 15


def test_body_that_reads_values_runs_step_by_step():
    xs = np.arange(4, dtype="int32")
    _, ys = ops.scan(lambda c, x: (c, np.int32(2 ** int(x))), 0, xs)
    assert to_numpy(ys).tolist() == [1, 2, 4, 8]


def test_scan_inside_a_compiled_step():
    weights = keras.Variable(np.full((3,), 0.5, "float32"))

    def function(inputs):
        last, _ = ops.scan(lambda c, x: (c * weights + x, c), inputs[0], inputs)
        return last, []

    step = engine.compile_step(function)
    for seed in range(3):
        xs = normal(5, 3 + 0 * seed).astype("float32") + seed
        expected = xs[0]
        for x in xs:
            expected = expected * 0.5 + x
        np.testing.assert_allclose(to_numpy(step(xs)), expected, rtol=1e-5)


def test_while_loop_differentiates():
    def function(x, factor):
        _, y = ops.while_loop(
            lambda i, y: ops.sum(ops.abs(y)) < 50.0,
            lambda i, y: (i + 1, y * factor),
            (0, x),
        )
        return ops.sum(y * y)

    check_gradients(function, normal(4), np.full((1,), 1.3))


def test_while_loop_ends():
    count = ops.while_loop(lambda i: i < 7, lambda i: i + 2, 0)
    assert int(count) == 8
    count = ops.while_loop(lambda i: i < 0, lambda i: i + 2, 0)
    assert int(count) == 0
    count = ops.while_loop(
        lambda i: i < 100, lambda i: i + 2, 0, maximum_iterations=3
    )
    assert int(count) == 6


def test_decomposition_of_what_a_loop_carries():
    eye = np.eye(3, dtype="float32")
    xs = eye * np.array([2.0, 3.0], "float32")[:, None, None]

    def step(carry, x):
        return ops.cholesky(carry), ops.cholesky(x)

    last, ys = ops.scan(step, 16 * eye, xs)
    np.testing.assert_allclose(to_numpy(last), 2 * eye, rtol=1e-6)
    np.testing.assert_allclose(to_numpy(ys), np.sqrt(xs), rtol=1e-6)
    np.testing.assert_allclose(
        to_numpy(ops.map(ops.cholesky, xs)), to_numpy(ys)
    )


def test_associative_scan_of_a_long_recurrence():
    n = 1500
    a = np.random.default_rng(0).uniform(0.5, 1.0, (n, 2))
    b = normal(n, 2)

    def function(a, b):
        _, y = ops.associative_scan(
            lambda x, y: (x[0] * y[0], x[1] * y[0] + y[1]), (a, b)
        )
        return y

    expected, value = [], np.zeros(2)
    for factor, term in zip(a, b):
        value = factor * value + term
        expected.append(value)
    found = to_numpy(function(tensor(a), tensor(b)))
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)
    check_gradients(lambda *x: ops.sum(function(*x) ** 2), a[:60], b[:60])


@pytest.mark.parametrize("count", [3, 200])
def test_while_loop_of_known_length_in_a_compiled_step(road, count):
    factor = keras.Variable(np.full((2,), 1.01, "float32"))
    traced = []

    def function(x):
        def body(i, j, y):
            traced.append(1)
            return i + j, j, y * factor

        _, _, y = ops.while_loop(lambda i, j, y: i < 2 * count, body, (0, 2, x))
        (slope,) = gradients(ops.sum(y), [factor.value])
        return [y, slope], []

    step = engine.compile_step(function)
    for value in (1.0, 1.02):
        factor.assign(np.full((2,), value, "float32"))
        x = normal(3, 2).astype("float32")
        y, slope = map(to_numpy, step(x))
        np.testing.assert_allclose(y, x * value**count, rtol=1e-4)
        np.testing.assert_allclose(
            slope, x.sum(0) * count * value ** (count - 1), rtol=1e-3
        )
    assert len(traced) < 10


def test_while_loop_that_depends_on_inputs_refuses_a_compiled_step():
    def function(x):
        return ops.while_loop(lambda y: ops.sum(y) < 9, lambda y: y * 2, x), []

    with pytest.raises(engine.HostReadError, match="run_eagerly"):
        engine.compile_step(function)(np.ones(2, "float32"))


def test_while_loop_inside_a_loop():
    def four_times(carry, x):
        _, y = ops.while_loop(
            lambda i, y: i < 4, lambda i, y: (i + 1, y * x), (0, carry)
        )
        return y, y

    def until_large(carry, x):
        y = ops.while_loop(lambda y: y < 10, lambda y: y * x, carry)
        return y / 10, y

    xs = np.array([1.5, 2.0, 3.0], "float32")
    _, ys = ops.scan(four_times, ops.ones(()), xs)
    np.testing.assert_allclose(to_numpy(ys), np.cumprod(xs**4), rtol=1e-5)
    _, ys = ops.scan(until_large, ops.ones(()), xs)
    expected, carry = [], 1.0
    for x in xs:
        while carry < 10:
            carry *= x
        expected.append(carry)
        carry /= 10
    np.testing.assert_allclose(to_numpy(ys), expected, rtol=1e-5)


def slope_along(function, arrays):
    """Returns a function's scalar slope along fixed directions, as a graph."""

    def slope(*tensors):
        found = gradients(function(*tensors), list(tensors))
        return sum(
            ops.sum(g * tensor(normal(*a.shape, 2)[..., 0]))
            for g, a in zip(found, arrays)
        )

    return slope


def test_second_gradients(road):
    def function(start, xs, weights):
        def step(carry, x):
            new = ops.tanh(ops.matmul(carry, weights) + x)
            return new, carry * x

        last, ys = ops.scan(step, start, xs)
        return ops.sum(last * last) + ops.sum(ys * ys * ys)

    arrays = normal(2, 3), normal(5, 2, 3), normal(3, 3) * 0.3
    check_gradients(slope_along(function, arrays), *arrays)


@pytest.mark.parametrize("make", [keras.layers.LSTM, keras.layers.GRU])
def test_second_gradients_of_fused_layers(make):
    keras.utils.set_random_seed(0)
    layer = make(3, bias_initializer="normal", dtype="float64")
    x = normal(2, 5, 4)
    layer(x)

    def function(x, *weights):
        values = list(zip(layer.trainable_variables, weights))
        with keras.StatelessScope(state_mapping=values):
            y = layer(x)
        return ops.sum(y * y * y)

    arrays = [x, *layer.get_weights()]
    check_gradients(slope_along(function, arrays), *arrays)


def test_forward_mode_goes_through_loops():
    def last(x):
        return ops.scan(lambda c, x: (c * 0.5 + x * x, c), np.zeros(3), x)[0]

    x, direction = normal(4, 3), normal(4, 3, 1)[..., 0]
    _, found = ops.jvp(last, (tensor(x),), (tensor(direction),))
    weights = 0.5 ** np.arange(3, -1, -1)
    expected = (weights[:, None] * 2 * x * direction).sum(0)
    np.testing.assert_allclose(to_numpy(found), expected, rtol=1e-12)


def test_remat_computes_again(monkeypatch):
    products = []
    run = Plan.run

    def counting(plan, inputs, var_vals=None):
        programs = [launch.program.arg.name for launch in plan.launches]
        products.append(sum("gemm" in name for name in programs))
        return run(plan, inputs, var_vals)

    monkeypatch.setattr(Plan, "run", counting)
    x, weights = tensor(normal(8, 8)), tensor(normal(8, 8) * 0.3)

    def function(x):
        return ops.tanh(ops.matmul(ops.tanh(ops.matmul(x, weights)), weights))

    results = []
    for f in (function, remat(function)):
        found = gradients(ops.sum(f(x) ** 2), [x, weights])
        engine.realize(*found)
        results.append([to_numpy(g) for g in found])
    for kept, again in zip(*results):
        np.testing.assert_allclose(kept, again, rtol=1e-12)
    assert products[1] > products[0] > 0


def test_custom_gradient_gets_all_cotangents():
    seen = []

    @ops.custom_gradient
    def double(x):
        def grad(*args, upstream=None):
            seen.append([to_numpy(g).tolist() for g in upstream])
            return upstream[0] * 10 + upstream[1] * 100

        return (x * 2, x * 3), grad

    x = tensor(np.ones(2))
    a, b = double(x)
    (g,) = gradients(ops.sum(a) + ops.sum(b * 2), [x])
    assert to_numpy(g).tolist() == [210, 210]
    (g,) = gradients(ops.sum(double(x)[1]), [x])
    assert to_numpy(g).tolist() == [100, 100]
    assert seen == [[[1, 1], [2, 2]], [[0, 0], [1, 1]]]


def test_a_bound_variable_in_the_body(road):
    x = normal(3, 2)
    for value in (2, 5):
        factor = Tensor(Variable("factor", 1, 9).bind(value))
        total, _ = ops.scan(
            lambda c, t: (c + t * factor, c),
            tensor(np.zeros(2)),
            tensor(x),
        )
        np.testing.assert_allclose(to_numpy(total), value * x.sum(0))
