"""The table of ops: how to draw arguments for each, and what to expect.

Every check of `ops_test.py` and every case of the fuzzer comes from here. An
entry's `draw` takes a `Draw` and returns the op's arguments; the same seed
gives the same arguments.
"""

import dataclasses
import functools
import math
from collections.abc import Callable

import ml_dtypes
import numpy as np

from integration_tests.ops.array_table import add_array_ops
from integration_tests.ops.function_table import add_function_ops
from integration_tests.ops.nn_table import add_nn_ops

FLOATS = ("float32", "float16", "bfloat16")
INTS = ("int32", "uint8", "int8", "int16", "int64", "uint32")
NUMBERS = FLOATS + INTS
ALL = NUMBERS + ("bool",)
# Of a drawn shape; more would have ties in bfloat16's distinct numbers.
MOST_ELEMENTS = 256


@dataclasses.dataclass(frozen=True)
class Op:
    """One op of `keras.ops`.

    Attributes:
        name: Name under `keras.ops`.
        draw: Function of a `Draw`, returning a tuple of arguments and a dict
            of keyword arguments.
        dtypes: Dtypes its array arguments are drawn in.
        gradient: Whether it has a gradient in its floating arguments.
        spec: Whether Keras infers its symbolic shape and dtype rightly.
        symmetric: Whether it is defined on symmetric matrices alone, so that
            gradients are compared along symmetric directions.
        rtol: Relative tolerance in float32.
        compare: Optional function of the numpy results and arguments that
            maps them to what is compared, for results that are defined up to
            a choice (signs of eigenvectors, say).
        edges: Whether the fuzzer may draw special values: infinities, NaN,
            zeros of both signs and the ends of the dtype's range.
        complex: Whether it takes complex numbers.
        double: Whether Keras and the numpy backend compute it in float64
            where its arguments are.
        compiled: Whether a compiled step can have it: the shape of what it
            returns does not depend on values.
        rounded: Whether integers go through floats and are rounded at last.
    """

    name: str
    draw: Callable
    dtypes: tuple = FLOATS
    gradient: bool = True
    spec: bool = True
    symmetric: bool = False
    rtol: float = 2e-5
    compare: Callable | None = None
    edges: bool = True
    complex: bool = False
    double: bool = True
    compiled: bool = True
    rounded: bool = False

    @property
    def fuzzed_dtypes(self):
        """The dtypes that the fuzzer draws."""
        more = ()
        if "float32" in self.dtypes and self.double:
            more += ("float64",)
        if "uint32" in self.dtypes:
            more += ("uint16",)
        if self.complex:
            more += ("complex64",)
        return self.dtypes + more


