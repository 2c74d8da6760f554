"""Gradients against central finite differences, in float64."""

import numpy as np

from keras import ops
from keras.src.backend.tinygrad.engine.gradient import gradients


def leaf(array):
    """Returns a float64 tensor with a buffer of its own."""
    return ops.convert_to_tensor(np.array(array, "float64"))


def check_gradient(fn, *arrays, tolerance=1e-6, step=1e-6):
    """Compares the gradient of a random projection of `fn`'s results.

    Args:
        fn: Function of float64 tensors that returns tensors, of which those
            that are floating count.
        *arrays: Where to differentiate, in all of them.
        tolerance: Largest difference, relative to `1 + |derivative|`.
        step: Of the finite differences.
    """
    rng = np.random.default_rng(7)
    weights = None

    def loss(tensors):
        nonlocal weights
        results = fn(*tensors)
        results = results if isinstance(results, (list, tuple)) else [results]
        results = [r for r in results if r.is_floating_point()]
        if weights is None:
            weights = [rng.normal(size=r.shape) for r in results]
        return sum((r * leaf(w)).sum() for r, w in zip(results, weights))

    tensors = [leaf(a) for a in arrays]
    found = [ops.convert_to_numpy(g) for g in gradients(loss(tensors), tensors)]
    for i, array in enumerate(arrays):
        direction = rng.normal(size=np.shape(array))
        values = []
        for sign in (1, -1):
            moved = list(arrays)
            moved[i] = array + sign * step * direction
            values.append(float(loss([leaf(a) for a in moved])))
        expected = (values[0] - values[1]) / (2 * step)
        actual = (found[i] * direction).sum()
        error = abs(actual - expected) / (1 + abs(expected))
        assert error < tolerance, f"argument {i}: {actual} and {expected}"
