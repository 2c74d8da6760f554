"""Complex numbers: a pair of real tensors behind one tensor type.

tinygrad has no complex dtypes. A `ComplexTensor` stands for one wherever the
backend takes tensors, and `accept_complex` lets operations on real tensors
take it: by a rule of the tables below, or else with an error that names the
operation. Gradients flow through the two parts.
"""

import builtins
import functools
import inspect
import itertools
import math

import numpy as np
from tinygrad import Tensor
from tinygrad import dtypes

PART_DTYPES = {"complex64": dtypes.float32, "complex128": dtypes.float64}


class ComplexTensor:
    """A complex tensor.

    Args:
        real: `Tensor`, the real part.
        imag: `Tensor`, the imaginary part; the shapes broadcast. Both are
            cast to float64 if either is float64, else to float32.
    """

    # NumPy arrays and scalars leave binary operations to this class.
    __array_priority__ = 1000
    __array_ufunc__ = None

    def __init__(self, real, imag):
        double = dtypes.float64 in (real.dtype, imag.dtype)
        part = dtypes.float64 if double else dtypes.float32
        shape = np.broadcast_shapes(real.shape, imag.shape)
        self.real = real.cast(part).expand(shape)
        self.imag = imag.cast(part).expand(shape)

    @property
    def dtype(self):
        return next(n for n, d in PART_DTYPES.items() if d == self.real.dtype)

    @property
    def shape(self):
        return self.real.shape

    @property
    def ndim(self):
        return self.real.ndim

    @property
    def device(self):
        return self.real.device

    @property
    def T(self):
        return self.permute(*reversed(range(self.ndim)))

    def map(self, fn):
        """Applies a function of real tensors to both parts."""
        return ComplexTensor(fn(self.real), fn(self.imag))

    def cast(self, dtype):
        """Returns the tensor with the complex dtype of that name."""
        part = PART_DTYPES[dtype]
        return self.map(lambda x: x.cast(part))

    def conj(self):
        return ComplexTensor(self.real, -self.imag)

    def detach(self):
        return self.map(lambda x: x.detach())

    def to(self, device):
        return self.map(lambda x: x.to(device))

    def clone(self, device=None):
        return self.map(lambda x: x.clone(device=device))

    def contiguous(self):
        return self.map(lambda x: x.contiguous())

    def realize(self):
        self.real.realize(self.imag)
        return self

    def numel(self):
        return self.real.numel()

    def reshape(self, *shape):
        return self.map(lambda x: x.reshape(*shape))

    def permute(self, *axes):
        return self.map(lambda x: x.permute(*axes))

    def transpose(self, dim0=1, dim1=0):
        return self.map(lambda x: x.transpose(dim0, dim1))

    def squeeze(self, axis=None):
        return self.map(lambda x: x.squeeze(axis))

    def unsqueeze(self, axis):
        return self.map(lambda x: x.unsqueeze(axis))

    def expand(self, *shape):
        return self.map(lambda x: x.expand(*shape))

    def shrink(self, bounds):
        return self.map(lambda x: x.shrink(bounds))

    def sum(self, axis=None, keepdim=False):
        return self.map(lambda x: x.sum(axis, keepdim))

    def numpy(self):
        result = np.empty(self.shape, self.dtype)
        result.real, result.imag = self.real.numpy(), self.imag.numpy()
        return result

    def item(self):
        return self.numpy().item()

    def __array__(self, dtype=None, copy=None):
        return self.numpy().astype(dtype or self.dtype, copy=False)

    def __complex__(self):
        return self.item()

    def __bool__(self):
        return bool(self.numpy())

    def __len__(self):
        return len(self.real)

    def __iter__(self):
        return (self[i] for i in range(len(self)))

    def __getitem__(self, key):
        return self.map(lambda x: x[key])

    def __repr__(self):
        return f"<ComplexTensor shape={self.shape} dtype={self.dtype}>"

    def __hash__(self):
        return id(self)

    def __neg__(self):
        return self.map(lambda x: -x)

    def __pos__(self):
        return self

    def __abs__(self):
        return _absolute(self)

    def __add__(self, other):
        return _add(self, _other(other, self))

    def __radd__(self, other):
        return _add(_other(other, self), self)

    def __sub__(self, other):
        return _subtract(self, _other(other, self))

    def __rsub__(self, other):
        return _subtract(_other(other, self), self)

    def __mul__(self, other):
        return _multiply(self, _other(other, self))

    def __rmul__(self, other):
        return _multiply(_other(other, self), self)

    def __truediv__(self, other):
        return _divide(self, _other(other, self))

    def __rtruediv__(self, other):
        return _divide(_other(other, self), self)

    def __pow__(self, other):
        return _power(self, other)

    def __rpow__(self, other):
        return _power(_other(other, self), self)

    def __matmul__(self, other):
        return _matmul(self, other)

    def __rmatmul__(self, other):
        return _matmul(other, self)

    def __eq__(self, other):
        return _equal(self, _other(other, self))

    def __ne__(self, other):
        return ~_equal(self, _other(other, self))


