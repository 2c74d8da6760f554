"""How the table calls the ops that take or return functions, or no array.

A reference runs in a process of its own, so what an op is given has to be
pickled: the functions are those of this module, by name, and what they are
applied to comes as further arguments.
"""

import functools

import numpy as np

import keras


def halved_and_one(x):
    return 0.5 * x + 1.0


def sines(x):
    return keras.ops.sin(x)


def weighted_sum(x):
    return keras.ops.sum(x * x, axis=-1)


def pair(x):
    return x + 1.0, x * x


def total_of_two(xs):
    return xs[0] * xs[1] + xs[0]


def product(x, y):
    return x * y + 0.5 * y


def difference(x, y):
    return x - keras.ops.sin(y)


def inner_product(x, y):
    return keras.ops.sum(x * y, axis=-1)


def two_results(x, y):
    return keras.ops.sin(x) * y, x + y


def two_results_and_more(x, y):
    return (x * y, keras.ops.cos(y)), x


def averaging_step(carry, x):
    carry = 0.5 * carry + x
    return carry, carry * x


def step_without_inputs(carry, _):
    carry = 0.5 * carry + 1.0
    return carry, carry * carry


def step_of_two(carry, xs):
    total, scale = carry
    return (total + scale * xs[0], 0.9 * scale), total * xs[1]


def add(x, y):
    return x + y


def larger(x, y):
    return keras.ops.maximum(x, y)


def composed(f, g):
    """The linear function that is `f`, then `g`."""
    return f[0] * g[0], g[0] * f[1] + g[1]


def add_counter(i, x):
    return 0.5 * x + keras.ops.cast(i, x.dtype)


def count_is_low(i, x):
    return i < 4


def counted(i, x):
    return i + 1, 0.5 * x + 1.0


def sum_is_low(x):
    return keras.ops.sum(x) < 20.0


def doubled(x):
    return (2.0 * x,)


def exponential(x):
    """With the derivative that it has."""
    y = keras.ops.exp(x)
    return y, _gradient(lambda upstream: upstream * y)


def tripled_derivative(x):
    """With another gradient than its derivative."""
    return x * x, _gradient(lambda upstream: 3.0 * upstream)


def _gradient(fn):
    """A gradient as every backend calls it: jax without a name."""

    def gradient(*args, upstream=None):
        return fn(args[-1] if upstream is None else upstream)

    return gradient


def _cond(pred, true_fn, false_fn, *operands):
    return keras.ops.cond(
        pred, lambda: true_fn(*operands), lambda: false_fn(*operands)
    )


def _applied(name, fn, *args, **settings):
    """Calls what an op makes of a function."""
    return getattr(keras.ops, name)(fn, **settings)(*args)


def _jvp(fun, primals, tangents, has_aux=False):
    if keras.backend.backend() == "torch":
        # It takes no arrays.
        primals, tangents = keras.tree.map_structure(
            keras.ops.convert_to_tensor, (primals, tangents)
        )
    if keras.backend.backend() != "numpy":
        return keras.ops.linalg.jvp(fun, primals, tangents, has_aux)
    # The numpy backend has none: differences, in float64.
    primals = [np.asarray(x, "float64") for x in primals]
    steps = [1e-6 * np.asarray(x, "float64") for x in tangents]
    results = [
        fun(*(x + sign * step for x, step in zip(primals, steps)))
        for sign in (0, 1, -1)
    ]
    values, *moved = [r[0] for r in results] if has_aux else results
    derivatives = keras.tree.map_structure(
        lambda high, low: (high - low) / 2e-6, *moved
    )
    aux = (results[0][1],) if has_aux else ()
    return values, derivatives, *aux


def _of_tensor(name, x):
    """Asks about a tensor; NumPy's arrays are all alike."""
    if isinstance(x, np.ndarray):
        x = keras.ops.convert_to_tensor(x)
    return getattr(keras.ops, name)(x)


# What the table calls in place of `keras.ops.<name>`.
ADAPTERS = {
    "cond": _cond,
    "linalg.jvp": _jvp,
    **{
        name: functools.partial(_applied, name)
        for name in ("custom_gradient", "vectorize")
    },
    **{
        name: functools.partial(_of_tensor, name)
        for name in ("dtype", "is_tensor", "ndim", "shape", "size")
    },
}
