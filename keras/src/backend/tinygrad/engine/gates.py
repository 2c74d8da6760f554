"""The elementwise part of a recurrent cell's step, in one kernel each way.

Written as tensors, each result of a step would be a kernel of its own, and
the gates would be computed again in each.
"""

import functools
import math

from tinygrad import Tensor
from tinygrad import dtypes

from keras.src.backend.tinygrad.engine.gradient import custom_vjp
from keras.src.backend.tinygrad.engine.internals import KernelInfo
from keras.src.backend.tinygrad.engine.internals import UOp
from keras.src.backend.tinygrad.engine.scan_body import differentiated_as


def lstm_gates(x, recurrent, c):
    """The step of an LSTM after its products.

    Args:
        x: `Tensor` of shape `(batch, 4 * units)`, the projected input, bias
            included, for the gates i, f, c and o.
        recurrent: `Tensor` of the same shape, the projected hidden state.
        c: `Tensor` of shape `(batch, units)`, the carry.

    Returns:
        Pair of `Tensor`s of shape `(batch, units)`: the new hidden state, and
        the new carry. They are differentiable in all arguments.
    """
    inputs = [x, recurrent, c]
    outputs = _kernel(_lstm_forward, inputs, (1, 1))

    def vjp(cotangents):
        cotangents = [
            t.const_like(0) if g is None else g
            for g, t in zip(cotangents, outputs)
        ]
        dz, dc = _derivatives(_lstm_backward, [*inputs, *cotangents], (4, 1))
        return [dz, dz, dc]

    return custom_vjp(outputs, inputs, vjp)


def gru_gates(x, recurrent, bias, h):
    """The step of a GRU with `reset_after=True` after its products.

    Args:
        x: `Tensor` of shape `(batch, 3 * units)`, the projected input, bias
            included, for the gates z, r and h.
        recurrent: `Tensor` of the same shape, the projected hidden state.
        bias: `Tensor` of shape `(3 * units,)`, added to `recurrent`.
        h: `Tensor` of shape `(batch, units)`, the hidden state.

    Returns:
        `Tensor` of shape `(batch, units)`, the new hidden state. It is
        differentiable in all arguments.
    """
    inputs = [x, recurrent, bias, h]
    outputs = _kernel(_gru_forward, inputs, (1,))

    def vjp(cotangents):
        arguments = [*inputs, *cotangents]
        dx, dr, dh = _derivatives(_gru_backward, arguments, (3, 3, 1))
        return [dx, dr, dr.sum(0), dh]

    return custom_vjp(outputs, inputs, vjp)[0]


def _derivatives(formula, inputs, widths):
    """Applies a formula as `_kernel` does, differentiably."""
    outputs = _kernel(formula, inputs, widths)

    return differentiated_as(
        outputs, inputs, lambda *parts: _as_tensors(formula, parts)
    )


def _as_tensors(formula, inputs):
    """Applies a formula to whole tensors."""
    dtype, units = inputs[-1].dtype, inputs[-1].shape[-1]
    wide = _wide(dtype)

    def reader(tensor):
        def read(gate=0):
            columns = tensor[..., gate * units : (gate + 1) * units]
            return columns.cast(wide)

        return read

    return [
        gates[0].cat(*gates[1:], dim=-1).cast(dtype)
        for gates in formula(*map(reader, inputs))
    ]


def _kernel(formula, inputs, widths):
    """Applies a formula at each unit of each sample.

    Args:
        formula: Function of one function for each input, of the gate's
            number, that gives the uop at the unit, float32 or float64. It
            returns a list for each output, with a uop for each gate.
        inputs: List of `Tensor`s of shape `(batch, gates * units)`, or
            without the batch; the last one of shape `(batch, units)`.
        widths: Numbers of gates of the outputs.

    Returns:
        List of `Tensor`s of shape `(batch, gates * units)`.
    """
    shape, dtype = inputs[-1].shape, inputs[-1].dtype
    device = next(t.device for t in inputs if t.device is not None)
    inputs = [t.clone(device=device) if t.device is None else t for t in inputs]
    outputs = [
        Tensor.empty(shape[0], n * shape[1], dtype=dtype, device=device)
        for n in widths
    ]
    sink = _sink(
        formula,
        shape,
        tuple(t.shape for t in outputs),
        tuple(t.shape for t in inputs),
        dtype,
    )
    call = sink.call(*[t.uop for t in (*outputs, *inputs)])
    return [Tensor(t.uop.after(call)) for t in outputs]


@functools.lru_cache(maxsize=256)
def _sink(formula, shape, out_shapes, in_shapes, dtype):
    sample, unit = (UOp.range(size, i) for i, size in enumerate(shape))
    slots = [
        UOp.placeholder(s, dtype, slot)
        for slot, s in enumerate((*out_shapes, *in_shapes))
    ]
    outputs, inputs = slots[: len(out_shapes)], slots[len(out_shapes) :]

    def place(buffer, gate):
        column = gate * shape[1] + unit
        return (
            buffer[sample, column] if len(buffer.shape) == 2 else buffer[column]
        )

    wide = _wide(dtype)

    def reader(buffer):
        return lambda gate=0: place(buffer, gate).load().cast(wide)

    stores = [
        place(output, gate).store(value.cast(dtype))
        for output, values in zip(outputs, formula(*map(reader, inputs)))
        for gate, value in enumerate(values)
    ]
    done = UOp.group(*stores).end(sample, unit)
    return done.sink(arg=KernelInfo(name=formula.__name__.strip("_")))


def _wide(dtype):
    return dtypes.float64 if dtype == dtypes.float64 else dtypes.float32


def _sigmoid(x):
    return ((x * (-1 / math.log(2))).exp2() + 1).reciprocal()


def _tanh(x):
    return _sigmoid(x * 2) * 2 - 1


def _lstm_forward(x, recurrent, c):
    i, f, g, o = _lstm_activations(x, recurrent)
    new_c = f * c() + i * g
    return [[o * _tanh(new_c)], [new_c]]


def _lstm_activations(x, recurrent):
    i, f, g, o = (x(gate) + recurrent(gate) for gate in range(4))
    return _sigmoid(i), _sigmoid(f), _tanh(g), _sigmoid(o)


def _lstm_backward(x, recurrent, c, dh, dc):
    i, f, g, o = _lstm_activations(x, recurrent)
    t = _tanh(f * c() + i * g)
    d = dc() + dh() * o * (1 - t * t)
    dz = [
        d * g * i * (1 - i),
        d * c() * f * (1 - f),
        d * i * (1 - g * g),
        dh() * t * o * (1 - o),
    ]
    return [dz, [d * f]]


def _gru_forward(x, recurrent, bias, h):
    z, r, n, _ = _gru_activations(x, recurrent, bias)
    return [[z * h() + (1 - z) * n]]


def _gru_activations(x, recurrent, bias):
    s = [recurrent(gate) + bias(gate) for gate in range(3)]
    z, r = _sigmoid(x(0) + s[0]), _sigmoid(x(1) + s[1])
    return z, r, _tanh(x(2) + r * s[2]), s[2]


def _gru_backward(x, recurrent, bias, h, dh):
    z, r, n, s = _gru_activations(x, recurrent, bias)
    dn = dh() * (1 - z) * (1 - n * n)
    dz = dh() * (h() - n) * z * (1 - z)
    dr = dn * s * r * (1 - r)
    return [[dz, dr, dn], [dz, dr, dn * r], [dh() * z]]
