"""The checks that the table's ops go through, one function each."""

import numpy as np

import keras
from integration_tests.ops.reference import find
from keras.src.backend.tinygrad import engine
from keras.src.backend.tinygrad.engine.gradient import gradients

# Tolerance of results that were computed in a narrower dtype.
RTOL = {"float16": 4e-3, "bfloat16": 3e-2, "float64": 1e-9}


class Disagreement(AssertionError):
    """Two ways to compute one op gave different results."""


def arguments(op, draw):
    """Draws an op's arguments; returns `(args, kwargs)`."""
    return op.draw(draw)


def run(name, args, kwargs):
    """Runs an op here; returns NumPy results, or the exception."""
    try:
        result = find(name)(*args, **kwargs)
        return keras.tree.map_structure(_to_numpy, result)
    except Exception as error:
        return error


def _to_numpy(x):
    return keras.ops.convert_to_numpy(x) if keras.ops.is_tensor(x) else x


def compare(op, ours, theirs, args, dtype):
    """Raises `Disagreement` unless two results have equal shapes and values.

    Args:
        op: `Op` of the table.
        ours: Result of `run`.
        theirs: Result of the reference.
        args: The arguments that gave them.
        dtype: Dtype the arguments were drawn in.
    """
    if isinstance(ours, Exception) or isinstance(theirs, Exception):
        if isinstance(ours, Exception) and isinstance(theirs, Exception):
            return
        raise Disagreement(f"ours: {ours!r}, reference: {theirs!r}")
    if op.compare is not None:
        ours, theirs = op.compare(ours, args), op.compare(theirs, args)
    ours, theirs = keras.tree.flatten(ours), keras.tree.flatten(theirs)
    if len(ours) != len(theirs):
        raise Disagreement(f"{len(ours)} results, reference {len(theirs)}")
    for a, b in zip(ours, theirs):
        a, b = np.asarray(a), np.asarray(b)
        if a.shape != b.shape:
            raise Disagreement(f"shape {a.shape}, reference {b.shape}")
        rtol = max(op.rtol, RTOL.get(dtype, 0))
        _assert_close(a, b, rtol)


def _assert_close(a, b, rtol):
    wide = np.result_type("complex128" if a.dtype.kind == "c" else "float64")
    exact = a.dtype.kind in "biu" and b.dtype.kind in "biu"
    if exact:
        agree = np.array_equal(a, b)
    else:
        x, y = a.astype(wide), b.astype(wide)
        scale = np.max(np.abs(y[np.isfinite(y)]), initial=1.0)
        agree = np.allclose(x, y, rtol=rtol, atol=rtol * scale, equal_nan=True)
    if not agree:
        raise Disagreement(f"values\n{a}\nreference\n{b}")


def check_values(op, args, kwargs, dtype, reference):
    """Compares with another backend's results."""
    ours = run(op.name, args, kwargs)
    theirs = reference.call(op.name, args, kwargs)
    compare(op, ours, theirs, args, dtype)


def check_views(op, args, kwargs, dtype):
    """Compares with the same op on arguments that are views."""

    def view(x):
        if not isinstance(x, np.ndarray) or x.ndim == 0:
            return x
        return keras.ops.transpose(
            keras.ops.convert_to_tensor(np.ascontiguousarray(x.T))
        )

    viewed = keras.tree.map_structure(view, args)
    ours = run(op.name, viewed, kwargs)
    compare(op, ours, run(op.name, args, kwargs), args, dtype)


def check_compiled(op, args, kwargs, dtype):
    """Compares with the same op in a compiled step, traced and replayed."""
    arrays, rebuild = _split(args)
    step = engine.compile_step(
        lambda inputs: (find(op.name)(*rebuild(inputs), **kwargs), [])
    )
    eager = run(op.name, args, kwargs)
    for _ in range(2):
        result = step(arrays)
        result = keras.tree.map_structure(_to_numpy, result)
        compare(op, result, eager, args, dtype)


def check_spec(op, args, kwargs, dtype):
    """Compares symbolic shapes and dtypes with what then runs.

    The symbolic dtypes are Keras' promotion rules, except that these narrow
    64-bit integers to 32; here, as on torch, they stay.
    """

    def symbolic(x):
        if isinstance(x, np.ndarray):
            return keras.KerasTensor(
                x.shape, keras.backend.standardize_dtype(x.dtype)
            )
        return x

    eager = run(op.name, args, kwargs)
    if isinstance(eager, Exception):
        return
    specs = find(op.name)(*keras.tree.map_structure(symbolic, args), **kwargs)
    pairs = zip(keras.tree.flatten(specs), keras.tree.flatten(eager))
    for spec, value in pairs:
        value = np.asarray(value)
        found = keras.backend.standardize_dtype(value.dtype)
        wide = dtype == "int64" and found == "int64" and "int" in spec.dtype
        if tuple(spec.shape) != value.shape or (
            spec.dtype != found and not wide
        ):
            raise Disagreement(
                f"symbolic {spec.shape} {spec.dtype}, "
                f"eager {value.shape} {found}"
            )


def check_gradient(op, args, kwargs, seed):
    """Compares gradients with central differences in float64."""
    rng = np.random.default_rng(seed)
    arrays, rebuild = _split(args)
    arrays = [a.astype("float64") if a.dtype.kind == "f" else a for a in arrays]
    weights = None

    def loss(arrays):
        nonlocal weights
        results = find(op.name)(*rebuild(arrays), **kwargs)
        floating = [
            r for r in keras.tree.flatten(results) if r.is_floating_point()
        ]
        if weights is None:
            weights = [np.asarray(rng.normal(size=r.shape)) for r in floating]
        terms = [
            keras.ops.sum(r * keras.ops.convert_to_tensor(w))
            for r, w in zip(floating, weights)
        ]
        return sum(terms[1:], terms[0])

    tensors = [keras.ops.convert_to_tensor(a) for a in arrays]
    which = [i for i, a in enumerate(arrays) if a.dtype.kind == "f" and a.size]
    if not which:
        return
    grads = gradients(loss(tensors), [tensors[i] for i in which])
    for i, grad in zip(which, grads):
        direction = np.asarray(rng.normal(size=arrays[i].shape))
        if op.symmetric:
            direction = direction + np.swapaxes(direction, -1, -2)
        step = 1e-5

        def moved(sign):
            changed = list(arrays)
            changed[i] = np.asarray(arrays[i] + sign * step * direction)
            return float(loss(list(map(keras.ops.convert_to_tensor, changed))))

        numeric = (moved(1) - moved(-1)) / (2 * step)
        grad = 0.0 if grad is None else keras.ops.convert_to_numpy(grad)
        analytic = float(np.sum(grad * direction))
        if not np.isclose(analytic, numeric, rtol=1e-4, atol=1e-5):
            raise Disagreement(
                f"gradient in argument {i}: {analytic}, differences {numeric}"
            )


def _split(args):
    """Separates arrays from the rest.

    Returns:
        Pair of the list of arrays in `args` and a function that puts such a
        list in their place.
    """
    leaves = keras.tree.flatten(args)
    where = [i for i, x in enumerate(leaves) if isinstance(x, np.ndarray)]

    def rebuild(values):
        changed = list(leaves)
        for i, value in zip(where, values):
            changed[i] = value
        return keras.tree.pack_sequence_as(args, changed)

    return [leaves[i] for i in where], rebuild