def by_parts(fn, *xs):
    """Applies a linear function of real tensors to both parts of others.

    Args:
        fn: Function of as many `Tensor`s as `xs`, that returns one.
        *xs: Tensors, all of them complex or none.

    Returns:
        Tensor, complex if `xs` are.
    """
    if isinstance(xs[0], ComplexTensor):
        return ComplexTensor(
            fn(*[x.real for x in xs]), fn(*[x.imag for x in xs])
        )
    return fn(*xs)


def is_complex(x):
    """Whether `x` is a complex tensor, array, number, or a list of some."""
    if type(x) is Tensor:
        return False
    if isinstance(x, (ComplexTensor, builtins.complex)):
        return True
    if isinstance(x, (np.ndarray, np.generic)):
        return x.dtype.kind == "c"
    if isinstance(x, (list, tuple)):
        return any(is_complex(e) for e in x)
    return isinstance(getattr(x, "_value", None), ComplexTensor)


def is_complex_dtype(dtype):
    """Whether `dtype` names a complex dtype, in Python's way or NumPy's."""
    if dtype is builtins.complex:
        return True
    name = getattr(dtype, "name", getattr(dtype, "__name__", dtype))
    return isinstance(name, str) and name.startswith("complex")


def convert(x, dtype=None):
    """Converts numbers of which some, or the dtype, are complex.

    Args:
        x: What `convert_to_tensor` takes, or anything of `is_complex`.
        dtype: Keras dtype name. Defaults to complex128 for arrays and
            tensors of it or of float64, else to complex64. A real dtype drops
            the imaginary part.

    Returns:
        `ComplexTensor`, or `Tensor` for a real dtype.
    """
    from keras.src.backend.common import standardize_dtype
    from keras.src.backend.tinygrad.core import convert_to_tensor

    dtype = None if dtype is None else standardize_dtype(dtype)
    x = getattr(x, "value", x) if hasattr(x, "_value") else x
    if isinstance(x, (list, tuple)) and is_complex(x):
        x = _stack([convert(e) for e in x])
    if isinstance(x, builtins.complex):
        x = np.asarray(x, "complex64")
    if isinstance(x, (np.ndarray, np.generic)) and x.dtype.kind == "c":
        x = ComplexTensor(
            convert_to_tensor(np.array(x.real)),
            convert_to_tensor(np.array(x.imag)),
        )
    if not isinstance(x, ComplexTensor):
        x = convert_to_tensor(x)
        x = ComplexTensor(x, x.const_like(0))
        return x if dtype is None else x.cast(dtype)
    if dtype is not None and dtype not in PART_DTYPES:
        return convert_to_tensor(x.real, dtype)
    x = x.map(convert_to_tensor)
    return x if dtype is None else x.cast(dtype)


def _stack(xs):
    real, *reals = [x.real for x in xs]
    imag, *imags = [x.imag for x in xs]
    return ComplexTensor(real.stack(*reals), imag.stack(*imags))


def _other(x, like):
    """Turns an operand of `like` into a complex tensor; scalars are weak."""
    if isinstance(x, ComplexTensor):
        return x
    weak = not isinstance(x, Tensor)
    x = convert(x)
    return x.cast(like.dtype) if weak and x.ndim == 0 else x


def _parts(x):
    """Returns both parts of an operand; of a real one, `(x, None)`."""
    if isinstance(x, (list, tuple)):
        pairs = [_parts(e) for e in x]
        if all(imag is None for _, imag in pairs):
            return x, None
        return [real for real, _ in pairs], [
            _zeros(real) if imag is None else imag for real, imag in pairs
        ]
    if is_complex(x):
        x = convert(x)
        return x.real, x.imag
    return x, None


