"""Comparisons with what other backends answered at edges and to bad input."""

import builtins
import traceback
from pathlib import Path

import numpy as np
import tinygrad

import keras
from integration_tests.ops.checks import Disagreement
from integration_tests.ops.checks import assert_close
from integration_tests.ops.reference import find
from integration_tests.ops.reference import split
from integration_tests.ops.reference import weights
from keras.src.backend.tinygrad.engine.gradient import gradients

TINYGRAD = Path(tinygrad.__file__).parent
KERAS = Path(keras.__file__).parent
BACKEND = KERAS / "src" / "backend" / "tinygrad"


def edge_gradients(name, args, kwargs):
    """Gradients as `Reference.gradients` takes them, on this backend."""
    arrays, rebuild = split(args)
    tensors = [keras.ops.convert_to_tensor(a) for a in arrays]
    results = keras.tree.flatten(find(name)(*rebuild(tensors), **kwargs))
    terms = [
        keras.ops.sum(r * keras.ops.convert_to_tensor(weights(r.shape)))
        for r in results
        if r.is_floating_point()
    ]
    wanted = [t for t in tensors if t.is_floating_point()]
    found = gradients(sum(terms[1:], terms[0]), wanted) if terms else ()
    found = found or [None] * len(wanted)
    return [
        np.zeros(t.shape, "float32")
        if g is None
        else keras.ops.convert_to_numpy(g)
        for g, t in zip(found, wanted)
    ]


def check_edge(name, args, kwargs, torch, jax, deviation=None):
    """Compares gradients at an edge with the torch backend's.

    Args:
        name: Name of the op.
        args: Its arguments.
        kwargs: Its keyword arguments.
        torch: The torch backend's answer: a flat list for each floating
            argument, or the text of an exception.
        jax: The jax backend's, likewise; it counts where torch has none.
        deviation: `None`, or a pair of the reason why ours is not torch's and
            of `"jax"` or the right answer.
    """
    expected = torch if isinstance(torch, list) else jax
    if deviation is not None:
        expected = jax if deviation[1] == "jax" else deviation[1]
    found = edge_gradients(name, args, kwargs)
    if isinstance(expected, str):
        raise Disagreement(f"no backend has this gradient: {expected}")
    if len(found) != len(expected):
        raise Disagreement(f"{len(found)} gradients, not {len(expected)}")
    for ours, theirs in zip(found, expected):
        theirs = np.float32(theirs).reshape(ours.shape)
        assert_close(ours, theirs, 2e-5)


# What a wrong argument never shows, because it says nothing to a user.
INTERNAL_ERRORS = (
    AssertionError,
    AttributeError,
    KeyError,
    NameError,
    RecursionError,
    ZeroDivisionError,
)


def check_error(name, label, args, kwargs, raised, reference):
    """Compares the exception for a bad argument with other backends'.

    Args:
        name: Name of the op.
        label: Which argument is bad, and how.
        args: Its arguments.
        kwargs: Its keyword arguments.
        raised: List of the builtin classes that the torch and the jax backend
            raised, `None` where the latter accepted the argument.
        reference: The numpy backend: what it accepts may be accepted, with
            its result. What jax alone accepts may be, too.
    """
    try:
        result = find(name)(*args, **kwargs)
        result = keras.tree.map_structure(keras.ops.convert_to_numpy, result)
    except Exception as error:
        _check_exception(error, label, raised)
        return
    theirs = reference.call(name, args, kwargs)
    # jax takes truth values for numbers where the numpy backend does not.
    vague = isinstance(theirs, Exception) or label.endswith("bool")
    if None in raised and vague:
        return
    if isinstance(theirs, Exception):
        raise Disagreement("accepted, and by no other backend")
    pairs = zip(keras.tree.flatten(result), keras.tree.flatten(theirs))
    for a, b in pairs:
        a, b = np.asarray(a), np.asarray(b)
        if a.shape != b.shape:
            raise Disagreement(f"accepted: {a.shape}, numpy backend {b.shape}")
        assert_close(a, b, 1e-3)


def _check_exception(error, label, raised):
    classes = [getattr(builtins, name) for name in raised if name]
    # torch raises `RuntimeError` for whatever is wrong with a value or a type,
    # and both fail by accident where they look into what they did not check.
    vague = (RuntimeError, NotImplementedError, *INTERNAL_ERRORS)
    if not label.startswith("ax"):
        vague += (IndexError,)
    if set(vague) & set(classes):
        classes += [ValueError, TypeError]
    # Of what it cannot do at all, the backend says so.
    if label.endswith("complex"):
        classes.append(NotImplementedError)
    if not isinstance(error, tuple(classes)):
        raise Disagreement(f"{error!r}, others {raised}") from error
    frames = traceback.extract_tb(error.__traceback__)
    innermost = Path(frames[-1].filename)
    layer = innermost.is_relative_to(KERAS) and BACKEND not in innermost.parents
    if isinstance(error, INTERNAL_ERRORS) and not layer:
        raise Disagreement(f"internal error {error!r}") from error
    if innermost.is_relative_to(TINYGRAD):
        raise Disagreement(f"raised inside tinygrad: {error!r}") from error
    # NumPy's "Singular matrix" is enough.
    if len(str(error)) < 15:
        raise Disagreement(f"says too little: {error!r}") from error
