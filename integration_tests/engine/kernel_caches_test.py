"""Kernels built for shapes are dropped, and built again as they were."""

import gc

import numpy as np
import pytest

import keras
from keras.src.backend.tinygrad import engine
from keras.src.backend.tinygrad.engine import gates
from keras.src.backend.tinygrad.engine import recent
from keras.src.backend.tinygrad.engine import remat
from keras.src.backend.tinygrad.engine import scan_kernel
from keras.src.backend.tinygrad.engine.lowering import expansions
from keras.src.backend.tinygrad.engine.realize import _plans
from keras.src.backend.tinygrad.engine.transfer import from_numpy
from keras.src.backend.tinygrad.engine.transfer import to_numpy

CACHES = {
    "gates": gates._sink,
    "remat": remat._kernel,
    "scan_kernel": scan_kernel._kernel,
}


@pytest.mark.parametrize("name", CACHES)
def test_there_is_a_bound(name):
    assert CACHES[name].cache_parameters()["maxsize"] <= 1024


def test_many_shapes_stay_within_it():
    for size in range(1, 400):
        remat._kernel(size, from_numpy(np.ones(1, "float32"), "CPU").dtype)
    information = remat._kernel.cache_info()
    assert information.currsize <= information.maxsize < 399


def test_a_kernel_built_again_finds_its_plan():
    rng = np.random.default_rng(0)
    x, recurrent = rng.normal(size=(2, 3, 20)).astype("float32")
    c = rng.normal(size=(3, 5)).astype("float32")

    def run():
        inputs = [from_numpy(value, "CPU") for value in (x, recurrent, c)]
        return [to_numpy(y) for y in gates.lstm_gates(*inputs)]

    first = run()
    plans = len(_plans)
    gates._sink.cache_clear()
    for again, before in zip(run(), first):
        np.testing.assert_array_equal(again, before)
    assert len(_plans) == plans
    i, f, g, o = np.split(x + recurrent, 4, axis=-1)

    def sigmoid(z):
        return 1 / (1 + np.exp(-z))

    carry = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    np.testing.assert_allclose(first[1], carry, rtol=1e-4, atol=1e-6)


def test_loops_that_are_gone_leave_nothing(monkeypatch):
    monkeypatch.setattr(scan_kernel, "_calls", lambda program: None)
    before = set(expansions)
    for length in (2, 3, 4):
        xs = from_numpy(np.ones((length, 2), "float32"), "CPU")
        last, ys = keras.ops.scan(lambda c, x: (c + x, c), xs[0], xs)
        assert to_numpy(last).tolist() == [length + 1] * 2
    assert set(expansions) - before
    del xs, ys, last
    engine.clear_caches()
    gc.collect()
    assert set(expansions) == before


def test_what_is_cleared_is_made_again():
    made = []
    table = recent.Recent(2)
    for key in (1, 2, 1, 3, 1, 2):
        assert table.get(key, lambda: made.append(key) or -key) == -key
    # 2 was used before 1 when 3 came.
    assert made == [1, 2, 3, 2] and len(table) == 2
    recent.clear()
    assert len(table) == 0 and len(_plans) == 0