def _zeros(x):
    if isinstance(x, (list, tuple)):
        return [_zeros(e) for e in x]
    return x.const_like(0) if isinstance(x, Tensor) else np.zeros_like(x)


# Rules: functions of complex tensors.


def _functions():
    # Imported at use: the numpy package imports this module.
    from keras.src.backend.tinygrad.numpy import transcendental

    return transcendental


def _add(x1, x2):
    return ComplexTensor(x1.real + x2.real, x1.imag + x2.imag)


def _subtract(x1, x2):
    return ComplexTensor(x1.real - x2.real, x1.imag - x2.imag)


def _multiply(x1, x2):
    return ComplexTensor(
        x1.real * x2.real - x1.imag * x2.imag,
        x1.real * x2.imag + x1.imag * x2.real,
    )


def _divide(x1, x2):
    # Scaled, so that the square of the modulus does not overflow.
    scale = _larger(x2.real.abs(), x2.imag.abs())
    scale = (scale == 0).where(1, scale)
    real, imag = x2.real / scale, x2.imag / scale
    square = (real * real + imag * imag) * scale
    product = _multiply(x1, ComplexTensor(real, -imag))
    return product.map(lambda x: x / square)


def _larger(a, b):
    return (a > b).where(a, b)


def _reciprocal(x):
    return _divide(ComplexTensor(x.real.const_like(1), x.imag.const_like(0)), x)


def _equal(x1, x2):
    return (x1.real == x2.real) & (x1.imag == x2.imag)


def _absolute(x):
    return _functions().hypot(x.real, x.imag)


def _angle(x):
    return _functions().arctan2(x.imag, x.real)


def _square(x):
    return _multiply(x, x)


def _sign(x):
    size = _absolute(x)
    size = (size == 0).where(1, size)
    return x.map(lambda part: part / size)


def _sqrt(x):
    size = _absolute(x)
    # Of the two roots that a quotient gives, the one without cancellation.
    long = ((size + x.real.abs()) * 0.5).sqrt()
    short = x.imag.abs() / (2 * (long == 0).where(1, long))
    right = x.real >= 0
    imag = right.where(short, long)
    return ComplexTensor(
        right.where(long, short), (x.imag < 0).where(-imag, imag)
    )


def _from_polar(size, angle):
    f = _functions()
    return ComplexTensor(size * f.cos(angle), size * f.sin(angle))


def _exp(x):
    return _from_polar(_functions().exp(x.real), x.imag)


def _expm1(x):
    f = _functions()
    half = f.sin(x.imag * 0.5)
    real = f.expm1(x.real) * f.cos(x.imag) - 2 * half * half
    return ComplexTensor(real, f.exp(x.real) * f.sin(x.imag))


def _log(x):
    return ComplexTensor(_functions().log(_absolute(x)), _angle(x))


def _log1p(x):
    square = x.real * (2 + x.real) + x.imag * x.imag
    angle = _functions().arctan2(x.imag, 1 + x.real)
    return ComplexTensor(0.5 * _functions().log1p(square), angle)


def _logarithm_to(base):
    return lambda x: _log(x).map(lambda part: part / math.log(base))


def _power(x1, x2):
    if isinstance(x2, int) and not isinstance(x2, bool) and abs(x2) <= 64:
        return _integer_power(x1, x2)
    x1, x2 = _both(x1, x2)
    result = _exp(_multiply(x2, _log(x1)))
    # Powers of zero, which has no logarithm.
    zero = (x1.real == 0) & (x1.imag == 0) & (x2.real > 0)
    one = (x2.real == 0) & (x2.imag == 0)
    real = zero.where(0, result.real)
    imag = (zero | one).where(0, result.imag)
    return ComplexTensor(one.where(1, real), imag)


def _integer_power(x, exponent):
    if exponent < 0:
        return _reciprocal(_integer_power(x, -exponent))
    result = ComplexTensor(x.real.const_like(1), x.imag.const_like(0))
    while exponent:
        if exponent & 1:
            result = _multiply(result, x)
        x = _multiply(x, x)
        exponent >>= 1
    return result


def _sinh(x):
    f = _functions()
    return ComplexTensor(
        f.sinh(x.real) * f.cos(x.imag), f.cosh(x.real) * f.sin(x.imag)
    )


def _cosh(x):
    f = _functions()
    return ComplexTensor(
        f.cosh(x.real) * f.cos(x.imag), f.sinh(x.real) * f.sin(x.imag)
    )


