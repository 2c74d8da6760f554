"""The checks that the table's ops go through, one function each."""

import numpy as np

import keras
from integration_tests.ops.reference import find
from integration_tests.ops.reference import split
from keras.src.backend.tinygrad import engine
from keras.src.backend.tinygrad.core import UpdateScope
from keras.src.backend.tinygrad.engine.gradient import gradients

# Tolerance of results that were computed in a narrower dtype.
RTOL = {"float16": 4e-3, "bfloat16": 3e-2}
# The same of float64, relative to the tolerance of float32.
DOUBLE = 1e-5
# Next wider dtypes, to tell the reference's rounding from a wrong result.
WIDER = {"float16": "float32", "bfloat16": "float32", "float32": "float64"}


class Disagreement(AssertionError):
    """Two ways to compute one op gave different results."""


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
        # The table draws good arguments.
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
        assert_close(a, b, _tolerance(op, dtype, args, a, b))


def _tolerance(op, dtype, args, *results):
    """The relative tolerance, that of the narrowest dtype involved."""
    names = {dtype, *(x.dtype.name for x in results)}
    names.update(x.dtype.name for x in split(args)[0])
    if "float64" in names and not names & {"float32", *RTOL}:
        return DOUBLE * op.rtol
    return max(op.rtol, *(RTOL.get(name, 0) for name in names))


def assert_close(a, b, rtol):
    """Raises `Disagreement` unless an array has another's values.

    Args:
        a: Array of numbers.
        b: Array of the same shape, the reference.
        rtol: Relative tolerance. Integers are compared exactly.
    """
    wide = np.result_type("complex128" if a.dtype.kind == "c" else "float64")
    exact = a.dtype.kind in "biuU" and b.dtype.kind in "biuU"
    if exact:
        agree = np.array_equal(a, b)
    else:
        x, y = a.astype(wide), b.astype(wide)
        # Sums of numbers cancel; the largest must not hide all others.
        scale = np.max(np.abs(y[np.abs(y) < 1e5]), initial=1.0)
        agree = np.allclose(x, y, rtol=rtol, atol=rtol * scale, equal_nan=True)
    if not agree:
        with np.printoptions(threshold=100):
            raise Disagreement(f"values\n{a}\nreference\n{b}")


def check_values(op, args, kwargs, dtype, reference, views=None):
    """Compares with another backend's results.

    Where they differ because the reference rounds or overflows on the way,
    results agree with the reference's in the next wider dtypes.

    Args:
        op: `Op` of the table.
        args: Its arguments.
        kwargs: Its keyword arguments.
        dtype: Dtype the arguments were drawn in.
        reference: `Reference` to compare with.
        views: Optional random generator. The op then runs on arguments that
            are views of some kind, with the same values.
    """
    arrays, rebuild = split(args)
    viewed = arrays if views is None else [view(x, views) for x in arrays]
    ours = run(op.name, rebuild(viewed), kwargs)
    wide = dtype in ("float64", "int64")
    theirs = reference.call(op.name, args, kwargs, wide)
    try:
        compare(op, ours, theirs, args, dtype)
    except Disagreement:
        if isinstance(ours, Exception) or wide:
            raise
        if op.rounded:
            arrays = [x.astype("float64") for x in arrays]
        arrays = [x.astype(WIDER.get(x.dtype.name, x.dtype)) for x in arrays]
        theirs = reference.call(op.name, rebuild(arrays), kwargs, wide=True)
        if isinstance(theirs, Exception):
            raise
        ours, theirs = keras.tree.flatten(ours), keras.tree.flatten(theirs)
        if len(ours) != len(theirs):
            raise
        if op.rounded:
            theirs = [_as_rounded(b, a) for a, b in zip(ours, theirs)]
        theirs = [_like(b, a) for a, b in zip(ours, theirs)]
        try:
            compare(op, ours, theirs, args, dtype)
        except Disagreement:
            pass
        else:
            return
        raise


