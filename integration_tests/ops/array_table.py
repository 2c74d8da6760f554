"""The rows of the table of ops for arrays: creation, parts, statistics."""

import math

import numpy as np


def add_array_ops(add, floats, ints, everything):
    """Adds the rows.

    Args:
        add: Function of an op's name, its `draw` and the fields of `Op`.
        floats: Names of the floating dtypes.
        ints: Names of the integer dtypes.
        everything: Names of these and of bool.
    """
    whole = dict(dtypes=("float32",))
    moved = dict(dtypes=everything, complex=True)
    flat = dict(gradient=False)
    # Made of no tensor, or of a list of them: Keras infers nothing, or wrongly.
    unseen = dict(spec=False)
    # What is computed depends on the values.
    dynamic = dict(compiled=False, spec=False)
    # Other names of ops that have all their dtypes elsewhere.
    few = dict(dtypes=("float32", "int32"), complex=True)

    # Creation.
    for name in ("zeros_like", "ones_like"):
        add(name, lambda d: ((d.array(d.shape()),), {}), **moved, **flat)
    add("full_like", _draw_full_like, dtypes=everything, **flat)
    for name in ("zeros", "ones"):
        add(
            name,
            lambda d: ((d.shape(), d.dtype), {}),
            dtypes=everything,
            compare=_with_dtype,
            **flat,
            **unseen,
        )
    add(
        "empty",
        lambda d: ((d.shape(), d.dtype), {}),
        dtypes=everything,
        compare=_shape_and_dtype,
        **flat,
        **unseen,
    )
    add(
        "empty_like",
        lambda d: ((d.array(d.shape()),), {}),
        compare=_shape_and_dtype,
        **few,
        **flat,
    )
    add(
        "full",
        _draw_full,
        dtypes=everything,
        compare=_with_dtype,
        **flat,
        **unseen,
    )
    add(
        "identity",
        lambda d: ((d.integer(0, 6), d.dtype), {}),
        dtypes=everything,
        compare=_with_dtype,
        **flat,
        **unseen,
    )
    for name in ("array", "convert_to_tensor"):
        add(name, _draw_conversion, dtypes=("float32", "int32", "bool"), **flat)
    add("copy", lambda d: ((d.array(d.shape()),), {}), **few)
    add("eye", _draw_eye, dtypes=everything, **flat, **unseen)
    add("tri", _draw_eye, dtypes=everything, **flat, **unseen)
    add(
        "arange",
        _draw_arange,
        dtypes=("float32", "int32"),
        **flat,
        **unseen,
    )
    for name in ("linspace", "logspace", "geomspace"):
        add(name, _draw_space, rtol=1e-4, edges=False, **whole, **flat)
    for name in ("bartlett", "blackman", "hamming", "hanning"):
        add(
            name,
            lambda d: ((d.integer(1, 20),), {}),
            **whole,
            **flat,
            **unseen,
        )
    add(
        "kaiser",
        lambda d: ((d.integer(2, 20), float(d.integer(0, 14))), {}),
        **whole,
        **flat,
        **unseen,
    )
    add("diag", _draw_diagonal(1, 2), **moved)
    add("diagflat", _draw_diagonal(0, 2), **moved)
    add("meshgrid", _draw_meshgrid, dtypes=everything, **unseen)
    add("vander", _draw_vander, edges=False, **whole)

    # Parts and positions.
    add("reshape", _draw_reshape, **moved)
    add("broadcast_to", _draw_broadcast_to, **moved)
    add("squeeze", _draw_squeeze, **moved)
    add("swapaxes", _draw_two_axes, **moved)
    add("moveaxis", _draw_moveaxis, **moved)
    add("rot90", _draw_rot90, spec=False, **moved)
    add("append", _draw_append, dtypes=everything, complex=True)
    for name in ("vstack", "hstack"):
        add(name, _draw_stacked, **moved, **unseen)
    add("dstack", _draw_stacked, **moved)
    add("fliplr", lambda d: ((d.array(d.shape(2)),), {}), **few)
    add("flipud", lambda d: ((d.array(d.shape(1)),), {}), **few)
    for name, rank in (("hsplit", 1), ("vsplit", 2), ("dsplit", 3)):
        add(name, _draw_split_of_rank(rank), **few)
    for name in ("split", "array_split"):
        add(name, _draw_split(name == "split"), **moved)
    add("unstack", _draw_unstack, **moved)
    add("slice", _draw_slice, **moved)
    add("slice_update", _draw_slice_update, **moved)
    add("get_item", _draw_get_item, **moved)
    placed = dict(dtypes=floats + ("int32",), complex=True)
    add("scatter", _draw_scatter, spec=False, **placed)
    add("scatter_update", _draw_scatter_update, **placed)
    add("select", _draw_select, dtypes=floats + ints, **unseen)
    add("unravel_index", _draw_unravel_index, spec=False, **whole, **flat)
    add("rearrange", _draw_rearrange, dtypes=everything)
    add("extract_sequences", _draw_sequences, **whole)

    # Elementwise.
    add("divide_no_nan", _draw_pair(), edges=False, **whole)
    add(
        "true_divide",
        _draw_pair(0.5),
        dtypes=everything,
        gradient=False,
        spec=False,
    )
    add("fmod", _draw_pair(1, 5), dtypes=("float32", *ints), gradient=False)
    add("ldexp", _draw_ldexp, dtypes=floats[:2], edges=False, **flat)
    for name in ("fabs", "absolute"):
        add(name, lambda d: ((d.array(d.shape()),), {}), **flat)
    for name in ("real", "imag", "conj", "conjugate", "angle", "isreal"):
        add(
            name,
            lambda d: ((d.array(d.shape()),), {}),
            complex=True,
            **whole,
            **flat,
        )
    for name, dtypes in (("bitwise_not", ints), ("bitwise_invert", ints[:2])):
        add(name, lambda d: ((d.array(d.shape()),), {}), dtypes=dtypes, **flat)
    for name in ("bitwise_left_shift", "bitwise_right_shift"):
        # Keras infers the first operand's shape, not the broadcast one.
        add(name, _draw_shift, dtypes=ints[:2], spec=False, **flat)
    add("view", _draw_view, dtypes=floats + ints, **flat)
    add("saturate_cast", _draw_cast, dtypes=everything, **flat)
    add("cast", _draw_cast, dtypes=everything, edges=False, **flat)
    add("isin", _draw_isin, dtypes=everything, **flat)
    add("allclose", _draw_same, **whole, **flat)

    # Statistics.
    add("average", _draw_average, edges=False, rtol=1e-4, **whole)
    add("nancumsum", _draw_cumulative, rtol=1e-4, **whole, **flat)
    add("nancumprod", _draw_cumulative, rtol=1e-4, **whole, **flat)
    for name in ("nanargmax", "nanargmin"):
        add(name, _draw_nan_position, edges=False, **whole, **flat)
    add("nanmedian", _draw_nan_reduced, edges=False, **whole, **flat)
    for name in ("percentile", "nanpercentile"):
        add(name, _draw_quantile(100.0), edges=False, **whole, **flat)
    add("nanquantile", _draw_quantile(1.0), edges=False, **whole, **flat)
    add("histogram", _draw_histogram, edges=False, spec=False, **whole, **flat)
    add(
        "bincount",
        _draw_bincount,
        dtypes=("int32",),
        edges=False,
        **flat,
        **dynamic,
    )
    add("digitize", _draw_digitize, edges=False, **whole, **flat)
    add("argpartition", _draw_partition, compare=_partitioned, **whole, **flat)
    add(
        "unique",
        _draw_unique,
        dtypes=everything,
        edges=False,
        **flat,
        **dynamic,
    )
    add(
        "nonzero",
        lambda d: ((d.array(d.shape(1)),), {}),
        **moved,
        **flat,
        **dynamic,
    )
    add("in_top_k", _draw_in_top_k, edges=False, **whole, **flat)
    for name in ("segment_min", "segment_prod"):
        add(name, _draw_segments, gradient=False, rtol=1e-4, **whole)
    add("trapezoid", _draw_trapezoid, edges=False, rtol=1e-4, **whole)
    add("correlate", _draw_correlate, edges=False, rtol=1e-4, **whole)
    add(
        "corrcoef",
        _draw_corrcoef,
        edges=False,
        rtol=1e-4,
        spec=False,
        **whole,
        **flat,
    )

    # Products.
    products = dict(edges=False, rtol=1e-4, complex=True)
    add("inner", _draw_inner, **products)
    add("vdot", _draw_vdot, **products)
    add("kron", _draw_kron, dtypes=floats + ("int32",), spec=False, **products)

    # Signals: Keras' real and imaginary parts.
    signals = dict(edges=False, rtol=1e-4, dtypes=("float32",))
    add("fft", _draw_complex_parts(1), **signals)
    for name in ("fft2", "ifft2"):
        add(name, _draw_complex_parts(2), **signals)
    add("rfft", _draw_rfft, **signals)
    add("irfft", _draw_irfft, **signals)
    add("stft", _draw_stft, **signals)
    add("istft", _draw_istft, **signals)
    # Keras computes it in complex64, where differences are too coarse;
    # `complex_test.py` looks at its gradient.
    add(
        "view_as_complex",
        _draw_view_as_complex,
        edges=False,
        double=False,
        **whole,
        **flat,
    )
    add(
        "view_as_real",
        lambda d: ((d.array(d.shape()),), {}),
        complex=True,
        **whole,
    )
    # Keras infers float32, and the shape of the first operand.
    add("nn.polar", _draw_polar, edges=False, spec=False, **whole)
    add("cdist", _draw_cdist, edges=False, **whole)

    # Linear algebra.
    linear = dict(edges=False, rtol=1e-4, dtypes=("float32",))
    add("linalg.solve_triangular", _draw_triangular, **linear)
    add("linalg.pinv", _draw_tall, **linear)
    add("linalg.lstsq", _draw_least_squares, **linear)
    add("linalg.matrix_rank", _draw_tall, **linear, **flat)
    add("logdet", _draw_definite, symmetric=True, **linear)
    add("linalg.cholesky_inverse", _draw_factor, **linear)
    # Keras infers the dtype of the matrix for the pivots and for what is
    # complex, and no batch for the sign.
    add("linalg.lu_factor", _draw_tall, spec=False, **linear)
    add("slogdet", _draw_tall_square, spec=False, **linear)
    # The phases of eigenvectors are arbitrary, and their gradients with them.
    add(
        "linalg.eig",
        _draw_tall_square,
        compare=_eigensystem,
        spec=False,
        **linear,
        **flat,
    )

    # Images.
    add("image.crop_images", _draw_crop, dtypes=("float32", "uint8"))
    add("image.pad_images", _draw_image_padding, dtypes=("float32", "uint8"))