def _tanh(x):
    f = _functions()
    # Beyond, the result is 1 or -1 to the last place.
    real = x.real.clip(-20, 20)
    sinh, cos = f.sinh(real), f.cos(x.imag)
    # Half of cosh(2 * real) + cos(2 * imag), which cancel near a pole.
    divisor = sinh * sinh + cos * cos
    return ComplexTensor(
        sinh * f.cosh(real) / divisor, f.sin(x.imag) * cos / divisor
    )


def _times_i(x):
    return ComplexTensor(-x.imag, x.real)


def _rotated(fn):
    """The circular function whose hyperbolic one is `fn`, where both odd."""
    return lambda x: -_times_i(fn(_times_i(x)))


def _cos(x):
    return _cosh(_times_i(x))


def _isclose(x1, x2, rtol=1e-5, atol=1e-8, equal_nan=False):
    x1, x2 = _both(x1, x2)
    close = _absolute(_subtract(x1, x2)) <= atol + rtol * _absolute(x2)
    close = _equal(x1, x2) | close
    if equal_nan:
        close = close | (_isnan(x1) & _isnan(x2))
    return close


def _allclose(x1, x2, rtol=1e-5, atol=1e-8, equal_nan=False):
    return _isclose(x1, x2, rtol, atol, equal_nan).all()


def _isnan(x):
    return x.real.isnan() | x.imag.isnan()


def _isinf(x):
    return x.real.isinf() | x.imag.isinf()


def _isfinite(x):
    return x.real.isfinite() & x.imag.isfinite()


def _matmul(x1, x2):
    from keras.src.backend.tinygrad import numpy

    return numpy.matmul(x1, x2)


def _norm(x, ord=None, axis=None, keepdims=False):
    from keras.src.backend.tinygrad import linalg

    if ord in (2, -2, "nuc") and axis is not None and np.size(axis) == 2:
        raise NotImplementedError(
            "`norm` by singular values does not support complex tensors with "
            f"the tinygrad backend. Received: ord={ord}"
        )
    return linalg.norm(_absolute(x), ord=ord, axis=axis, keepdims=keepdims)


def _var(x, axis=None, keepdims=False):
    from keras.src.backend.tinygrad import numpy

    centred = _subtract(x, numpy.mean(x, axis=axis, keepdims=True))
    square = centred.real * centred.real + centred.imag * centred.imag
    return numpy.mean(square, axis=axis, keepdims=keepdims)


def _std(x, axis=None, keepdims=False):
    return _var(x, axis, keepdims).sqrt()


def _nansum(x, axis=None, keepdims=False):
    from keras.src.backend.tinygrad import numpy

    missing = _isnan(x)
    x = x.map(lambda part: missing.where(0, part))
    return numpy.sum(x, axis=axis, keepdims=keepdims)


def _nanmean(x, axis=None, keepdims=False):
    from keras.src.backend.tinygrad import numpy

    count = numpy.sum(~_isnan(x), axis=axis, keepdims=keepdims)
    return _nansum(x, axis, keepdims).map(lambda part: part / count)


def _prod(x, axis=None, keepdims=False, dtype=None):
    axes = range(x.ndim) if axis is None else axis
    axes = [axes] if isinstance(axes, int) else axes
    axes = sorted(a % x.ndim for a in axes)
    shape = x.shape
    for a in axes:
        # Halves are multiplied until one factor is left.
        while x.shape[a] > 1:
            half = x.shape[a] // 2
            before = (slice(None),) * a
            first = x[(*before, slice(0, half))]
            second = x[(*before, slice(half, 2 * half))]
            rest = x[(*before, slice(2 * half, None))]
            x = _multiply(first, second)
            if rest.shape[a]:
                x = ComplexTensor(
                    x.real.cat(rest.real, dim=a), x.imag.cat(rest.imag, dim=a)
                )
    if keepdims:
        return x
    return x.reshape([s for a, s in enumerate(shape) if a not in axes])


def _both(x1, x2):
    like = next(x for x in (x1, x2) if isinstance(x, ComplexTensor))
    return _other(x1, like), _other(x2, like)


