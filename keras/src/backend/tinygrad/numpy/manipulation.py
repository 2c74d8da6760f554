"""Shapes: joining, splitting, moving, padding and repeating."""

import math

import numpy as np

from keras.src.backend.tinygrad.core import cast
from keras.src.backend.tinygrad.core import convert_to_numpy
from keras.src.backend.tinygrad.core import convert_to_tensor
from keras.src.backend.tinygrad.core import to_tinygrad_dtype
from keras.src.backend.tinygrad.numpy import elementwise
from keras.src.backend.tinygrad.numpy import reduction
from keras.src.backend.tinygrad.numpy.common import along
from keras.src.backend.tinygrad.numpy.common import as_tensors
from keras.src.backend.tinygrad.numpy.common import canonicalize_axis
from keras.src.backend.tinygrad.numpy.common import dtype_of
from keras.src.backend.tinygrad.numpy.common import is_float
from keras.src.backend.tinygrad.numpy.common import to_axes
from keras.src.backend.tinygrad.numpy.common import to_int
from keras.src.backend.tinygrad.numpy.common import to_ints
from keras.src.backend.tinygrad.numpy.creation import linspace
from keras.src.backend.tinygrad.numpy.indexing import take


def _require_rank(name, x, rank):
    if x.ndim < rank:
        raise ValueError(
            f"`{name}` only works on arrays of at least {rank} dimensions. "
            f"Received array with shape {x.shape}."
        )


# Shape and order of axes.


def ndim(x):
    return convert_to_tensor(x).ndim


def size(x):
    return math.prod(convert_to_tensor(x).shape)


def reshape(x, newshape):
    x = convert_to_tensor(x)
    shape = to_ints(newshape)
    known = math.prod(s for s in shape if s != -1)
    count = math.prod(x.shape)
    if (
        any(s < -1 for s in shape)
        or shape.count(-1) > 1
        or (count % known if -1 in shape and known else count != known)
    ):
        raise ValueError(
            f"Cannot reshape a tensor of shape {x.shape} and {count} elements "
            f"to shape {tuple(shape)}."
        )
    rest = count // known if known else 0
    return x.reshape([rest if s == -1 else s for s in shape])


def ravel(x):
    return convert_to_tensor(x).reshape(-1)


def expand_dims(x, axis):
    x = convert_to_tensor(x)
    axes = axis if isinstance(axis, (tuple, list)) else (axis,)
    axes = to_axes(tuple(axes), x.ndim + len(axes))
    sizes = iter(x.shape)
    rank = x.ndim + len(axes)
    return x.reshape([1 if a in axes else next(sizes) for a in range(rank)])


def squeeze(x, axis=None):
    x = convert_to_tensor(x)
    if axis is None:
        axes = [a for a, s in enumerate(x.shape) if s == 1]
    else:
        axes = to_axes(axis, x.ndim)
        if any(x.shape[a] != 1 for a in axes):
            raise ValueError(
                "Cannot squeeze axes whose size is not 1. Received: "
                f"axis={axis}, x of shape {x.shape}"
            )
    return x.reshape([s for a, s in enumerate(x.shape) if a not in axes])


def broadcast_to(x, shape):
    x = convert_to_tensor(x)
    shape = tuple(to_ints(shape))
    try:
        fits = np.broadcast_shapes(x.shape, shape) == shape
    except ValueError:
        fits = False
    if not fits:
        raise ValueError(
            f"Cannot broadcast a tensor of shape {x.shape} to shape {shape}."
        )
    return x.expand(shape)


def transpose(x, axes=None):
    x = convert_to_tensor(x)
    if axes is None:
        axes = reversed(range(x.ndim))
    axes = [canonicalize_axis(a, x.ndim) for a in axes]
    if sorted(axes) != list(range(x.ndim)):
        raise ValueError(
            "`axes` must be a permutation of the axes of `x`. Received: "
            f"axes={axes}, x of shape {x.shape}"
        )
    return x.permute(axes)


def moveaxis(x, source, destination):
    x = convert_to_tensor(x)
    source = [canonicalize_axis(a, x.ndim) for a in to_ints(source)]
    destination = [canonicalize_axis(a, x.ndim) for a in to_ints(destination)]
    if not len(set(source)) == len(source) == len(destination) or len(
        set(destination)
    ) < len(destination):
        raise ValueError(
            "`source` and `destination` must name as many axes. Received: "
            f"source={source}, destination={destination}"
        )
    order = [a for a in range(x.ndim) if a not in source]
    for to, a in sorted(zip(destination, source)):
        order.insert(to, a)
    return x.permute(order)