def _draw_full_like(d):
    value = d.choice(0, 1, 2.5, True, d.array(()))
    return (d.array(d.shape()), value), {}


def _with_dtype(result, args):
    return [result, result.dtype.name]


def _shape_and_dtype(result, args):
    """All that there is to what is not filled."""
    return [np.array(result.shape), result.dtype.name]


def _draw_full(d):
    shape = d.shape()
    value = d.choice(0, 1, True, d.array(()), d.array(shape[-1:]))
    return (shape, value, d.dtype), {}


def _draw_conversion(d):
    dtype = d.choice(None, None, "float32", "float16", "int32", "bool")
    return (d.array(d.shape()), dtype), {}


def _draw_eye(d):
    return (d.integer(0, 6),), {
        "M": d.choice(None, d.integer(0, 6)),
        "k": d.integer(-3, 3),
        "dtype": d.dtype,
    }


def _draw_arange(d):
    if d.dtype == "int32":
        step = d.choice(1, 2, 3, -1, -2)
        return (d.integer(-9, 9), d.integer(-9, 9), step), {}
    step = d.choice(0.25, 0.5, -0.75, 1.5)
    return (d.integer(-9, 9) / 4, d.integer(-9, 9) / 4, step), {}


def _draw_space(d):
    start, stop = (d.array(d.shape(0, 1), 0.5, 3.0) for _ in range(2))
    if start.shape and stop.shape:
        stop = d.array(start.shape, 0.5, 3.0)
    return (start, stop), {
        "num": d.integer(1, 9),
        "endpoint": bool(d.integer(0, 1)),
        "axis": d.choice(0, -1),
    }


