"""Gradients of lazy graphs: taken, and declared by their products."""

import math

from tinygrad import Tensor

from keras.src.backend.tinygrad.engine.internals import Ops
from keras.src.backend.tinygrad.engine.internals import UOp
from keras.src.backend.tinygrad.engine.internals import compute_gradient

_NAME = "custom_vjp"


def gradients(loss, targets):
    """Differentiates a scalar.

    Args:
        loss: Floating `Tensor` of shape `()`.
        targets: List of `Tensor`s that `loss` may depend on.

    Returns:
        List with one lazy `Tensor` of the target's shape and dtype for each
        target, or `None` where `loss` does not depend on it.

    Raises:
        ValueError: If `loss` is not a floating scalar.
    """
    if loss.shape != () or not loss.is_floating_point():
        raise ValueError(
            "Only a floating scalar has a gradient. Expected a loss of shape "
            f"(), received shape {loss.shape} and dtype {loss.dtype}. Reduce "
            "the loss, for example with `keras.ops.mean`."
        )
    uops = [t.uop for t in targets]
    found = compute_gradient(loss.uop, loss.uop.const_like(1), set(uops))
    return [
        Tensor(found[u]).cast(t.dtype) if u in found else None
        for u, t in zip(uops, targets)
    ]


def plain(uops):
    """Takes declared gradients out of a graph that needs none any more.

    Args:
        uops: List of uops.

    Returns:
        List of uops of the same values.
    """
    values = {}
    for uop in UOp.sink(*uops).toposort(enter_calls=False):
        if uop.op is Ops.GETTUPLE and uop.src[0].arg.name == _NAME:
            values[uop] = uop.src[0].src[1 + uop.arg].reshape(uop.shape)
    if not values:
        return list(uops)
    return list(UOp.sink(*uops).substitute(values).src)


def custom_vjp(outputs, inputs, vjp):
    """Replaces the gradient of `outputs` with respect to `inputs`.

    Args:
        outputs: List of floating `Tensor`s, of any shapes.
        inputs: List of `Tensor`s, of any shapes; gradients flow to these
            alone, not along the graph that leads from them to `outputs`.
        vjp: Function of a list with one cotangent for each output: a `Tensor`
            of its shape and dtype, or `None` where none arrives (an only
            output always gets one). It returns a list with one `Tensor` of
            the input's shape, or `None`, for each input. It must not hold
            what is returned here: the graph holds the function, and tinygrad
            the graph, so that neither would ever be freed.

    Returns:
        List of `Tensor`s with the values of `outputs`.
    """
    sources = [t.uop for t in (*outputs, *inputs)]

    def gradient(*cotangents, call=None):
        # tinygrad passes the call by name or last, as the cotangents are
        # several or one.
        if call is None:
            *cotangents, call = cotangents
        arrived = [None] * len(outputs)
        for cotangent in cotangents:
            index = len(cotangent.shape) - 1
            shape = outputs[index].shape
            arrived[index] = Tensor(cotangent).reshape(shape)
        # Where another graph took the place of an argument, it takes its
        # place in the products too.
        moved = {
            old: new
            for old, new in zip(sources, call.src[1:])
            if old is not new
        }
        return (None,) * len(outputs) + tuple(
            None if g is None else _moved(g.cast(t.dtype).uop, moved)
            for g, t in zip(vjp(arrived), inputs)
        )

    # The body passes the outputs through; the inputs are arguments only so
    # that gradients reach them. A gradient function gets the cotangents that
    # exist, without the positions of their outputs: their rank tells those.
    body = UOp.maketuple(
        *[
            t.uop.param_like(i).reshape((1,) * i + (math.prod(t.shape),))
            for i, t in enumerate(outputs)
        ]
    )
    call = body.call(*sources, grad_fxn=gradient, name=_NAME)
    return [
        Tensor(call.gettuple(i)).reshape(t.shape) for i, t in enumerate(outputs)
    ]


def _moved(uop, moved):
    return uop.substitute(moved, walk=True) if moved else uop
