"""Values computed again for the gradient rather than kept for it.

In a lazy graph the same value is the same node, however often it is used: so
that a part is really computed again, and not before its gradient is, its
inputs are copied by a kernel that also takes the cotangent.
"""

import functools

from tinygrad import Tensor

from keras.src.backend.tinygrad.engine.gradient import custom_vjp
from keras.src.backend.tinygrad.engine.internals import KernelInfo
from keras.src.backend.tinygrad.engine.internals import UOp
from keras.src.backend.tinygrad.engine.scan_body import close
from keras.src.backend.tinygrad.engine.scan_body import cotangents_of
from keras.src.backend.tinygrad.engine.scan_body import is_float
from keras.src.backend.tinygrad.engine.scan_body import placeholder
from keras.src.backend.tinygrad.engine.scan_body import written_buffers


def boundary(tensor):
    """Returns the tensor as a node of its own, for `rematerialize`."""
    return tensor.contiguous_backward()


def rematerialize(outputs, inputs, boundaries):
    """Makes the gradient of a part of a graph compute that part again.

    Args:
        outputs: List of floating `Tensor`s with a device.
        inputs: List of `Tensor`s with storage or a graph.
        boundaries: List of what `boundary` returned for them, over which
            `outputs` were computed.

    Returns:
        List of `Tensor`s with the values of `outputs`.
    """
    device = outputs[0].device
    places = {b.uop: placeholder(b.shape, b.dtype, device) for b in boundaries}
    body = close(
        (),
        tuple(places.values()),
        (),
        UOp.sink(*[t.uop for t in outputs])
        .substitute(
            {u: p.reshape(u.shape) for u, p in places.items()}, walk=True
        )
        .src,
        device,
    )
    shared = [Tensor(s) for s in body.sources]

    def vjp(cotangents):
        arrived = {
            placeholder(c.shape, c.dtype, device): (c, y)
            for c, y in zip(cotangents, body.ys)
            if c is not None
        }
        first, _ = next(iter(arrived.values()))
        copies = [_copy_after(t, first) for t in inputs]
        found = cotangents_of(
            body,
            [y for _, y in arrived.values()],
            [p.reshape(y.shape) for p, (_, y) in arrived.items()],
        )
        places = (*body.xs, *body.consts)
        values = dict(zip(places, [*copies, *shared]))
        values.update({p: c for p, (c, _) in arrived.items()})
        values = {p: t.reshape(-1).uop for p, t in values.items()}
        wanted = [p for p in places if p in found]
        gradients = UOp.sink(*[found[p] for p in wanted])
        for uop in written_buffers(gradients):
            values[uop] = UOp.new_buffer(uop.device, uop.max_numel(), uop.dtype)
        gradients = gradients.substitute(values, walk=True)
        found = dict(zip(wanted, map(Tensor, gradients.src)))
        return [
            found[p].reshape(t.shape) if p in found else None
            for p, t in zip(places, [*inputs, *shared])
            if is_float(p)
        ]

    differentiable = [t for t in [*inputs, *shared] if is_float(t.uop)]
    return custom_vjp(outputs, differentiable, vjp)


def _copy_after(tensor, other):
    """Copies a tensor, when another has been computed."""
    if tensor.device is None or other.device is None:
        return tensor.clone(device=tensor.device or other.device)
    target = Tensor.empty(
        tensor.numel(), dtype=tensor.dtype, device=tensor.device
    )
    arguments = [
        target.uop,
        tensor.contiguous().reshape(-1).uop,
        other.contiguous().reshape(-1).uop,
    ]
    call = _kernel(tensor.numel(), tensor.dtype).call(*arguments)
    return Tensor(target.uop.after(call)).reshape(tensor.shape)


@functools.lru_cache(maxsize=256)
def _kernel(size, dtype):
    target, source = (UOp.placeholder((size,), dtype, i) for i in range(2))
    i = UOp.range(size, 0)
    done = target[i].store(source[i].load()).end(i)
    return done.sink(arg=KernelInfo(name="copy_after"))