def _as_rounded(x, ours):
    """Rounds exact results as `ours` are, where both sides are as near.

    Half way between two integers the error of a float32 result decides: of a
    few dozen products of up to 255 each, so 2**-24 * 2**5 * 2**8 and less.
    """
    low, high = np.iinfo(ours.dtype).min, np.iinfo(ours.dtype).max
    x = np.clip(x, low, high)
    near = np.abs(x - ours) <= 0.5 + 2**-11
    return np.where(near, ours, np.round(x)).astype(ours.dtype)


def _like(x, like):
    """Rounds a float array to the dtype of another."""
    x, like = np.asarray(x), np.asarray(like)
    if x.dtype.kind != "f":
        return x
    with np.errstate(all="ignore"):
        return x.astype(like.dtype)


def view(x, rng):
    """Returns a lazy tensor, or a NumPy view, with the values of an array."""
    kinds = ("strided", "transposed", "flipped", "padded", "skipped", "joined")
    kind = kinds[rng.integers(len(kinds))]
    if x.ndim == 0 or x.size == 0:
        return keras.ops.convert_to_tensor(x)
    axis = int(rng.integers(x.ndim))
    if kind == "strided":
        return np.flip(np.asfortranarray(np.flip(x, axis)), axis)
    if kind == "transposed":
        order = rng.permutation(x.ndim)
        base = np.ascontiguousarray(np.transpose(x, order))
        back = [int(a) for a in np.argsort(order)]
        return keras.ops.transpose(keras.ops.convert_to_tensor(base), back)
    if kind == "flipped":
        base = np.ascontiguousarray(np.flip(x, axis))
        return keras.ops.flip(keras.ops.convert_to_tensor(base), axis)
    if kind == "joined":
        cut = int(rng.integers(x.shape[axis] + 1))
        parts = np.split(x, [cut], axis)
        parts = [keras.ops.convert_to_tensor(np.array(p)) for p in parts]
        return keras.ops.concatenate(parts, axis)
    junk = np.ones_like(x)
    index = [slice(None)] * x.ndim
    if kind == "padded":
        base = np.concatenate([junk, x, junk], axis)
        index[axis] = slice(x.shape[axis], 2 * x.shape[axis])
    else:
        base = np.stack([junk, x, junk], axis + 1)
        index.insert(axis + 1, 1)
    return keras.ops.convert_to_tensor(base)[tuple(index)]


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
    arrays, rebuild = split(args)

    def traced(inputs):
        # As the trainer traces its steps.
        with UpdateScope(collect_losses=True):
            return find(op.name)(*rebuild(inputs), **kwargs), []

    step = engine.compile_step(traced)
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


def _parts(x):
    """The real and the imaginary part of a complex tensor."""
    if "complex" in keras.backend.standardize_dtype(x.dtype):
        return keras.ops.real(x), keras.ops.imag(x)
    return (x,)


def check_gradient(op, args, kwargs, seed):
    """Compares gradients with central differences in float64."""
    rng = np.random.default_rng(seed)
    arrays, rebuild = split(args)
    arrays = [a.astype("float64") if a.dtype.kind == "f" else a for a in arrays]
    factors = None

    def loss(arrays):
        nonlocal factors
        results = find(op.name)(*rebuild(arrays), **kwargs)
        floating = [
            part
            for r in keras.tree.flatten(results)
            for part in _parts(r)
            if part.is_floating_point()
        ]
        if factors is None:
            factors = [np.asarray(rng.normal(size=r.shape)) for r in floating]
        terms = [
            keras.ops.sum(r * keras.ops.convert_to_tensor(w))
            for r, w in zip(floating, factors)
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
        if not np.isclose(analytic, numeric, rtol=1e-6, atol=1e-7):
            raise Disagreement(
                f"gradient in argument {i}: {analytic}, differences {numeric}"
            )