class Draw:
    """Draws random arguments.

    Args:
        seed: Integer seed.
        dtype: Dtype of arrays, by default.
        small: Whether to draw the smallest shapes, to shrink a failure.
        wild: Whether to draw what the fuzzer alone draws: larger shapes and
            operands of several dtypes.
        edges: Whether some arrays hold special values.
    """

    def __init__(self, seed, dtype, small=False, wild=False, edges=False):
        self.rng = np.random.default_rng(seed)
        self.dtype = dtype
        self.small = small
        self.wild = wild
        self.edges = edges

    def integer(self, low, high):
        return int(self.rng.integers(low, high + 1))

    def choice(self, *values):
        return values[self.integer(0, len(values) - 1)]

    def shape(self, low=0, high=3, empty=True):
        """A shape of rank `low` to `high`; a dimension may be 0."""
        sizes = (1, 2) if self.small else (1, 2, 3, 4, 5)
        rank = low if self.small else self.integer(low, high)
        shape = [self.choice(*sizes) for _ in range(rank)]
        if self.wild and rank and not self.small and self.integer(0, 5) == 0:
            largest = MOST_ELEMENTS // math.prod(shape)
            size = self.choice(7, 8, 13, 16, 31, 33, 64, 100, 129)
            shape[self.integer(0, rank - 1)] = min(size, largest)
        if empty and rank and not self.small and self.integer(0, 15) == 0:
            shape[self.integer(0, rank - 1)] = 0
        return tuple(shape)

    def array(self, shape, low=-3.0, high=3.0, dtype=None, alone=False):
        """An array with values in [low, high], as far as the dtype goes.

        An array of the case's own dtype may hold special values too; the
        largest and smallest floats only where each element counts `alone`,
        or the order of additions would count.
        """
        edges = self.edges and dtype is None and self.integer(0, 1) == 0
        dtype = dtype or self.dtype
        if dtype == "bool":
            return self.rng.integers(0, 2, shape).astype("bool")
        if dtype.startswith(("int", "uint")):
            low = max(int(np.ceil(low)), 0 if dtype[0] == "u" else -120)
            high = max(int(high), low)
            x = self.rng.integers(low, high + 1, shape).astype(dtype)
        else:
            x = np.asarray(self.rng.uniform(low, high, shape))
            if dtype == "complex64":
                x = x + 1j * self.rng.uniform(low, high, shape)
            # A sum of arrays of rank 0 is a scalar.
            x = np.asarray(x.astype(_numpy_dtype(dtype)))
        return self._with_edges(x, alone) if edges else x

    def _with_edges(self, x, alone):
        """Puts special values in a third of the places."""
        if x.dtype.kind in "iu":
            info = np.iinfo(x.dtype)
            special = [info.min, info.min + 1, 0, 1, info.max - 1, info.max]
        elif x.dtype.kind == "c":
            special = [0, 1, 1j, -1, -1j]
        else:
            special = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1, -1, 0.5, -2.5]
            special += [-7.0, 20.0, 300.0, -300.0, 1e4]
            if alone:
                info = ml_dtypes.finfo(x.dtype)
                ends = [info.max, info.smallest_normal, info.eps]
                special += [s * float(v) for v in ends for s in (1, -1)]
        special = np.array(special).astype(x.dtype)
        chosen = special[self.rng.integers(len(special), size=x.shape)]
        return np.where(self.rng.integers(0, 3, x.shape) == 0, chosen, x)

    def operand(self, shape, low=-3.0, high=3.0, dtypes=ALL + ("float64",)):
        """An array as `array` does, sometimes of another dtype or a number."""
        if not self.wild or self.dtype == "complex64":
            return self.array(shape, low, high)
        kind = self.integer(0, 5)
        if kind == 0:
            # NumPy refuses a negative number beside unsigned ones.
            low = max(low, 0.0) if self.dtype[0] == "u" else low
            value = self.array((), low, high, dtype="float64")
            number = self.choice(float(value), int(value))
            return number if "float32" in dtypes else int(value)
        if kind == 1:
            dtype = self.choice(*dtypes)
            return self.array(shape, low, high, dtype=dtype)
        return self.array(shape, low, high, alone=True)

    def distinct(self, shape):
        """An array without ties."""
        size = int(np.prod(shape))
        values = self.rng.permutation(size) - size // 2
        values = values.reshape(shape).astype(_numpy_dtype(self.dtype))
        return np.asarray(values)

    def axis(self, rank, none=True):
        """An axis, a negative one, or `None`."""
        if rank == 0 or (none and self.integer(0, 3) == 0):
            return None
        return self.integer(-rank, rank - 1)

    def axes(self, rank):
        """An axis, several of them, or `None`."""
        if rank < 2 or self.integer(0, 1):
            return self.axis(rank)
        count = self.integer(1, rank)
        return tuple(int(a) for a in self.rng.permutation(rank)[:count])

    def broadcast(self, count):
        """Shapes that broadcast with each other."""
        full = self.shape()
        shapes = []
        for _ in range(count):
            shape = [1 if self.integer(0, 3) == 0 else d for d in full]
            shapes.append(tuple(shape[self.integer(0, len(shape)) :]))
        shapes[self.integer(0, count - 1)] = full
        return shapes


def _numpy_dtype(name):
    return np.dtype(getattr(ml_dtypes, name, name))


def _unary(low=-3.0, high=3.0):
    return lambda d: ((d.array(d.shape(), low, high, alone=True),), {})


