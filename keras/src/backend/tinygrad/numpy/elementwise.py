"""Elementwise operations."""

import functools
import math

import ml_dtypes
import numpy as np
from tinygrad import dtypes as tinygrad_dtypes

from keras.src.backend.common import dtypes
from keras.src.backend.tinygrad.core import cast
from keras.src.backend.tinygrad.core import convert_to_tensor
from keras.src.backend.tinygrad.engine.host_call import host_call
from keras.src.backend.tinygrad.numpy import transcendental
from keras.src.backend.tinygrad.numpy.common import at_least_float32
from keras.src.backend.tinygrad.numpy.common import boolean
from keras.src.backend.tinygrad.numpy.common import broadcast
from keras.src.backend.tinygrad.numpy.common import check_broadcast
from keras.src.backend.tinygrad.numpy.common import comparison
from keras.src.backend.tinygrad.numpy.common import constant
from keras.src.backend.tinygrad.numpy.common import dtype_of
from keras.src.backend.tinygrad.numpy.common import elementwise
from keras.src.backend.tinygrad.numpy.common import floating
from keras.src.backend.tinygrad.numpy.common import floating_wide
from keras.src.backend.tinygrad.numpy.common import integral
from keras.src.backend.tinygrad.numpy.common import is_float
from keras.src.backend.tinygrad.numpy.common import promote
from keras.src.backend.tinygrad.numpy.common import refuse_bool
from keras.src.backend.tinygrad.numpy.common import strong
from keras.src.backend.tinygrad.numpy.common import to_int
from keras.src.backend.tinygrad.numpy.common import to_operand

INTEGERS_OF_SIZE = {
    1: tinygrad_dtypes.int8,
    2: tinygrad_dtypes.int16,
    4: tinygrad_dtypes.int32,
    8: tinygrad_dtypes.int64,
}


def _require_integers(name, *xs, booleans=True):
    for x in xs:
        is_bool = x.dtype == tinygrad_dtypes.bool
        if is_float(x) or (is_bool and not booleans):
            kinds = "integers or booleans" if booleans else "integers"
            raise TypeError(
                f"`{name}` expects {kinds}. Received: dtype={dtype_of(x)}"
            )


# Arithmetic.


@elementwise()
def add(x1, x2):
    return x1 + x2


@elementwise()
def subtract(x1, x2):
    refuse_bool("subtract", x1)
    return x1 - x2


@elementwise()
def multiply(x1, x2):
    return x1 * x2


@elementwise(floating)
def divide(x1, x2):
    return x1 / x2


def true_divide(x1, x2):
    return divide(x1, x2)


@elementwise(floating)
def divide_no_nan(x1, x2):
    zero = x2 == 0
    return zero.where(0, x1 / zero.where(1, x2))


@elementwise()
def negative(x):
    refuse_bool("negative", x)
    return -x


@elementwise(floating)
def reciprocal(x):
    return 1 / x


@elementwise(integral)
def square(x):
    return x * x


@elementwise()
def absolute(x):
    if x.dtype in tinygrad_dtypes.uints + (tinygrad_dtypes.bool,):
        return x
    return transcendental.magnitude(x)


def abs(x):
    return absolute(x)


@elementwise(floating)
def fabs(x):
    return transcendental.magnitude(x)


@elementwise()
def sign(x):
    refuse_bool("sign", x)
    result = x.ne(0).where((x < 0).where(x.const_like(-1), 1), 0)
    return x.ne(x).where(math.nan, result) if is_float(x) else result


@elementwise()
def signbit(x):
    if not is_float(x):
        return x < 0
    return x.bitcast(INTEGERS_OF_SIZE[x.dtype.itemsize]) < 0


def power(x1, x2):
    base, exponent = to_operand(x1), to_operand(x2)
    x1, x2 = promote(base, exponent)
    check_broadcast("power", x1, x2)
    if is_float(x1):
        if isinstance(base, (int, float)) and 0 < base < math.inf:
            return _exponential(x2, base)
        return _float_power(x1, x2, exponent)
    if x1.dtype == tinygrad_dtypes.bool:
        return x1 | ~x2
    return _integer_power(x1, x2, exponent)


@elementwise(wide=True)
def _exponential(x, base=None):
    return transcendental.exponential(base, x)


@elementwise(wide=True)
def _float_power(x1, x2, exponent=None):
    if isinstance(exponent, (int, float)):
        if exponent == 0.5:
            return x1.sqrt()
        # tinygrad multiplies these out.
        if exponent in range(-8, 9):
            return x1.pow(int(exponent))
    return transcendental.power(*broadcast(x1, x2))


