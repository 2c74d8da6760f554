"""Gradients of lazy graphs: taken, and declared by their products."""

from tinygrad import Tensor

from keras.src.backend.tinygrad.engine.internals import UOp
from keras.src.backend.tinygrad.engine.internals import compute_gradient


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


def custom_vjp(outputs, inputs, vjp):
    """Replaces the gradient of `outputs` with respect to `inputs`.

    Args:
        outputs: List of floating `Tensor`s, of any shapes.
        inputs: List of `Tensor`s, of any shapes; gradients flow to these
            alone, not along the graph that leads from them to `outputs`.
        vjp: Function of a list with one cotangent for each output (`Tensor`
            of its shape and dtype, zeros where none arrives). It returns a
            list with one `Tensor` of the input's shape, or `None`, for each
            input.

    Returns:
        List of `Tensor`s with the values of `outputs`.
    """
    return [
        _with_vjp(output, inputs, _one_cotangent(vjp, outputs, i))
        for i, output in enumerate(outputs)
    ]


def _one_cotangent(vjp, outputs, index):
    # A product is linear in its cotangents, so each output may send its own:
    # tinygrad does not tell a call which of its outputs were used.
    def product(cotangent):
        cotangents = [t.const_like(0) for t in outputs]
        cotangents[index] = cotangent
        return vjp(cotangents)

    return product


def _with_vjp(output, inputs, product):
    def gradient(cotangent, call):
        grads = product(Tensor(cotangent))
        return (None,) + tuple(
            None if g is None else g.cast(t.dtype).uop
            for g, t in zip(grads, inputs)
        )

    # The body passes the output through; the inputs are arguments only so
    # that gradients reach them.
    body = UOp.maketuple(output.uop.param_like(0))
    call = body.call(
        output.uop,
        *[t.uop for t in inputs],
        grad_fxn=gradient,
        name="custom_vjp",
    )
    return Tensor(call.gettuple(0))
