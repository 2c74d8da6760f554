"""What the array operations share: dtype promotion, axes and gradients."""

import functools
import inspect
import operator

import numpy as np
from tinygrad import Tensor
from tinygrad import dtypes as tinygrad_dtypes

from keras.src.backend import config
from keras.src.backend.common import dtypes
from keras.src.backend.common import standardize_dtype
from keras.src.backend.tinygrad.core import convert_to_numpy
from keras.src.backend.tinygrad.core import convert_to_tensor
from keras.src.backend.tinygrad.core import is_tensor
from keras.src.backend.tinygrad.core import to_tinygrad_dtype

WIDE_DTYPES = ("int64", "uint64", "float64")
NARROW_FLOATS = (tinygrad_dtypes.float16, tinygrad_dtypes.bfloat16)


def result_type(*operands):
    """Keras' `result_type`, except that 64-bit operands are not narrowed.

    Keras narrows results to 32 bits because JAX does. Like on torch and
    TensorFlow, a tensor that the user made 64 bits wide keeps its precision.
    """
    return _result_type(operands, config.floatx())


@functools.lru_cache(maxsize=None)
def _result_type(operands, floatx):
    nodes = {_lattice_node(d) for d in operands}
    if not nodes.intersection(WIDE_DTYPES):
        return dtypes.result_type(*operands)
    dtype = dtypes._least_upper_bound(*nodes)
    return dtype + floatx[-2:] if dtype in dtypes.WEAK_TYPES else dtype


def _lattice_node(dtype):
    """Returns the name of a dtype, or of a Python type, in the lattice."""
    if dtype in (int, float):
        # Keras' own strings: it tells them by identity, in what it caches.
        return dtypes.WEAK_TYPES[dtype is float]
    return standardize_dtype(dtype)


def floating(*operands):
    """Result dtype of operations that compute in floating point."""
    return result_type(*operands, float)


def floating_wide(*operands):
    """The same, for operations that take 64-bit integers to float64."""
    dtype = result_type(*operands)
    if dtype in ("int64", "uint64"):
        return "float64"
    return dtype if "float" in dtype else config.floatx()


def at_least_float32(*operands):
    """Dtype to compute in where 16 bits would lose too much."""
    return result_type(*operands, "float32")


def comparison(*operands):
    """Dtype in which operands compare: it holds the values of each."""
    nodes = {"int32" if d is int else _lattice_node(d) for d in operands}
    dtype = dtypes._least_upper_bound(*nodes)
    return config.floatx() if dtype == "float" else dtype


def boolean(*operands):
    """Dtype of the operands of logical operations."""
    return "bool"


def integral(*operands):
    """Result dtype of arithmetic that counts with booleans."""
    dtype = result_type(*operands)
    return "int32" if dtype == "bool" else dtype


def strong(*operands, rule=result_type):
    """Result dtype where a Python integer counts as an int32 tensor does."""
    return rule(*["int32" if o is int else o for o in operands])


def dtype_of(x):
    """Returns the name of a tensor's dtype."""
    return standardize_dtype(x.dtype)


def is_float(x):
    return tinygrad_dtypes.is_float(x.dtype)


def to_operand(x):
    """Turns an argument into what `promote` takes: a tensor, or weak.

    Python scalars do not decide a result's dtype, and neither do NumPy
    scalars of 64 bits, which are how NumPy spells Python's.
    """
    if type(x) in (int, float):
        return x
    if isinstance(x, (np.generic, np.ndarray)) and x.ndim == 0:
        if x.dtype.kind in "iuf" and x.dtype.itemsize == 8:
            return x.item()
    return convert_to_tensor(x)


def promote(*xs, rule=result_type):
    """Converts operands to tensors of their common dtype.

    Args:
        *xs: Tensors, or what `convert_to_tensor` takes.
        rule: Function from the operands' dtypes (`int` and `float` stand for
            Python scalars) to the dtype's name.

    Returns:
        List of `Tensor`s.
    """
    # A lone operand is nobody's scalar: its own dtype counts.
    take = to_operand if len(xs) > 1 else convert_to_tensor
    operands = [take(x) for x in xs]
    dtype = _dtype_of_all(rule, operands)
    if int in map(type, operands) and not all(
        type(o) is not int or type(x) is int or _holds(dtype, o)
        for x, o in zip(xs, operands)
    ):
        # A NumPy scalar of more bits than the others is an array after all.
        operands = [x if type(x) is int else convert_to_tensor(x) for x in xs]
        dtype = _dtype_of_all(rule, operands)
    return [
        Tensor(x, dtype=dtype) if type(x) in (int, float) else x.cast(dtype)
        for x in operands
    ]


def _dtype_of_all(rule, operands):
    return _common_dtype(
        rule,
        tuple([getattr(x, "dtype", type(x)) for x in operands]),
        config.floatx(),
    )


def _holds(dtype, number):
    """Whether a dtype, if it is one of integers, has an integer."""
    return not tinygrad_dtypes.is_int(dtype) or (
        dtype.min <= number <= dtype.max
    )


@functools.lru_cache(maxsize=1024)
def _common_dtype(rule, operands, floatx):
    return to_tinygrad_dtype(rule(*operands))