def _integer_power(x, exponents, exponent):
    if not isinstance(exponent, int):
        return _on_host(np.power, x, exponents)
    if exponent < 0:
        raise ValueError(
            "Integers to negative integer powers are not integers; cast the "
            f"base to a floating dtype first. Received: exponent={exponent}"
        )
    result = x.const_like(1)
    for digit in f"{exponent:b}":
        result = result * result
        result = result * x if digit == "1" else result
    return result


@elementwise(integral, wide=True)
def mod(x1, x2):
    if not is_float(x1):
        return _safe_integer_division(x1, x2)[1]
    return transcendental.mod(*broadcast(x1, x2))


@elementwise(integral, wide=True)
def fmod(x1, x2):
    if not is_float(x1):
        _, remainder = _safe_integer_division(x1, x2)
        other_side = remainder.ne(0) & (remainder < 0).ne(x1 < 0)
        return other_side.where(remainder - x2, remainder)
    return transcendental.fmod(*broadcast(x1, x2))


@elementwise(wide=True)
def floor_divide(x1, x2):
    if not is_float(x1):
        return _safe_integer_division(x1, x2)[0]
    return transcendental.floor_divide(*broadcast(x1, x2))


def _safe_integer_division(x1, x2):
    """Floor division and remainder; both are zero for a divisor of zero.

    A division by zero, or of the smallest integer by -1, stops a process on
    a CPU.
    """
    if x1.dtype == tinygrad_dtypes.bool:
        return x1 & x2, x1.const_like(False)
    zero = x2 == 0
    minus = (x2 == -1) if x1.dtype in tinygrad_dtypes.sints else None
    special = zero if minus is None else zero | minus
    divisor = special.where(x2.const_like(1), x2)
    quotient, remainder = x1 // divisor, x1 % divisor
    if minus is not None:
        quotient = minus.where(-x1, quotient)
    return zero.where(0, quotient), zero.where(0, remainder)


@elementwise(functools.partial(strong, rule=integral))
def gcd(x1, x2):
    _require_integers("gcd", x1, x2)
    return _on_host(np.gcd, x1, x2)


@elementwise(functools.partial(strong, rule=integral))
def lcm(x1, x2):
    _require_integers("lcm", x1, x2)
    return _on_host(np.lcm, x1, x2)


def _on_host(fn, x1, x2):
    shape = np.broadcast_shapes(x1.shape, x2.shape)
    outputs = [(shape, dtype_of(x1))]
    return host_call(fn, [x1, x2], outputs, name=fn.__name__)[0]


# Extrema.


def _propagate_nan(result, x1, x2):
    return (x1.ne(x1) | x2.ne(x2)).where(x1 + x2, result)


@elementwise()
def maximum(x1, x2):
    result = x1.maximum(x2)
    return _propagate_nan(result, x1, x2) if is_float(x1) else result


@elementwise()
def minimum(x1, x2):
    result = x1.minimum(x2)
    return _propagate_nan(result, x1, x2) if is_float(x1) else result


@elementwise()
def fmax(x1, x2):
    return ((x1 >= x2) | x2.ne(x2)).where(x1, x2)


@elementwise()
def fmin(x1, x2):
    return ((x1 <= x2) | x2.ne(x2)).where(x1, x2)


def clip(x, x_min, x_max):
    x = convert_to_tensor(x)
    dtype = integral(x.dtype)
    bounds = [b for b in (x_min, x_max) if b is not None]
    clipped, *bounds = promote(x, *bounds)
    check_broadcast("clip", clipped, *bounds)
    if x_min is not None:
        low = bounds.pop(0)
        clipped = (clipped < low).where(low, clipped)
    if x_max is not None:
        high = bounds.pop(0)
        clipped = (clipped > high).where(high, clipped)
    if is_float(clipped):
        # NaN has no gradient, as with torch and jax.
        clipped = clipped.ne(clipped).where(math.nan, clipped)
    return cast(clipped, dtype)


@elementwise(floating_wide)
def heaviside(x1, x2):
    step = (x1 == 0).where(x2, (x1 < 0).where(x1.const_like(0), 1))
    return x1.ne(x1).where(math.nan, step)