def swapaxes(x, axis1, axis2):
    x = convert_to_tensor(x)
    order = list(range(x.ndim))
    axis1 = canonicalize_axis(axis1, x.ndim)
    axis2 = canonicalize_axis(axis2, x.ndim)
    order[axis1], order[axis2] = axis2, axis1
    return x.permute(order)


def view(x, dtype=None):
    x = convert_to_tensor(x)
    target = to_tinygrad_dtype(x.dtype if dtype is None else dtype)
    old, new = x.dtype.itemsize, target.itemsize
    if old != new and (not x.shape or x.shape[-1] * old % new):
        raise ValueError(
            f"Cannot view a tensor of shape {x.shape} and dtype {dtype_of(x)} "
            f"as dtype {dtype}: the bytes of its last axis are not a multiple "
            "of the new item size."
        )
    return x.bitcast(target)


# Reversal and rotation.


def flip(x, axis=None):
    x = convert_to_tensor(x)
    return x.flip(to_axes(axis, x.ndim))


def fliplr(x):
    x = convert_to_tensor(x)
    _require_rank("fliplr", x, 2)
    return x.flip(1)


def flipud(x):
    x = convert_to_tensor(x)
    _require_rank("flipud", x, 1)
    return x.flip(0)


def rot90(array, k=1, axes=(0, 1)):
    x = convert_to_tensor(array)
    if x.ndim < 2:
        raise ValueError(
            "Input array must have at least 2 dimensions. "
            f"Received: array.ndim={x.ndim}"
        )
    if len(axes) != 2 or (axes[0] - axes[1]) % x.ndim == 0:
        raise ValueError(
            f"Invalid axes: {axes}. Axes must be a tuple "
            "of two different dimensions."
        )
    first, second = [canonicalize_axis(a, x.ndim) for a in axes]
    if k % 2:
        x = swapaxes(x, first, second)
    turned = ((), (first,), (first, second), (second,))[k % 4]
    return x.flip(turned)


def roll(x, shift, axis=None):
    x = convert_to_tensor(x)
    if axis is None:
        return roll(x.reshape(-1), shift, 0).reshape(x.shape)
    shifts, axes = np.broadcast_arrays(to_ints(shift), to_ints(axis))
    for amount, a in zip(shifts.tolist(), axes.tolist()):
        a = canonicalize_axis(a, x.ndim)
        if amount % (x.shape[a] or 1):
            cut = x.shape[a] - amount % x.shape[a]
            tail = x[along(a, slice(cut, None))]
            x = tail.cat(x[along(a, slice(0, cut))], dim=a)
    return x


# Joining.


def concatenate(xs, axis=0):
    xs = as_tensors(xs)
    if axis is None:
        xs, axis = [x.reshape(-1) for x in xs], 0
    axis = canonicalize_axis(axis, xs[0].ndim)
    rests = {(*x.shape[:axis], *x.shape[axis + 1 :]) for x in xs}
    if len(rests) > 1 or len({x.ndim for x in xs}) > 1:
        raise ValueError(
            "Every value must have the same shape except on the `axis` "
            f"dimension. Received: shapes {[x.shape for x in xs]}, "
            f"axis={axis}"
        )
    return xs[0].cat(*xs[1:], dim=axis) if len(xs) > 1 else xs[0]


def stack(x, axis=0):
    xs = as_tensors(x)
    if len({x.shape for x in xs}) > 1:
        raise ValueError(
            "`stack` expects values of one shape. Received: shapes "
            f"{[x.shape for x in xs]}"
        )
    axis = canonicalize_axis(axis, xs[0].ndim + 1)
    return concatenate([expand_dims(x, axis) for x in xs], axis)


def append(x1, x2, axis=None):
    return concatenate([x1, x2], axis)


def hstack(xs):
    xs = [_at_least(x, 1) for x in as_tensors(xs)]
    return concatenate(xs, 0 if xs[0].ndim == 1 else 1)


def vstack(xs):
    return concatenate([_at_least(x, 2) for x in as_tensors(xs)], 0)


def dstack(xs):
    return concatenate([_at_least(x, 3) for x in as_tensors(xs)], 2)


def _at_least(x, rank):
    """Adds axes as `numpy.atleast_1d`, `_2d` and `_3d` do."""
    if x.ndim >= rank:
        return x
    if rank == 3:
        return _at_least(x, 2).unsqueeze(2)
    return x.reshape((1,) * (rank - x.ndim) + x.shape)


# Splitting.


def split(x, indices_or_sections, axis=0):
    x = convert_to_tensor(x)
    axis = canonicalize_axis(axis, x.ndim)
    total = x.shape[axis]
    if np.ndim(indices_or_sections) == 0:
        sections = to_int("indices_or_sections", indices_or_sections, 1)
        if total % sections:
            raise ValueError(
                "`x` size on given `axis` must be divisible by "
                "`indices_or_sections` when it is an int. Received: "
                f"indices_or_sections={indices_or_sections}, axis={axis}, x "
                f"of shape {x.shape}"
            )
        return array_split(x, sections, axis)
    return _cut(x, to_ints(indices_or_sections), axis)


