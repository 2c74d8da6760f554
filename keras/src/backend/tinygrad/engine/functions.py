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


def traced_once(derivatives=None):
    """Decorator of a differentiable function of tensors.

    The function takes `Tensor`s by position, and by keyword settings that are
    hashable. It returns a `Tensor` or a tuple of them, depends on nothing
    else, and reads no values.

    Args:
        derivatives: For an elementwise function of floating `Tensor`s of one
            shape, without settings: function of the same `Tensor`s, then the
            result, which returns a list with the partial derivative by each
            of them. By default tinygrad differentiates the function's graph.

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
        # Typed: 1 and 1.0 are equal, and make other dtypes.
        @functools.lru_cache(maxsize=MAX_TRACES, typed=True)
        def trace(signature, **settings):
            parameters = [
                Tensor(UOp.param(i, *spec)) for i, spec in enumerate(signature)
            ]
            results = fn(*parameters, **settings)
            is_tuple = isinstance(results, tuple)
            results = results if is_tuple else (results,)
            return UOp.maketuple(*[t.uop for t in results]), is_tuple

        def build(xs, settings):
            results = fn(*xs, **settings)
            if derivatives is None:
                return results
            return custom_vjp(
                [results],
                xs,
                lambda arrived: products(arrived[0], xs, function(*xs)),
            )[0]

        @functools.wraps(fn)
        def function(*xs, **settings):
            devices = {x.device for x in xs} - {None}
            if not devices or not all(isinstance(d, str) for d in devices):
                # Numbers, computed while the graph is built; or shards.
                return build(xs, settings)
            body, is_tuple = trace(
                tuple([(x.dtype, x.shape, x.device) for x in xs]), **settings
            )
            call = body.call(
                *[x.uop for x in xs],
                grad_fxn=derivatives and gradient,
                name=fn.__name__,
            )
            if not is_tuple:
                return Tensor(call.gettuple(0))
            return tuple(Tensor(call.gettuple(i)) for i in range(len(body.src)))

        return function

    return decorate