@elementwise()
def nan_to_num(x, nan=0.0, posinf=None, neginf=None):
    if not is_float(x):
        return x
    largest = float(ml_dtypes.finfo(dtype_of(x)).max)
    posinf = largest if posinf is None else posinf
    neginf = -largest if neginf is None else neginf
    x = x.ne(x).where(nan, x)
    return (x == math.inf).where(posinf, (x == -math.inf).where(neginf, x))


# Rounding.


@elementwise(floating)
def ceil(x):
    return x.ceil()


@elementwise(floating)
def floor(x):
    return x.floor()


@elementwise()
def trunc(x):
    return x.trunc() if is_float(x) else x


@elementwise()
def round(x, decimals=0):
    refuse_bool("round", x)
    decimals = to_int("decimals", decimals)
    if not is_float(x):
        return _round_integers(x, decimals)
    if decimals == 0:
        return _round_half_even(x)
    factor = 10.0 ** math.fabs(decimals)
    if decimals < 0:
        return _round_half_even(x / factor) * factor
    return _round_half_even(x * factor) / factor


def _round_half_even(x):
    whole = x.trunc()
    rest = transcendental.magnitude(x - whole)
    half = whole * 0.5
    up = (rest > 0.5) | ((rest == 0.5) & half.ne(half.trunc()))
    return up.where(whole + (x < 0).where(x.const_like(-1), 1), whole)


def _round_integers(x, decimals):
    if decimals >= 0:
        return x
    unit = 10**-decimals
    wide = x.cast(tinygrad_dtypes.int64)
    quotient = wide // unit
    rest = (wide - quotient * unit) * 2
    up = (rest > unit) | ((rest == unit) & (quotient % 2 == 1))
    return (up.where(quotient + 1, quotient) * unit).cast(x.dtype)


@elementwise(floating)
def nextafter(x1, x2):
    x1, x2 = broadcast(x1, x2)
    bits = INTEGERS_OF_SIZE[x1.dtype.itemsize]
    raw = x1.bitcast(bits)
    # Away from zero the pattern grows.
    away = (x1 < x2) == (x1 > 0)
    moved = away.where(raw + 1, raw - 1)
    sign_bit = moved.const_like(-(1 << (bits.bitsize - 1)))
    smallest = (x2 < 0).where(sign_bit + 1, 1)
    result = (x1 == 0).where(smallest, moved).bitcast(x1.dtype)
    result = (x1 == x2).where(x2, result)
    return (x1.ne(x1) | x2.ne(x2)).where(math.nan, result)


def ldexp(x1, x2):
    x1, x2 = to_operand(x1), to_operand(x2)
    exponent = convert_to_tensor(x2)
    if dtype_of(exponent) not in dtypes.INT_TYPES:
        raise TypeError(
            "ldexp exponent must be an integer type. "
            f"Received: x2 dtype={dtype_of(exponent)}"
        )
    x1, _ = promote(x1, x2, rule=floating)
    return _scale(x1, exponent.clip(-2200, 2200).cast(x1.dtype))


@elementwise(wide=True)
def _scale(x1, x2):
    # In steps, as the power alone may not be a number of the dtype.
    first = (x2 / 3).trunc()
    second = ((x2 - first) / 2).trunc()
    for step in (first, second, x2 - first - second):
        x1 = x1 * step.exp2()
    return x1


# Exponentials, logarithms, trigonometry.


def _float_function(fn):
    return elementwise(floating, wide=True)(fn)


arccos = _float_function(transcendental.arccos)
arccosh = _float_function(transcendental.arccosh)
arcsin = _float_function(transcendental.arcsin)
arcsinh = _float_function(transcendental.arcsinh)
arctan = _float_function(transcendental.arctan)
arctanh = _float_function(transcendental.arctanh)
cos = _float_function(transcendental.cos)
cosh = _float_function(transcendental.cosh)
exp = _float_function(transcendental.exp)
exp2 = _float_function(transcendental.exp2)
expm1 = _float_function(transcendental.expm1)
log = _float_function(transcendental.log)
log10 = _float_function(transcendental.log10)
log1p = _float_function(transcendental.log1p)
log2 = _float_function(transcendental.log2)
sin = _float_function(transcendental.sin)
sinc = _float_function(transcendental.sinc)
sinh = _float_function(transcendental.sinh)
sqrt = _float_function(transcendental.sqrt)
tan = _float_function(transcendental.tan)
tanh = _float_function(transcendental.tanh)
cbrt = elementwise(floating_wide, wide=True)(transcendental.cbrt)
i0 = elementwise(floating_wide, wide=True)(transcendental.i0)


@elementwise(floating, wide=True)
def arctan2(x1, x2):
    return transcendental.arctan2(*broadcast(x1, x2))