# Functions of one complex tensor.
UNARY = {
    "abs": _absolute,
    "absolute": _absolute,
    "angle": _angle,
    "conj": ComplexTensor.conj,
    "conjugate": ComplexTensor.conj,
    "cos": _cos,
    "cosh": _cosh,
    "exp": _exp,
    "expm1": _expm1,
    "imag": lambda x: x.imag,
    "isfinite": _isfinite,
    "isinf": _isinf,
    "isnan": _isnan,
    "isreal": lambda x: x.imag == 0,
    "log": _log,
    "log10": _logarithm_to(10),
    "log1p": _log1p,
    "log2": _logarithm_to(2),
    "nanmean": _nanmean,
    "nansum": _nansum,
    "ndim": lambda x: x.ndim,
    "norm": _norm,
    "prod": _prod,
    "real": lambda x: x.real,
    "reciprocal": _reciprocal,
    "sign": _sign,
    "sin": _rotated(_sinh),
    "sinh": _sinh,
    "size": lambda x: math.prod(x.shape),
    "sqrt": _sqrt,
    "square": _square,
    "std": _std,
    "tan": _rotated(_tanh),
    "tanh": _tanh,
    "var": _var,
}

# Functions of two operands, at least one of them complex.
BINARY = {
    "allclose": _allclose,
    "divide": lambda x1, x2: _divide(*_both(x1, x2)),
    "equal": lambda x1, x2: _equal(*_both(x1, x2)),
    "isclose": _isclose,
    "not_equal": lambda x1, x2: ~_equal(*_both(x1, x2)),
    "power": _power,
    "true_divide": lambda x1, x2: _divide(*_both(x1, x2)),
}

# Linear operations, applied to each part: the arguments that are data (a real
# one has an imaginary part of zero). The others, such as indices, stay.
LINEAR = {
    **dict.fromkeys(
        (
            "array_split",
            "average",
            "broadcast_to",
            "copy",
            "cumsum",
            "diag",
            "diagflat",
            "diagonal",
            "diff",
            "dsplit",
            "expand_dims",
            "flip",
            "fliplr",
            "flipud",
            "hsplit",
            "mean",
            "moveaxis",
            "nan_to_num",
            "negative",
            "pad",
            "ravel",
            "repeat",
            "reshape",
            "roll",
            "rot90",
            "round",
            "split",
            "squeeze",
            "sum",
            "swapaxes",
            "take",
            "take_along_axis",
            "tile",
            "trace",
            "transpose",
            "tril",
            "triu",
            "unstack",
            "vsplit",
        ),
        (0,),
    ),
    **dict.fromkeys(
        ("concatenate", "dstack", "hstack", "stack", "vstack"), (0,)
    ),
    "add": (0, 1),
    "append": (0, 1),
    "subtract": (0, 1),
    "where": (1, 2),
}

# Operations that are linear in each of several operands, by position; `None`
# stands for all from the second on.
MULTILINEAR = {
    "cross": (0, 1),
    "dot": (0, 1),
    "einsum": None,
    "inner": (0, 1),
    "kron": (0, 1),
    "matmul": (0, 1),
    "multiply": (0, 1),
    "outer": (0, 1),
    "tensordot": (0, 1),
    "vdot": (0, 1),
}

# Operations that ask only whether an element is zero.
TRUTH = {
    "all",
    "any",
    "count_nonzero",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "nonzero",
}

# Operations that make an array, of a complex dtype if asked to: the arguments
# that are its values. Of other complex arguments the shape counts.
CREATION = {
    "arange": (),
    "array": ("x",),
    "empty": (),
    "empty_like": (),
    "eye": (),
    "full": ("fill_value",),
    "full_like": ("fill_value",),
    "identity": (),
    "linspace": ("start", "stop"),
    "ones": (),
    "ones_like": (),
    "tri": (),
    "zeros": (),
    "zeros_like": (),
}


def accept_complex(namespace, but=()):
    """Lets the public functions of a module take complex tensors.

    Args:
        namespace: The module's `globals()`. Its functions are replaced by
            ones with the same signatures.
        but: Names of functions that take complex tensors themselves.
    """
    for name, fn in list(namespace.items()):
        if (
            inspect.isfunction(fn)
            and not name.startswith("_")
            and name not in but
            and fn.__module__.startswith(namespace["__name__"])
        ):
            namespace[name] = _accepting(name, fn)


def _accepting(name, fn):
    @functools.wraps(fn)
    def operation(*args, **kwargs):
        for x in args:
            if type(x) is not Tensor and _is_complex_or_dtype(x):
                return _apply(name, fn, args, kwargs)
        for x in kwargs.values():
            if type(x) is not Tensor and _is_complex_or_dtype(x):
                return _apply(name, fn, args, kwargs)
        return fn(*args, **kwargs)

    return operation