def array_split(x, indices_or_sections, axis=0):
    x = convert_to_tensor(x)
    axis = canonicalize_axis(axis, x.ndim)
    sections = to_int("indices_or_sections", indices_or_sections, 1)
    length, longer = divmod(x.shape[axis], sections)
    ends = [(i + 1) * length + min(i + 1, longer) for i in range(sections - 1)]
    return _cut(x, ends, axis)


def _cut(x, positions, axis):
    total = x.shape[axis]
    pieces = []
    for start, stop in zip([0, *positions], [*positions, total]):
        start, stop, _ = slice(start, stop).indices(total)
        bounds = [(0, s) for s in x.shape]
        bounds[axis] = (start, max(start, stop))
        pieces.append(x.shrink(tuple(bounds)))
    return pieces


def hsplit(x, indices_or_sections):
    x = convert_to_tensor(x)
    _require_rank("hsplit", x, 1)
    return split(x, indices_or_sections, 0 if x.ndim == 1 else 1)


def vsplit(x, indices_or_sections):
    x = convert_to_tensor(x)
    _require_rank("vsplit", x, 2)
    return split(x, indices_or_sections, 0)


def dsplit(x, indices_or_sections):
    x = convert_to_tensor(x)
    _require_rank("dsplit", x, 3)
    return split(x, indices_or_sections, 2)


# Repetition.


def repeat(x, repeats, axis=None):
    x = convert_to_tensor(x)
    if axis is None:
        x, axis = x.reshape(-1), 0
    axis = canonicalize_axis(axis, x.ndim)
    counts = to_ints(repeats)
    if len(counts) > 1:
        index = np.repeat(np.arange(x.shape[axis], dtype="int32"), counts)
        return take(x, index, axis)
    count = to_int("repeats", counts[0], 0)
    shape = [*x.shape[: axis + 1], count, *x.shape[axis + 1 :]]
    repeated = x.unsqueeze(axis + 1).expand(shape)
    shape[axis : axis + 2] = [x.shape[axis] * count]
    return repeated.reshape(shape)


def tile(x, repeats):
    x = convert_to_tensor(x)
    repeats = [to_int("repeats", n, 0) for n in to_ints(repeats)]
    rank = max(len(repeats), x.ndim)
    repeats = [1] * (rank - len(repeats)) + repeats
    shape = (1,) * (rank - x.ndim) + x.shape
    blocks = x.reshape([d for s in shape for d in (1, s)])
    blocks = blocks.expand([d for rs in zip(repeats, shape) for d in rs])
    return blocks.reshape([r * s for r, s in zip(repeats, shape)])


# Diagonals and triangles.


def diag(x, k=0):
    x = convert_to_tensor(x)
    if x.ndim == 1:
        return _to_diagonal(x, k)
    if x.ndim == 2:
        return diagonal(x, k)
    raise ValueError(f"`x` must be 1-D or 2-D. Received: x of shape {x.shape}")


def diagflat(x, k=0):
    return _to_diagonal(ravel(x), k)


def _to_diagonal(x, k):
    n, k = x.shape[0], to_int("k", k)
    # Rows one longer than the matrix shift the diagonal by one each.
    rows = x.unsqueeze(1).pad(((0, 0), (0, n))).reshape(-1)
    matrix = rows[: n * n].reshape(n, n)
    before, after = max(k, 0), max(-k, 0)
    return matrix.pad(((after, before), (before, after)))


def diagonal(x, offset=0, axis1=0, axis2=1):
    x = convert_to_tensor(x)
    axis1 = canonicalize_axis(axis1, x.ndim)
    axis2 = canonicalize_axis(axis2, x.ndim)
    if axis1 == axis2:
        raise ValueError(
            "`axis1` and `axis2` cannot be the same. "
            f"Received: axis1={axis1}, axis2={axis2}"
        )
    x = moveaxis(x, (axis1, axis2), (-2, -1))
    *batch, rows, columns = x.shape
    offset = to_int("offset", offset)
    top, left = min(max(-offset, 0), rows), min(max(offset, 0), columns)
    n = min(rows - top, columns - left)
    bounds = [(0, s) for s in batch] + [(top, top + n), (left, left + n)]
    flat = x.shrink(tuple(bounds)).reshape(*batch, n * n)
    padded = flat.pad(tuple([(0, 0)] * len(batch) + [(0, n)]))
    return padded.reshape(*batch, n, n + 1)[..., 0]


def trace(x, offset=0, axis1=0, axis2=1):
    return reduction.sum(diagonal(x, offset, axis1, axis2), axis=-1)