@elementwise(floating_wide, wide=True)
def hypot(x1, x2):
    return transcendental.hypot(*broadcast(x1, x2))


@elementwise(floating, wide=True)
def logaddexp(x1, x2):
    return transcendental.logaddexp(*broadcast(x1, x2))


@elementwise(floating, wide=True)
def logaddexp2(x1, x2):
    return transcendental.logaddexp2(*broadcast(x1, x2))


@elementwise(floating_wide, wide=True)
def deg2rad(x):
    return x * (math.pi / 180)


@elementwise(floating_wide, wide=True)
def rad2deg(x):
    return x * (180 / math.pi)


# Complex parts.


@elementwise(floating)
def angle(x):
    # That of -0.0 is pi.
    turned = signbit(x).where(x.const_like(math.pi), 0)
    return x.ne(x).where(math.nan, turned)


@elementwise()
def conjugate(x):
    return x


def conj(x):
    return conjugate(x)


@elementwise()
def real(x):
    return x


@elementwise()
def imag(x):
    return x.const_like(0)


# Comparisons and tests.


@elementwise(comparison)
def equal(x1, x2):
    return x1 == x2


@elementwise(comparison)
def not_equal(x1, x2):
    return x1.ne(x2)


@elementwise(comparison)
def greater(x1, x2):
    return x1 > x2


@elementwise(comparison)
def greater_equal(x1, x2):
    return x1 >= x2


@elementwise(comparison)
def less(x1, x2):
    return x1 < x2


@elementwise(comparison)
def less_equal(x1, x2):
    return x1 <= x2


@elementwise(at_least_float32)
def isclose(x1, x2, rtol=1e-5, atol=1e-8, equal_nan=False):
    gap = transcendental.magnitude(x1 - x2)
    allowed = atol + rtol * transcendental.magnitude(x2)
    finite = transcendental.magnitude(x2) < math.inf
    close = (finite & (gap <= allowed)) | (x1 == x2)
    if equal_nan:
        close = close | (x1.ne(x1) & x2.ne(x2))
    return close


@elementwise()
def isfinite(x):
    if not is_float(x):
        return constant(True, "bool", x.shape)
    return transcendental.magnitude(x) < math.inf


@elementwise()
def isinf(x):
    return isposinf(x) | isneginf(x)


@elementwise()
def isnan(x):
    return x.ne(x)


@elementwise()
def isposinf(x):
    if not is_float(x):
        return constant(False, "bool", x.shape)
    return x == math.inf


@elementwise()
def isneginf(x):
    if not is_float(x):
        return constant(False, "bool", x.shape)
    return x == -math.inf


@elementwise()
def isreal(x):
    return constant(True, "bool", x.shape)


@elementwise(boolean)
def logical_and(x1, x2):
    return x1 & x2


@elementwise(boolean)
def logical_not(x):
    return ~x


@elementwise(boolean)
def logical_or(x1, x2):
    return x1 | x2


@elementwise(boolean)
def logical_xor(x1, x2):
    return x1 ^ x2


# Bits.


@elementwise(strong)
def bitwise_and(x, y):
    _require_integers("bitwise_and", x)
    return x & y


@elementwise()
def bitwise_invert(x):
    _require_integers("bitwise_invert", x)
    return ~x


def bitwise_not(x):
    return bitwise_invert(x)


@elementwise(strong)
def bitwise_or(x, y):
    _require_integers("bitwise_or", x)
    return x | y


@elementwise(strong)
def bitwise_xor(x, y):
    _require_integers("bitwise_xor", x)
    return x ^ y


@elementwise()
def bitwise_left_shift(x, y):
    _require_integers("bitwise_left_shift", x, booleans=False)
    inside, y = _shift_inside(x, y)
    return inside.where(x << y, 0)


def left_shift(x, y):
    return bitwise_left_shift(x, y)


@elementwise()
def bitwise_right_shift(x, y):
    _require_integers("bitwise_right_shift", x, booleans=False)
    inside, y = _shift_inside(x, y)
    return inside.where(x >> y, (x < 0).where(x.const_like(-1), 0))


def right_shift(x, y):
    return bitwise_right_shift(x, y)


def _shift_inside(x, y):
    """Returns whether `y` is a shift that C defines, and `y` where it is."""
    inside = y < x.dtype.bitsize
    if y.dtype in tinygrad_dtypes.sints:
        inside = inside & (y > -1)
    return inside, inside.where(y, 0)
