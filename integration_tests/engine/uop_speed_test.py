"""The faster forms of tinygrad's node functions say what tinygrad's say."""

import numpy as np
import pytest
from tinygrad import Context
from tinygrad import Tensor
from tinygrad import dtypes
from tinygrad.uop import Ops
from tinygrad.uop.ops import UOp

from keras.src.backend.tinygrad.engine.internals import Device
from keras.src.backend.tinygrad.engine.internals import do_to_program
from keras.src.backend.tinygrad.engine.internals import graph_rewrite
from keras.src.backend.tinygrad.engine.internals import ops_module
from keras.src.backend.tinygrad.engine.internals import pm_resolve_linear_call
from keras.src.backend.tinygrad.engine.internals import pm_schedule
from keras.src.backend.tinygrad.engine.internals import transform_to_call
from keras.src.backend.tinygrad.engine.transfer import from_numpy

ORIGINALS = Tensor._keras_originals


def original(name):
    (found,) = [f for (_, key), f in ORIGINALS.items() if key == name]
    return found


def outcome(fn, *args):
    try:
        return fn(*args)
    except Exception as error:
        return type(error), str(error)


def check(uop):
    for node in uop.toposort():
        args = (node.op, node.src, node.arg)
        assert outcome(ops_module.dtype_from_uop, *args) == outcome(
            original("dtype_from_uop"), *args
        ), node
        assert node._shape == outcome(original("fxn"), node), node


def device(*shape, dtype="float32"):
    array = np.random.default_rng(0).normal(size=shape) * 3
    return from_numpy(array.astype(dtype), "CPU")


def graphs():
    x, w = device(4, 6), device(6, 3)
    h = (x @ w).relu()
    yield h.softmax(-1).sum()
    (g,) = h.softmax(-1).square().mean().gradient(w)
    yield g
    yield x.max(0).argmax()
    yield (x > 0).where(x, 2) + Tensor(3.0)
    yield x.cast(dtypes.int8) * 3 + x.cast(dtypes.uint16) // 2
    yield x.pad(((1, 2), (0, 1)))[1:, ::2].flip(0).permute(1, 0)
    yield (x.half() + 1).exp() + x.double().sin().sum(1, keepdim=True)
    yield x[:, device(2, dtype="int32").abs()].cat(x, dim=1)
    yield (x < 1) | (x > 2)
    yield (x.cast("int32") << 1) ^ 5
    yield x.assign(x * 2)
    yield Tensor.rand(3, 4, device="CPU") + x.reshape(2, 3, 4)


@pytest.mark.parametrize("index", range(len(list(graphs()))))
def test_nodes_of_graphs(index):
    check(list(graphs())[index].uop)


def test_nodes_of_schedules_and_kernels():
    for tensor in graphs():
        call, _ = transform_to_call(UOp.sink(tensor.uop))
        check(call)
        linear = graph_rewrite(call, pm_schedule, enter_calls=True)
        linear = graph_rewrite(linear, pm_resolve_linear_call)
        check(linear)
        for kernel in linear.src[:3]:
            if kernel.src[0].op is Ops.SINK:
                ast = kernel.src[0]
                check(do_to_program(ast, Device["CPU"].renderer))


def test_errors_are_tinygrads():
    x, y = device(2, 3).uop, device(4, 3).uop
    five, minus = UOp.const(5), UOp.const(-6)
    bad = [
        lambda: UOp(Ops.ADD, src=(x, y)),
        lambda: UOp(Ops.RESHAPE, src=(x, five)),
        lambda: UOp(Ops.RESHAPE, src=(x, minus)),
        lambda: UOp(Ops.PERMUTE, src=(x,), arg=(0, 0)),
        lambda: UOp(Ops.PERMUTE, src=(x,), arg=(1,)),
        lambda: UOp(Ops.PERMUTE, src=(x,), arg=(1, 2)),
        lambda: UOp(Ops.REDUCE, src=(x,), arg=(Ops.ADD, 3)),
        lambda: UOp(Ops.SHL, src=(x, x)),
    ]
    for make in bad:
        dtype_error = outcome(make)
        if isinstance(dtype_error, tuple):
            continue
        node = dtype_error
        assert outcome(lambda: node._shape) == outcome(original("fxn"), node)
        assert isinstance(outcome(original("fxn"), node), tuple)


@pytest.mark.parametrize(
    "shapes",
    [
        [(), ()],
        [(3,), (1,)],
        [(2, 1, 4), (3, 1)],
        [(1, 1), (1,)],
        [(0, 3), (1, 3)],
        [(0,), (1,)],
        [(5,), ()],
    ],
)
def test_broadcasting(shapes):
    uops = [
        UOp.param(i, dtypes.float32, shape) for i, shape in enumerate(shapes)
    ]
    node = UOp(Ops.MUL, src=tuple(uops))
    assert node._shape == original("fxn")(node) == np.broadcast_shapes(*shapes)


@pytest.mark.parametrize("dtype", [None, "float64", dtypes.uint8])
@pytest.mark.parametrize(
    "arguments", [(5,), (5.0,), (2, 7), (5, 0, -2), (0.5, 3), (0,), (True,)]
)
def test_arange_is_tinygrads(arguments, dtype):
    ours = Tensor.arange(*arguments, dtype=dtype)
    assert ours.uop is original("arange")(*arguments, dtype=dtype).uop
    again = Tensor.arange(*arguments, dtype=dtype)
    assert ours.uop is again.uop and ours is not again


def test_arange_follows_the_default_dtypes():
    assert Tensor.arange(3).dtype == dtypes.int32
    with Context(DEFAULT_INT="int64"):
        assert Tensor.arange(3).dtype == dtypes.int64