def elementwise(rule=result_type, wide=False):
    """Declares an elementwise operation.

    The decorated function gets its leading arguments, those without a
    default, as tensors of one dtype whose shapes broadcast. This is the one
    place through which such operations take their operands.

    Args:
        rule: See `promote`.
        wide: Whether float16 and bfloat16 are computed in float32.
    """

    def decorate(fn):
        names = [
            p.name
            for p in inspect.signature(fn).parameters.values()
            if p.default is p.empty
        ]

        @functools.wraps(fn)
        def operation(*args, **kwargs):
            given = names[len(args) :]
            args += tuple(kwargs.pop(n) for n in given if n in kwargs)
            xs = promote(*args[: len(names)], rule=rule)
            check_broadcast(fn.__name__, *xs)
            dtype = xs[0].dtype
            if wide and dtype in NARROW_FLOATS:
                xs = [x.cast(tinygrad_dtypes.float32) for x in xs]
                result = fn(*xs, *args[len(names) :], **kwargs)
                return result.cast(dtype)
            return fn(*xs, *args[len(names) :], **kwargs)

        return operation

    return decorate


def check_broadcast(name, *xs):
    """Raises `ValueError` unless the tensors' shapes broadcast."""
    shapes = {x.shape for x in xs}
    if len(shapes) > 1:
        try:
            np.broadcast_shapes(*shapes)
        except ValueError:
            raise ValueError(
                f"`{name}` expects operands whose shapes broadcast. "
                f"Received: shapes {[x.shape for x in xs]}"
            )


def root(x):
    """Square root whose derivative at zero is zero."""
    zero = x == 0
    return zero.where(0, zero.where(1, x).sqrt())


def broadcast(*xs):
    """Expands tensors to their common shape."""
    shape = np.broadcast_shapes(*[x.shape for x in xs])
    return [x if x.shape == shape else x.expand(shape) for x in xs]


def canonicalize_axis(axis, ndim):
    """Returns an axis in [-ndim, ndim) as a non-negative one."""
    axis = operator.index(axis)
    if not -ndim <= axis < ndim:
        # A `ValueError`, as Keras has it, and an `IndexError`, as torch.
        raise np.exceptions.AxisError(
            f"axis {axis} is out of bounds for an array with dimension {ndim}."
        )
    return axis % ndim


def to_int(name, value, least=None):
    """Returns an argument that must be an integer, and not below `least`."""
    try:
        number = operator.index(
            convert_to_numpy(value) if is_tensor(value) else value
        )
    except TypeError:
        raise TypeError(
            f"`{name}` must be an integer. Received: {name}={value}"
        ) from None
    if least is not None and number < least:
        raise ValueError(
            f"`{name}` must not be below {least}. Received: {name}={value}"
        )
    return number


def refuse_bool(name, x):
    """Raises for what has no meaning for truth values."""
    if x.dtype == tinygrad_dtypes.bool:
        raise TypeError(
            f"`{name}` does not support booleans. Cast the operands to a "
            f"numeric dtype first. Received: dtype=bool, shape={x.shape}"
        )


def to_axes(axis, ndim):
    """Returns the axes that an `axis` argument names, sorted, none twice."""
    if axis is None:
        return tuple(range(ndim))
    axes = axis if isinstance(axis, (tuple, list)) else (axis,)
    result = tuple(sorted({canonicalize_axis(a, ndim) for a in axes}))
    if len(result) != len(axes):
        raise ValueError(f"Duplicate value in `axis`. Received: axis={axis}")
    return result


def along(axis, index):
    """Returns the index that applies `index` to one non-negative axis."""
    return (slice(None),) * axis + (index,)


def last_axis_view(x, axes):
    """Moves `axes` to the end and flattens them into one axis."""
    rest = [a for a in range(x.ndim) if a not in axes]
    moved = x.permute(*rest, *axes) if x.ndim else x
    sizes = [x.shape[a] for a in rest]
    count = int(np.prod([x.shape[a] for a in axes], dtype=np.int64))
    return moved.reshape(*sizes, count)


def keep_axes(shape, axes):
    """Returns `shape` with the reduced `axes` as ones."""
    return tuple(1 if a in axes else s for a, s in enumerate(shape))


def constant(value, dtype, shape=()):
    """Returns a tensor that is a constant of the graph, without a buffer."""
    return Tensor.full(shape, value, to_tinygrad_dtype(dtype), buffer=False)


def as_tensors(xs):
    """Converts a sequence of operands to tensors of one dtype."""
    if is_tensor(xs):
        return [xs[i] for i in range(xs.shape[0])]
    if not len(xs):
        raise ValueError("Expected at least one tensor. Received none.")
    return promote(*xs)


def to_ints(values):
    """Converts a size, or sizes in a sequence or tensor, to a list of ints."""
    if not isinstance(values, (tuple, list)):
        values = np.asarray(convert_to_numpy(values)).reshape(-1).tolist()
    else:
        values = [np.asarray(convert_to_numpy(v)).item() for v in values]
    if not all(isinstance(v, int) for v in values):
        raise TypeError(f"Expected integers. Received: {values}")
    return [int(v) for v in values]


def to_shape(shape):
    """Converts the shape of a tensor that is to be made to a tuple of ints."""
    sizes = tuple(to_ints(shape))
    if any(size < 0 for size in sizes):
        raise ValueError(
            "Expected a shape of sizes that are not negative. "
            f"Received: shape={sizes}"
        )
    return sizes