def tril(x, k=0):
    x = convert_to_tensor(x)
    _require_rank("tril", x, 2)
    return x.tril(to_int("k", k))


def triu(x, k=0):
    x = convert_to_tensor(x)
    _require_rank("triu", x, 2)
    return x.triu(to_int("k", k))


# Differences and padding.


def diff(a, n=1, axis=-1):
    x = convert_to_tensor(a)
    if n < 0:
        raise ValueError(f"Order `n` must be non-negative. Received: n={n}")
    axis = canonicalize_axis(axis, x.ndim)
    for _ in range(n):
        after, before = (
            x[along(axis, slice(1, None))],
            x[along(axis, slice(-1))],
        )
        boolean = dtype_of(x) == "bool"
        x = after ^ before if boolean else after - before
    return x


def pad(x, pad_width, mode="constant", constant_values=None):
    x = convert_to_tensor(x)
    if constant_values is not None and mode != "constant":
        raise ValueError(
            "Argument `constant_values` can only be "
            "provided when `mode == 'constant'`. "
            f"Received: mode={mode}"
        )
    widths = np.asarray(pad_width)
    if widths.dtype.kind not in "iu" and widths.size:
        raise TypeError(
            f"`pad_width` must be integers. Received: pad_width={pad_width}"
        )
    widths = np.broadcast_to(widths, (x.ndim, 2))
    widths = widths.tolist()
    if min([0, *sum(widths, [])]) < 0:
        raise ValueError(
            "`pad_width` cannot contain negative values. Received: "
            f"pad_width={pad_width}"
        )
    if mode in ("constant", "empty"):
        value = 0 if constant_values is None else constant_values
        return _pad_constant(x, widths, value)
    for axis, (before, after) in enumerate(widths):
        if before or after:
            x = _pad_axis(x, axis, before, after, mode)
    return x


def _pad_constant(x, widths, value):
    values = np.broadcast_to(
        np.asarray(convert_to_numpy(value)), (x.ndim, 2)
    ).tolist()
    # The values of a later axis fill the corners.
    for axis, pair in enumerate(values):
        for side, v in enumerate(pair):
            padding = [(0, 0)] * x.ndim
            padding[axis] = (
                (widths[axis][0], 0) if side == 0 else (0, widths[axis][1])
            )
            v = v if is_float(x) else int(v)
            x = x.pad(tuple(padding), value=v)
    return x


def _pad_axis(x, axis, before, after, mode):
    """Pads one axis with values taken or computed from it."""
    if mode == "linear_ramp":
        return _pad_ramp(x, axis, before, after)
    if mode in ("maximum", "minimum", "mean", "median"):
        return _pad_statistic(x, axis, before, after, mode)
    if mode not in ("edge", "reflect", "symmetric", "wrap"):
        raise ValueError(f"Unsupported padding mode. Received: mode={mode}")
    index = np.pad(np.arange(x.shape[axis]), (before, after), mode)
    pieces = []
    for run in _runs(index.tolist()):
        piece = x[along(axis, slice(min(run), max(run) + 1))]
        if run[0] == run[-1]:
            shape = list(x.shape)
            shape[axis] = len(run)
            piece = piece.expand(shape)
        pieces.append(piece.flip(axis) if run[0] > run[-1] else piece)
    return concatenate(pieces, axis)


def _runs(index):
    """Splits indices into slices, maybe backwards, and repeats of one."""
    runs = [[]]
    for i in index:
        run = runs[-1]
        step = i - run[-1] if run else 0
        if abs(step) > 1 or (len(run) > 1 and step != run[-1] - run[-2]):
            runs.append([])
        runs[-1].append(i)
    return runs


def _pad_statistic(x, axis, before, after, mode):
    from keras.src.backend.tinygrad.numpy import statistics

    functions = {
        "maximum": reduction.max,
        "minimum": reduction.min,
        "mean": reduction.mean,
        "median": statistics.median,
    }
    value = functions[mode](x, axis, keepdims=True)
    if not is_float(x):
        value = elementwise.round(value)
    value = cast(value, x.dtype)
    blocks = [
        value.expand(*x.shape[:axis], count, *x.shape[axis + 1 :])
        for count in (before, after)
    ]
    return concatenate([blocks[0], x, blocks[1]], axis)


def _pad_ramp(x, axis, before, after):
    def ramp(edge, count):
        edge = edge.squeeze(axis)
        return linspace(
            edge.const_like(0),
            edge,
            count,
            endpoint=False,
            dtype=dtype_of(x),
            axis=axis,
        )

    first = ramp(x[along(axis, slice(0, 1))], before)
    last = ramp(x[along(axis, slice(-1, None))], after).flip(axis)
    return concatenate([first, x, last], axis)