def _binary(low=-3.0, high=3.0, low2=None, high2=None, dtypes=None):
    def draw(d):
        a, b = d.broadcast(2)
        second = (
            low if low2 is None else low2,
            high if high2 is None else high2,
        )
        others = dtypes or ALL + ("float64",)
        first = d.array(a, low, high, alone=True)
        return (first, d.operand(b, *second, others)), {}

    return draw


def _reduce(low=-3.0, high=3.0, empty=True, distinct=False, rank=0):
    def draw(d):
        shape = d.shape(rank, empty=empty)
        x = d.distinct(shape) if distinct else d.array(shape, low, high)
        axis = d.axes(len(shape))
        return (x,), {"axis": axis, "keepdims": bool(d.integer(0, 1))}

    return draw


def _one_axis(distinct=False, empty=False, none=False):
    def draw(d):
        shape = d.shape(low=1, empty=empty)
        x = d.distinct(shape) if distinct else d.array(shape)
        return (x,), {"axis": d.axis(len(shape), none=none)}

    return draw


def _matrix(d, extra=0.0, square=True):
    n = d.integer(1, 4)
    m = n if square else d.integer(1, 4)
    lead = d.shape(0, 1, empty=False)
    return d.array((*lead, n, m)) + (extra * np.eye(n, m)).astype(
        _numpy_dtype(d.dtype)
    )


def _positive_definite(d):
    a = _matrix(d)
    return a @ np.swapaxes(a, -1, -2) + np.eye(a.shape[-1], dtype=a.dtype)


