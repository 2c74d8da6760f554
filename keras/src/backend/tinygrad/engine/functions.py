"""Functions whose graphs are built once and called from then on.

tinygrad takes tens of microseconds of Python for each operation of a graph.
A function of many operations is therefore traced once for the shapes and
dtypes of its arguments, and a use of it adds one call to the graph. Schedules
see through the call: its operations fuse with those around it.
"""

import functools

from tinygrad import Tensor

from keras.src.backend.tinygrad.engine.gradient import custom_vjp
from keras.src.backend.tinygrad.engine.internals import UOp

# Traces kept for one function.
MAX_TRACES = 256


def traced_once(derivatives):
    """Decorator of a differentiable elementwise function of tensors.

    The function takes floating `Tensor`s of one shape and returns one of that
    shape. It depends on nothing else, and reads no values.

    Args:
        derivatives: Function of the same `Tensor`s, then the result, which
            returns a list with the partial derivative by each of them.

    Returns:
        Decorator.
    """

    def products(cotangent, inputs, result):
        partial = derivatives(*inputs, result)
        return [(cotangent * d).cast(x.dtype) for d, x in zip(partial, inputs)]

    def gradient(cotangent, call):
        inputs = [Tensor(u) for u in call.src[1:]]
        result = Tensor(call.gettuple(0))
        return tuple(g.uop for g in products(Tensor(cotangent), inputs, result))

    def decorate(fn):
        @functools.lru_cache(maxsize=MAX_TRACES)
        def trace(*signature):
            parameters = [
                Tensor(UOp.param(i, *spec)) for i, spec in enumerate(signature)
            ]
            return UOp.maketuple(fn(*parameters).uop)

        @functools.wraps(fn)
        def function(*xs):
            if all(x.device is None for x in xs):
                # Numbers, computed while the graph is built.
                return custom_vjp(
                    [fn(*xs)],
                    xs,
                    lambda arrived: products(arrived[0], xs, function(*xs)),
                )[0]
            body = trace(*[(x.dtype, x.shape, x.device) for x in xs])
            call = body.call(
                *[x.uop for x in xs], grad_fxn=gradient, name=fn.__name__
            )
            return Tensor(call.gettuple(0))

        return function

    return decorate