def _is_complex_or_dtype(x):
    if isinstance(x, (str, type, np.dtype)):
        return is_complex_dtype(x)
    return is_complex(x)


def _apply(name, fn, args, kwargs):
    bound = inspect.signature(fn).bind(*args, **kwargs)
    if name in CREATION:
        return _create(fn, bound, CREATION[name])
    args, kwargs = bound.args, bound.kwargs
    if name in UNARY:
        return UNARY[name](convert(args[0]), *args[1:], **kwargs)
    if name in BINARY:
        x1, x2, *rest = [convert(x) if is_complex(x) else x for x in args]
        return BINARY[name](x1, x2, *rest, **kwargs)
    if name in LINEAR:
        return _linear(fn, LINEAR[name], args, kwargs)
    if name in MULTILINEAR:
        positions = MULTILINEAR[name] or range(1, len(args))
        if name == "vdot" and is_complex(args[0]):
            args = (convert(args[0]).conj(), *args[1:])
        return _multilinear(fn, positions, args, kwargs)
    if name in TRUTH:
        args = [_truth(x) if is_complex(x) else x for x in args]
        return fn(*args, **kwargs)
    received = [
        f"{argument}={_described(value)}"
        for argument, value in bound.arguments.items()
        if _is_complex_or_dtype(value)
    ]
    raise NotImplementedError(
        f"`{name}` does not support complex tensors with the tinygrad "
        "backend. Use the parts, `keras.ops.real` and `keras.ops.imag`, and "
        f"real dtypes. Received: {', '.join(received)}"
    )


def _described(x):
    if isinstance(x, (np.ndarray, np.generic)):
        return f"<array shape={x.shape} dtype={x.dtype}>"
    return repr(x)


def _truth(x):
    x = convert(x)
    return (x.real != 0) | (x.imag != 0)


def _linear(fn, positions, args, kwargs):
    real_args, imag_args = list(args), list(args)
    for i in positions:
        if i < len(args):
            real, imag = _parts(args[i])
            real_args[i] = real
            imag_args[i] = _zeros(real) if imag is None else imag
    if is_complex_dtype(kwargs.get("dtype")):
        kwargs = {**kwargs, "dtype": None}
    return _pair(fn(*real_args, **kwargs), fn(*imag_args, **kwargs))


def _pair(real, imag):
    if isinstance(real, (list, tuple)):
        return type(real)(_pair(*parts) for parts in zip(real, imag))
    return ComplexTensor(real, imag)


def _multilinear(fn, positions, args, kwargs):
    total = None
    choices = [_parts(args[i]) for i in positions]
    for chosen in itertools.product(*[range(2)] * len(choices)):
        parts = [pair[part] for pair, part in zip(choices, chosen)]
        if any(part is None for part in parts):
            continue
        term_args = list(args)
        for i, part in zip(positions, parts):
            term_args[i] = part
        term = fn(*term_args, **kwargs)
        zeros = term.const_like(0)
        # The power of the imaginary unit that goes with the term.
        real, imag = [
            (term, zeros),
            (zeros, term),
            (-term, zeros),
            (zeros, -term),
        ][sum(chosen) % 4]
        term = ComplexTensor(real, imag)
        total = term if total is None else _add(total, term)
    return total


def _create(fn, bound, data):
    from keras.src.backend.common import standardize_dtype

    arguments = bound.arguments
    pairs = {
        name: _parts(value)
        for name, value in arguments.items()
        if name in data or is_complex(value)
    }
    dtype = arguments.get("dtype")
    if dtype is None:
        complexes = [v for v in arguments.values() if is_complex(v)]
        dtype = convert(complexes[0]).dtype
    dtype = standardize_dtype(dtype)
    # A real dtype drops imaginary parts.
    part_dtype = dtype
    if dtype in PART_DTYPES:
        part_dtype = "float64" if dtype == "complex128" else "float32"

    def part(index):
        for name, pair in pairs.items():
            arguments[name] = pair[index if name in data else 0]
            if arguments[name] is None:
                arguments[name] = _zeros(pair[0])
        arguments["dtype"] = part_dtype
        return fn(*bound.args, **bound.kwargs)

    real = part(0)
    if dtype not in PART_DTYPES:
        return real
    if any(pairs[name][1] is not None for name in data if name in pairs):
        return ComplexTensor(real, part(1))
    return ComplexTensor(real, real.const_like(0))