def _table():
    table = []

    def add(name, draw, **kwargs):
        table.append(Op(name, draw, **kwargs))

    def each(names, draw, **kwargs):
        for name in names.split():
            add(name, draw, **kwargs)

    whole = dict(dtypes=("float32",))
    # Elementwise.
    each(
        "sin cos tanh sinh cosh arctan arcsinh exp exp2 expm1 sigmoid silu "
        "softplus softsign relu relu6 leaky_relu elu selu celu gelu "
        "log_sigmoid squareplus hard_sigmoid hard_tanh soft_shrink "
        "hard_shrink tanh_shrink sparse_plus sparse_sigmoid erf erfc sinc "
        "deg2rad rad2deg square negative abs i0",
        _unary(),
    )
    each("tan", _unary(-1.2, 1.2))
    each("log log2 log10 sqrt rsqrt cbrt", _unary(0.1, 5.0))
    # Keras infers float32 for it, whatever the operand.
    each("reciprocal", _unary(0.1, 5.0), spec=False)
    each("log1p", _unary(-0.9, 5.0))
    each("arcsin arccos arctanh erfinv", _unary(-0.9, 0.9))
    each("arccosh", _unary(1.1, 5.0))
    each(
        "floor ceil trunc signbit isfinite isinf isnan isneginf "
        "isposinf nan_to_num logical_not",
        _unary(),
        dtypes=ALL,
        gradient=False,
    )
    each(
        "sign square negative abs",
        _unary(),
        dtypes=NUMBERS,
        gradient=False,
    )
    add(
        "round",
        lambda d: ((d.array(d.shape()),), {"decimals": d.integer(0, 2)}),
        gradient=False,
    )
    each(
        "add subtract multiply maximum minimum",
        _binary(),
        dtypes=ALL[:-1],
        gradient=False,
    )
    each("add subtract multiply arctan2 hypot", _binary(), **whole)
    each("logaddexp logaddexp2", _binary(), **whole)
    each("divide", _binary(-3, 3, 0.5, 3))
    add("power", _binary(0.2, 3, -2, 2))
    each(
        "mod floor_divide",
        _binary(-9, 9, 1, 5),
        dtypes=("float32",) + INTS,
        gradient=False,
    )
    each(
        "equal not_equal greater greater_equal less less_equal logical_and "
        "logical_or logical_xor fmax fmin",
        _binary(),
        dtypes=ALL,
        gradient=False,
    )
    each(
        "bitwise_and bitwise_or bitwise_xor",
        _binary(0, 100, dtypes=INTS),
        dtypes=INTS,
        gradient=False,
        # Keras infers the first operand's shape, not the broadcast one.
        spec=False,
    )
    each(
        "left_shift right_shift",
        _binary(0, 20, 0, 3, dtypes=INTS),
        dtypes=INTS,
        gradient=False,
        spec=False,
    )
    each("gcd lcm", _binary(0, 30, dtypes=INTS), dtypes=INTS, gradient=False)
    each("heaviside nextafter", _binary(), gradient=False, **whole)
    each("isclose", _binary(), gradient=False, **whole)
    add(
        "where",
        lambda d: (
            lambda shapes: (
                (
                    d.array(shapes[0], dtype="bool"),
                    d.array(shapes[1]),
                    d.array(shapes[2]),
                ),
                {},
            )
        )(d.broadcast(3)),
        dtypes=ALL,
    )
    add(
        "clip",
        lambda d: ((d.array(d.shape()), -1.0, 1.5), {}),
        dtypes=FLOATS + ("int32",),
    )

    # Reductions.
    add("sum", _reduce(empty=False), dtypes=ALL)
    add("mean", _reduce(empty=False))
    # In float32, as on torch, the ends of int32 would cancel all the others.
    add("mean", _reduce(empty=False), dtypes=ALL[3:], edges=False)
    each("prod", _reduce(0.5, 1.5, empty=False))
    each("var std", _reduce(empty=False), rtol=1e-4)
    each("max min amax amin ptp", _reduce(empty=False, distinct=True))
    each("any all", _reduce(), dtypes=ALL, gradient=False)
    # Keras infers float32 for it, whatever the operand; of a scalar, SciPy
    # makes a vector.
    each("logsumexp", _reduce(empty=False, rank=1), spec=False)
    each(
        "nansum nanprod nanmean nanvar nanstd nanmax nanmin",
        _reduce(0.5, 1.5, empty=False),
        gradient=False,
        rtol=1e-4,
        **whole,
    )
    add(
        "count_nonzero",
        lambda d: (
            lambda shape: ((d.array(shape),), {"axis": d.axes(len(shape))})
        )(d.shape()),
        dtypes=ALL,
        gradient=False,
    )
    each("argmax argmin", _one_axis(distinct=True), gradient=False)
    each("argsort", _one_axis(distinct=True), gradient=False)
    each("sort", _one_axis(distinct=True))
    each("cumsum", _one_axis(empty=True, none=True))
    each("cumprod", _one_axis(none=True), rtol=1e-4)
    each("median", _reduce(empty=False, distinct=True), gradient=False)
    each("softmax log_softmax", _one_axis())
    each("sparsemax", _one_axis(), rtol=1e-4, **whole)
    each("normalize", _one_axis(), rtol=1e-4, **whole)
    add(
        "quantile",
        lambda d: (
            lambda shape: (
                (d.distinct(shape), np.array([0.1, 0.5, 0.9], "float32")),
                {"axis": d.axis(len(shape), none=False)},
            )
        )(d.shape(1, empty=False)),
        gradient=False,
        **whole,
    )

    # Shapes and positions.
    each("flip", _one_axis(empty=True, none=True), dtypes=ALL)
    each("diff", _one_axis(), **whole)
    add(
        "transpose",
        lambda d: (
            lambda shape: (
                (d.array(shape),),
                {"axes": tuple(int(a) for a in d.rng.permutation(len(shape)))},
            )
        )(d.shape()),
        dtypes=ALL,
    )
    add("ravel", lambda d: ((d.array(d.shape()),), {}), dtypes=ALL)
    add(
        "expand_dims",
        lambda d: (
            lambda shape: (
                (d.array(shape), d.integer(-len(shape) - 1, len(shape))),
                {},
            )
        )(d.shape()),
        dtypes=ALL,
    )
    add(
        "roll",
        lambda d: (
            lambda shape: (
                (d.array(shape), d.integer(-4, 4)),
                {"axis": d.axis(len(shape))},
            )
        )(d.shape(1, empty=False)),
        dtypes=ALL,
    )
    add(
        "pad",
        lambda d: (
            lambda shape: (
                (
                    d.array(shape),
                    tuple((d.integer(0, 2), d.integer(0, 2)) for _ in shape),
                ),
                {"mode": d.choice("constant", "reflect", "symmetric", "edge")},
            )
        )(tuple(s + 2 for s in d.shape(1, 2, empty=False))),
        dtypes=FLOATS + ("int32",),
    )
    add(
        "tile",
        lambda d: (
            (
                d.array(d.shape(empty=False)),
                tuple(d.integer(1, 3) for _ in range(d.integer(1, 3))),
            ),
            {},
        ),
        dtypes=ALL,
    )
    add(
        "repeat",
        lambda d: (
            lambda shape: (
                (d.array(shape), d.integer(1, 3)),
                {"axis": d.axis(len(shape))},
            )
        )(d.shape(1, empty=False)),
        dtypes=ALL,
    )
    for name in ("concatenate", "stack"):
        add(name, _draw_joined, dtypes=ALL)
    each(
        "tril triu",
        lambda d: (
            (d.array(d.shape(2, 3)),),
            {"k": d.integer(-2, 2)},
        ),
        dtypes=ALL[:-1],
    )
    add(
        "trace",
        lambda d: (
            (d.array(d.shape(2, 3, empty=False)),),
            {"offset": d.integer(-1, 1)},
        ),
    )
    add(
        "diagonal",
        lambda d: (
            (d.array(d.shape(2, 3, empty=False)),),
            {"offset": d.choice(0, 0, 1)},
        ),
    )
    add(
        "take",
        lambda d: (
            lambda shape, axis: (
                (
                    d.array(shape),
                    d.array(
                        d.shape(0, 2),
                        -shape[axis],
                        shape[axis] - 1,
                        dtype="int32",
                    ),
                ),
                {"axis": axis},
            )
        )(*_shape_and_axis(d)),
        dtypes=ALL,
    )
    add("take_along_axis", _draw_take_along_axis, dtypes=ALL)
    add(
        "searchsorted",
        lambda d: (
            (
                np.sort(d.array((d.integer(1, 9),))),
                d.array(d.shape(1, 2)),
            ),
            {"side": d.choice("left", "right")},
        ),
        gradient=False,
        **whole,
    )

    # Products.
    add("matmul", _draw_matmul, dtypes=FLOATS + ("int32",), rtol=1e-4)
    add(
        "tensordot",
        lambda d: (
            lambda k: (
                (d.array((2, 3, k)), d.array((k, 4))),
                {"axes": 1},
            )
        )(d.integer(1, 5)),
        rtol=1e-4,
    )
    add("einsum", _draw_einsum, rtol=1e-4)
    add(
        "outer",
        lambda d: ((d.array(d.shape(1, 1)), d.array(d.shape(1, 1))), {}),
    )
    add(
        "dot",
        lambda d: (lambda k: ((d.array((3, k)), d.array((k, 2))), {}))(
            d.integer(1, 5)
        ),
        rtol=1e-4,
    )
    add(
        "cross",
        lambda d: ((d.array((2, 3)), d.array((2, 3))), {}),
        **whole,
    )

    # Linear algebra.
    f32 = dict(dtypes=("float32",), rtol=1e-4, edges=False)
    add("linalg.inv", lambda d: ((_matrix(d, 8.0),), {}), **f32)
    # Rounding errors are relative to the product of the rows' norms, some
    # thousands, and the determinant may be about 1.
    add(
        "linalg.det",
        lambda d: ((_matrix(d, 4.0),), {}),
        **{**f32, "rtol": 1e-3},
    )
    add(
        "linalg.cholesky",
        lambda d: ((_positive_definite(d),), {}),
        symmetric=True,
        **f32,
    )
    add(
        "linalg.solve",
        lambda d: (lambda a: ((a, d.array((*a.shape[:-1], 2))), {}))(
            _matrix(d, 8.0)
        ),
        **f32,
    )
    add(
        "linalg.qr",
        lambda d: ((_matrix(d, 4.0, square=False),), {}),
        compare=lambda results, args: np.abs(results[1]),
        **f32,
        gradient=False,
    )
    add(
        "linalg.svd",
        lambda d: ((_matrix(d, 4.0, square=False),), {}),
        compare=lambda results, args: results[1],
        gradient=False,
        **f32,
    )
    add(
        "linalg.eigh",
        lambda d: ((_positive_definite(d),), {}),
        compare=lambda results, args: results[0],
        gradient=False,
        **f32,
    )
    add("linalg.norm", lambda d: ((d.array(d.shape(1, 2, False)),), {}), **f32)

    # Complex numbers, which the fuzzer alone draws.
    parts = dict(
        dtypes=(), gradient=False, edges=False, complex=True, rtol=1e-4
    )
    each(
        "sin cos sinh cosh tanh exp expm1 log log2 log10 sqrt square "
        "negative abs reciprocal sign isfinite isnan round",
        _unary(),
        **parts,
    )
    each("add subtract multiply divide equal not_equal", _binary(), **parts)
    each("sum mean prod var std any all", _reduce(empty=False), **parts)
    each("flip cumsum", _one_axis(none=True), **parts)
    add("matmul", _draw_matmul, **parts)
    add("einsum", _draw_einsum, **parts)
    for name in ("concatenate", "stack"):
        add(name, _draw_joined, **parts)

    # Segments and sets.
    for name in ("segment_sum", "segment_max"):
        add(
            name,
            lambda d: (
                (
                    d.array((6, 2)),
                    np.sort(d.array((6,), 0, 3, dtype="int32")),
                ),
                {"num_segments": 5, "sorted": True},
            ),
            gradient=name == "segment_sum",
            **whole,
        )
    add(
        "top_k",
        lambda d: ((d.distinct((3, 5)), d.integer(1, 5)), {}),
        **whole,
    )
    add(
        "one_hot",
        lambda d: ((d.array(d.shape(), 0, 4, dtype="int32"), 5), {}),
        gradient=False,
        **whole,
    )
    add_array_ops(add, FLOATS, INTS, ALL)
    add_function_ops(add)
    add_nn_ops(functools.partial(add, edges=False), FLOATS)
    return tuple(table)