def _draw_diagonal(low, high):
    return lambda d: ((d.array(d.shape(low, high)),), {"k": d.integer(-3, 3)})


def _draw_meshgrid(d):
    arrays = [d.array(d.shape(1, 1)) for _ in range(d.integer(1, 3))]
    return tuple(arrays), {"indexing": d.choice("xy", "ij")}


def _draw_vander(d):
    return (d.array(d.shape(1, 1, empty=False)),), {
        "N": d.choice(None, d.integer(1, 5)),
        "increasing": bool(d.integer(0, 1)),
    }


def _draw_reshape(d):
    shape = d.shape()
    size = math.prod(shape)
    divisors = [n for n in range(1, size + 1) if size % n == 0]
    new = [size]
    if divisors:
        first = d.choice(*divisors)
        new = [first, size // first]
        if d.integer(0, 1):
            new[d.integer(0, 1)] = -1
    return (d.array(shape), tuple(new)), {}


def _draw_broadcast_to(d):
    shape = d.shape()
    part = [1 if d.integer(0, 2) == 0 else n for n in shape]
    part = part[d.integer(0, len(part)) :]
    return (d.array(tuple(part)), shape), {}


def _draw_squeeze(d):
    shape = list(d.shape(0, 2))
    place = d.integer(0, len(shape))
    shape.insert(place, 1)
    axis = d.choice(None, place, place - len(shape))
    return (d.array(tuple(shape)),), {"axis": axis}


def _draw_two_axes(d):
    shape = d.shape(1)
    axes = (d.axis(len(shape), none=False) for _ in range(2))
    return (d.array(shape), *axes), {}


def _draw_moveaxis(d):
    shape = d.shape(1)
    rank = len(shape)
    count = d.integer(1, rank)
    source, destination = (
        tuple(int(a) - rank * d.integer(0, 1) for a in axes)
        for axes in (d.rng.permutation(rank)[:count] for _ in range(2))
    )
    return (d.array(shape), source, destination), {}


def _draw_rot90(d):
    shape = d.shape(2)
    axes = tuple(int(a) for a in d.rng.permutation(len(shape))[:2])
    return (d.array(shape),), {"k": d.integer(-5, 5), "axes": axes}


def _draw_append(d):
    shape = list(d.shape(1))
    axis = d.axis(len(shape))
    x = d.array(tuple(shape))
    if axis is None:
        return (x, d.array(d.shape())), {"axis": None}
    shape[axis] = d.integer(0, 4)
    return (x, d.array(tuple(shape))), {"axis": axis}


def _draw_stacked(d):
    shape = d.shape(1)
    return ([d.array(shape) for _ in range(d.integer(1, 3))],), {}


def _draw_split(even):
    def draw(d):
        shape = list(d.shape(1, empty=False))
        axis = d.axis(len(shape), none=False)
        if even and d.integer(0, 1):
            points = sorted(d.integer(0, shape[axis]) for _ in range(2))
            return (d.array(tuple(shape)), points), {"axis": axis}
        count = d.integer(1, 4)
        if even:
            shape[axis] = count * d.integer(1, 3)
        return (d.array(tuple(shape)), count), {"axis": axis}

    return draw


def _draw_split_of_rank(rank):
    def draw(d):
        shape = list(d.shape(rank, max(rank, 3), empty=False))
        axis = 0 if rank == 2 else min(rank, len(shape)) - 1
        if rank == 1 and len(shape) > 1:
            axis = 1
        if d.integer(0, 1):
            points = sorted(d.integer(0, shape[axis]) for _ in range(2))
            return (d.array(tuple(shape)), points), {}
        count = d.integer(1, 4)
        shape[axis] = count * d.integer(1, 3)
        return (d.array(tuple(shape)), count), {}

    return draw


def _draw_unstack(d):
    shape = d.shape(1, empty=False)
    return (d.array(shape),), {"axis": d.axis(len(shape), none=False)}


def _draw_slice(d):
    shape = d.shape(1)
    starts = [d.integer(0, n) for n in shape]
    sizes = [d.integer(0, n - s) for n, s in zip(shape, starts)]
    return (d.array(shape), starts, sizes), {}


def _draw_slice_update(d):
    (x, starts, sizes), _ = _draw_slice(d)
    updates = d.array(tuple(sizes))
    starts = d.choice(starts, np.array(starts, "int32"))
    return (x, starts, updates), {}


def _draw_get_item(d):
    shape = d.shape(1, empty=False)
    key = []
    for n in shape[: d.integer(1, len(shape))]:
        kind = d.integer(0, 3)
        if kind == 0:
            key.append(d.integer(-n, n - 1))
        elif kind == 1:
            bounds = [d.choice(None, d.integer(-n - 1, n + 1)) for _ in "ab"]
            key.append(slice(*bounds, d.choice(None, 1, 2, -1, -2)))
        elif kind == 2:
            key.append(slice(None))
        else:
            key.extend([None, slice(None)])
    return (d.array(shape), tuple(key)), {}


def _draw_scatter(d):
    shape = d.shape(1, 2, empty=False)
    depth = d.integer(1, len(shape))
    count = d.integer(1, 6)
    indices = np.stack([d.rng.integers(0, n, count) for n in shape[:depth]], -1)
    values = d.array((count, *shape[depth:]))
    return (indices.astype("int32"), values, shape), {}


def _draw_scatter_update(d):
    (indices, updates, shape), _ = _draw_scatter(d)
    reductions = [None, "add"]
    if d.dtype != "complex64":
        reductions += ["max", "min", "mul"]
    reduction = d.choice(*reductions)
    if reduction is None:
        # Which of several updates of one place remains is not defined.
        _, first = np.unique(indices, axis=0, return_index=True)
        indices, updates = indices[first], updates[first]
    return (d.array(shape), indices, updates), {"reduction": reduction}


def _draw_select(d):
    shape = d.shape()
    count = d.integer(1, 3)
    conditions = [d.array(shape, dtype="bool") for _ in range(count)]
    choices = [d.array(shape) for _ in range(count)]
    return (conditions, choices), {"default": d.integer(0, 2)}


def _draw_unravel_index(d):
    shape = d.shape(1, empty=False)
    last = math.prod(shape) - 1
    return (d.array(d.shape(0, 2), 0, last, dtype="int32"), shape), {}


def _draw_rearrange(d):
    a, b, c = (d.integer(1, 4) for _ in range(3))
    pattern, shape, sizes = d.choice(
        ("a b c -> c (a b)", (a, b, c), {}),
        ("(a b) c -> b a c", (a * b, c), {"a": a}),
        ("a (b c) -> (c a) b", (a, b * c), {"c": c}),
        ("a b -> b a", (a, b), {}),
    )
    return (d.array(shape), pattern), sizes


def _draw_sequences(d):
    length = d.integer(1, 4)
    shape = (*d.shape(0, 1, empty=False), d.integer(length, 12))
    return (d.array(shape), length, d.integer(1, 3)), {}


def _draw_pair(low=-3.0, high=3.0):
    def draw(d):
        a, b = d.broadcast(2)
        return (d.array(a), d.operand(b, low, high)), {}

    return draw


def _draw_shift(d):
    a, b = d.broadcast(2)
    return (d.array(a, 0, 20), d.array(b, 0, 3)), {}


def _draw_view(d):
    x = d.array(d.shape(1))
    sizes = {1: ("int8", "uint8"), 2: ("int16", "float16", "bfloat16")}
    sizes |= {4: ("int32", "uint32", "float32"), 8: ("int64", "float64")}
    # Larger elements are made of several.
    size = d.choice(*(n for n in sizes if n <= x.itemsize))
    return (x, d.choice(*sizes[size])), {}


def _draw_ldexp(d):
    a, b = d.broadcast(2)
    return (d.array(a), d.array(b, -6, 6, dtype="int32")), {}


def _draw_cast(d):
    dtype = d.choice(
        "float32", "float16", "int32", "uint8", "int8", "int64", "bool"
    )
    low = 0.0 if dtype[0] == "u" else -3.0
    return (d.array(d.shape(), low), dtype), {}


def _draw_isin(d):
    x, elements = d.array(d.shape()), d.array(d.shape(0, 2))
    return (x, elements), {"invert": bool(d.integer(0, 1))}


def _draw_same(d):
    x = d.array(d.shape())
    return (x, d.choice(x, np.asarray(x + d.array(x.shape)))), {}


def _draw_average(d):
    shape = d.shape(1, empty=False)
    axis = d.axis(len(shape))
    weights = d.array(shape if axis is None else (shape[axis],), 0.5, 2.0)
    return (d.array(shape),), {"axis": axis, "weights": weights}


def _with_nan(d, x):
    return np.where(d.rng.integers(0, 4, x.shape) == 0, np.nan, x).astype(
        x.dtype
    )


def _draw_cumulative(d):
    shape = d.shape(1, empty=False)
    x = _with_nan(d, d.array(shape, 0.5, 1.5))
    return (x,), {"axis": d.axis(len(shape))}


def _draw_nan_position(d):
    shape = d.shape(1, empty=False)
    x = _with_nan(d, d.distinct(shape))
    # A slice of NaN alone has no position.
    x[np.isnan(x).all()] = 0
    axis = d.axis(len(shape))
    settings = {"axis": axis, "keepdims": bool(d.integer(0, 1))}
    if np.isnan(x).all(axis=axis).any():
        x = np.nan_to_num(x)
    return (x,), settings


def _draw_nan_reduced(d):
    shape = d.shape(1, empty=False)
    return (_with_nan(d, d.array(shape)),), {
        "axis": d.axes(len(shape)),
        "keepdims": bool(d.integer(0, 1)),
    }


def _draw_quantile(top):
    def draw(d):
        (x,), settings = _draw_nan_reduced(d)
        settings["method"] = d.choice(
            "linear", "lower", "higher", "midpoint", "nearest"
        )
        # Between order statistics, or `nearest` would be a matter of rounding.
        places = (d.rng.integers(0, 8, d.shape(0, 1)) + 0.3) / 8 * top
        return (x, np.asarray(places, "float32")), settings

    return draw


def _draw_histogram(d):
    settings = {"bins": d.integer(1, 6)}
    if d.integer(0, 1):
        settings["range"] = (-2.0, 2.5)
    return (d.array(d.shape(1, 1, empty=False)),), settings


def _draw_bincount(d):
    x = d.array((d.integer(1, 9),), 0, 6)
    weights = d.choice(None, d.array(x.shape, dtype="float32"))
    return (x,), {"weights": weights, "minlength": d.integer(0, 9)}


def _draw_digitize(d):
    bins = np.sort(d.array((d.integer(1, 6),)))
    return (d.array(d.shape()), bins), {}


def _draw_partition(d):
    shape = d.shape(1, empty=False)
    axis = d.axis(len(shape), none=False)
    kth = d.integer(0, shape[axis] - 1)
    return (d.distinct(shape), kth), {"axis": axis}


def _partitioned(positions, args):
    """Any order within the two parts is right: sizes are what counts."""
    return np.sort(positions, None)


def _draw_unique(d):
    return (d.array(d.shape(1, empty=False)),), {
        "return_inverse": bool(d.integer(0, 1)),
        "return_counts": bool(d.integer(0, 1)),
    }


def _draw_in_top_k(d):
    batch, classes = d.integer(1, 5), d.integer(2, 6)
    targets = d.array((batch,), 0, classes - 1, dtype="int32")
    return (targets, d.distinct((batch, classes)), d.integer(1, classes)), {}


def _draw_segments(d):
    rows = d.integer(1, 8)
    data = d.array((rows, *d.shape(0, 2, empty=False)), 0.5, 1.5)
    ids = d.array((rows,), 0, 4, dtype="int32")
    return (data, ids), {"num_segments": 5}


def _draw_trapezoid(d):
    shape = d.shape(1, empty=False)
    axis = d.axis(len(shape), none=False)
    x = d.choice(None, np.sort(d.array((shape[axis],))))
    return (d.array(shape),), {"x": x, "dx": 0.5, "axis": axis}


def _draw_correlate(d):
    a, b = (d.array((d.integer(1, 8),)) for _ in range(2))
    return (a, b), {"mode": d.choice("valid", "same", "full")}


def _draw_corrcoef(d):
    return (d.array((d.integer(2, 4), d.integer(3, 8))),), {}


def _draw_inner(d):
    size = d.integer(1, 5)
    a, b = ((*d.shape(0, 2, empty=False), size) for _ in range(2))
    return (d.array(a), d.array(b)), {}


def _draw_vdot(d):
    shape = d.shape(1, empty=False)
    return (d.array(shape), d.array(shape)), {}


def _draw_kron(d):
    a, b = (d.shape(1, 2, empty=False) for _ in range(2))
    return (d.array(a[:2]), d.array(b)), {}


def _draw_complex_parts(rank):
    def draw(d):
        shape = (*d.shape(0, 1, empty=False), *[d.integer(1, 8)] * rank)
        return ((d.array(shape), d.array(shape)),), {}

    return draw


def _draw_rfft(d):
    shape = (*d.shape(0, 1, empty=False), d.integer(2, 12))
    return (d.array(shape),), {"fft_length": d.choice(None, d.integer(2, 14))}


def _draw_irfft(d):
    shape = (*d.shape(0, 1, empty=False), d.integer(2, 7))
    return ((d.array(shape), d.array(shape)),), {
        "fft_length": d.choice(None, d.integer(2, 14))
    }


def _draw_istft(d):
    fft_length = 2 * d.integer(2, 4)
    length = d.integer(fft_length - 1, fft_length)
    frames = d.integer(3, 6)
    stride = d.integer(1, length // 2)
    lead = d.shape(0, 1, empty=False)
    parts = [d.array((*lead, frames, fft_length // 2 + 1)) for _ in "ab"]
    return (tuple(parts), length, stride, fft_length), {
        "length": d.choice(None, d.integer(1, stride * (frames - 1))),
        # One that is nowhere 0, by which the sum is divided.
        "window": "hamming",
        "center": bool(d.integer(0, 1)),
    }


def _draw_view_as_complex(d):
    return (d.array((*d.shape(0, 2), 2)),), {}


def _draw_polar(d):
    return tuple(d.array(shape) for shape in d.broadcast(2)), {}


def _draw_cdist(d):
    lead, size = d.shape(0, 1, empty=False), d.integer(1, 4)
    return tuple(d.array((*lead, d.integer(1, 4), size)) for _ in range(2)), {}


def _draw_stft(d):
    length = d.integer(2, 6)
    shape = (*d.shape(0, 1, empty=False), d.integer(16, 24))
    return (d.array(shape), length, d.integer(1, 4), 8), {
        # Without one, the numpy backend takes `fft_length` for the length.
        "window": d.choice("hann", "hamming"),
        "center": bool(d.integer(0, 1)),
    }


def _draw_triangular(d):
    n = d.integer(1, 5)
    lead = d.shape(0, 1, empty=False)
    a = d.array((*lead, n, n)) + 6 * np.eye(n, dtype=d.dtype)
    lower = bool(d.integer(0, 1))
    a = np.tril(a) if lower else np.triu(a)
    return (a, d.array((*lead, n, 2))), {"lower": lower}


def _draw_tall(d):
    rows, columns = d.integer(1, 5), d.integer(1, 5)
    x = d.array((*d.shape(0, 1, empty=False), rows, columns))
    return (x + 5 * np.eye(rows, columns, dtype=d.dtype),), {}


def _draw_tall_square(d):
    n = d.integer(1, 4)
    x = d.array((*d.shape(0, 1, empty=False), n, n))
    return (x + 5 * np.eye(n, dtype=d.dtype),), {}


def _draw_factor(d):
    n = d.integer(1, 4)
    upper = bool(d.integer(0, 1))
    x = d.array((n, n)) + 5 * np.eye(n, dtype=d.dtype)
    return (np.triu(x) if upper else np.tril(x),), {"upper": upper}


def _eigensystem(results, args):
    """Coefficients with the eigenvalues as roots, and what `A v = w v` lacks.

    The order of the eigenvalues is arbitrary, too.
    """
    values, vectors = results
    flat = values.reshape(-1, values.shape[-1])
    coefficients = np.stack([np.poly(w) for w in flat])
    return [coefficients, args[0] @ vectors - vectors * values[..., None, :]]


def _draw_least_squares(d):
    columns = d.integer(1, 4)
    rows = columns + d.integer(0, 3)
    a = d.array((rows, columns)) + 5 * np.eye(rows, columns, dtype=d.dtype)
    return (a, d.array((rows, 2))), {}


def _draw_definite(d):
    n = d.integer(1, 4)
    a = d.array((*d.shape(0, 1, empty=False), n, n))
    return (a @ np.swapaxes(a, -1, -2) + 2 * np.eye(n, dtype=d.dtype),), {}


def _image(d):
    data_format = d.choice("channels_last", "channels_first")
    height, width = d.integer(4, 9), d.integer(4, 9)
    shape = (height, width, 3)
    if data_format == "channels_first":
        shape = (3, height, width)
    if d.integer(0, 1):
        shape = (2, *shape)
    high = 255 if d.dtype == "uint8" else 1.0
    return d.array(shape, 0.0, high), height, width, data_format


def _draw_crop(d):
    images, height, width, data_format = _image(d)
    return (images,), {
        "top_cropping": d.integer(0, height // 2),
        "left_cropping": d.integer(0, width // 2),
        "target_height": d.integer(1, height // 2),
        "target_width": d.integer(1, width // 2),
        "data_format": data_format,
    }


def _draw_image_padding(d):
    images, _, _, data_format = _image(d)
    return (images,), {
        "top_padding": d.integer(0, 3),
        "left_padding": d.integer(0, 3),
        "bottom_padding": d.integer(0, 3),
        "right_padding": d.integer(0, 3),
        "data_format": data_format,
    }
