"""Values that are stored are computed once, and stay the same values."""

import numpy as np
from tinygrad import Tensor

from keras.src.backend.tinygrad.engine.gemm import matmul
from keras.src.backend.tinygrad.engine.internals import Ops
from keras.src.backend.tinygrad.engine.internals import UOp
from keras.src.backend.tinygrad.engine.realize import realize
from keras.src.backend.tinygrad.engine.sharing import read_stored
from keras.src.backend.tinygrad.engine.transfer import from_numpy
from keras.src.backend.tinygrad.engine.transfer import to_numpy

RNG = np.random.default_rng(0)


def normal(*shape):
    return RNG.normal(size=shape)


def count(roots, op):
    return sum(u.op is op for u in UOp.sink(*roots).toposort())


def test_other_readers_read_what_is_stored():
    x = from_numpy(normal(6, 4), "CPU")
    value = x.exp()
    roots = [value.contiguous().uop, (value + 1).uop, value.sum().uop]
    shared = read_stored(roots)
    assert count(shared, Ops.EXP2) == 1
    assert count(shared, Ops.CONTIGUOUS) == 1
    computed = [u for u in UOp.sink(*shared).toposort() if u.op is Ops.EXP2]
    readers = [
        u
        for u in UOp.sink(*shared).toposort()
        if computed[0] in u.src and u.op is not Ops.EXP2
    ]
    assert {u.op for u in readers} <= {Ops.RESHAPE, Ops.CONTIGUOUS}


def test_stored_in_two_shapes_is_stored_once():
    x = from_numpy(normal(6, 4), "CPU")
    value = x * x
    roots = [
        value.reshape(24).contiguous().uop,
        value.reshape(3, 8).contiguous().uop,
    ]
    assert count(roots, Ops.CONTIGUOUS) == 2
    shared = read_stored(roots)
    assert count(shared, Ops.CONTIGUOUS) == 1
    assert [u.shape for u in shared] == [(24,), (3, 8)]


def test_nothing_stored_changes_nothing():
    x = from_numpy(normal(6, 4), "CPU")
    roots = [(x + 1).uop, x.contiguous().uop, x.T.contiguous().uop]
    assert read_stored(roots) is roots


def test_values_and_gradients_stay():
    a, b, c = normal(5, 6), normal(6, 7), normal(7)

    def step(a, b, c, mm):
        z = mm(a, b) + c
        y = (z * z.sigmoid()).reshape(5, 7)
        loss = (mm(y, mm(b.transpose(), a.transpose())) * y.sum()).sum()
        return [y, *loss.gradient(a, b, c)]

    tensors = [from_numpy(v, "CPU") for v in (a, b, c)]
    got = step(*tensors, matmul)
    realize(*got)
    tensors = [from_numpy(v, "CPU") for v in (a, b, c)]
    want = step(*tensors, Tensor.matmul)
    for g, w in zip(got, want):
        np.testing.assert_allclose(
            to_numpy(g), to_numpy(w), rtol=1e-11, atol=1e-11
        )