def _shape_and_axis(d):
    shape = d.shape(1, empty=False)
    return shape, d.axis(len(shape), none=False)


def _draw_joined(d):
    shape = d.shape(1)
    arrays = [d.array(shape) for _ in range(d.integer(1, 3))]
    return (arrays,), {"axis": d.axis(len(shape), none=False)}


def _draw_take_along_axis(d):
    shape, axis = _shape_and_axis(d)
    index_shape = list(shape)
    index_shape[axis] = d.integer(1, 4)
    indices = d.array(index_shape, 0, shape[axis] - 1, dtype="int32")
    return (d.array(shape), indices), {"axis": axis}


def _draw_matmul(d):
    m, k, n = (d.integer(1, 5) for _ in range(3))
    kind = d.integer(0, 3)
    if kind == 0:
        return (d.array((k,)), d.array((k, n))), {}
    if kind == 1:
        return (d.array((m, k)), d.array((k,))), {}
    if kind == 2:
        return (d.array((2, 1, m, k)), d.array((3, k, n))), {}
    return (d.array((m, k)), d.array((k, n))), {}


def _draw_einsum(d):
    sizes = {letter: d.integer(1, 4) for letter in "abcd"}
    equation = d.choice(
        "abc,acd->abd",
        "ab,bc->ac",
        "abc,abc->b",
        "ab,cb->ca",
        "ab,b->a",
        "a,b->ab",
        "abc->cb",
        "ab->",
        "aa->a",
    )
    operands = equation.split("->")[0].split(",")
    arrays = [d.array([sizes[c] for c in terms]) for terms in operands]
    return (equation, *arrays), {}


TABLE = _table()
