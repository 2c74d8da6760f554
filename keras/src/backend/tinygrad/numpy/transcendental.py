"""Elementary functions of float32 and float64 tensors, to a few units in
the last place.

tinygrad offers exp2, log2 and sin. What is built on them here keeps its
relative accuracy near zero and for large arguments, and declares derivatives
that are short and finite wherever they should be.
"""

import functools
import math
import typing

import numpy as np
from numpy.polynomial import chebyshev
from tinygrad import dtypes

from keras.src.backend.tinygrad.engine.functions import traced_once


def is_double(x):
    return x.dtype == dtypes.float64


def magnitude(x):
    """Absolute value whose derivative at zero is zero; -0.0 becomes 0.0."""
    return x.ne(0).where((x < 0).where(-x, x), 0)


def with_sign(size, x):
    """Gives a non-negative `size` the sign of `x`."""
    return (x < 0).where(-size, size)


def horner(x, coefficients):
    """Evaluates a polynomial, coefficients from the constant on."""
    result = coefficients[-1]
    for c in reversed(coefficients[:-1]):
        result = result * x + c
    return result


def taylor(x, term, terms_32, terms_64):
    """Evaluates the sum of `term(k) * x**k`."""
    count = terms_64 if is_double(x) else terms_32
    return horner(x, [term(k) for k in range(count)])


class Approximation:
    """Chebyshev interpolation of a NumPy function on an interval.

    Args:
        fn: Function of a float64 array.
        low: Start of the interval.
        high: End of the interval.
        degree_32: Degree that suffices for float32.
        degree_64: Degree that suffices for float64.
    """

    def __init__(self, fn, low, high, degree_32, degree_64):
        self.scale = 2 / (high - low)
        self.shift = -(high + low) / (high - low)

        def scaled(u):
            return fn((u - self.shift) / self.scale)

        self.coefficients = [
            chebyshev.cheb2poly(chebyshev.chebinterpolate(scaled, d)).tolist()
            for d in (degree_32, degree_64)
        ]

    def __call__(self, x):
        u = x * self.scale + self.shift
        return horner(u, self.coefficients[is_double(x)])


def _over_root(fn):
    """The function of x**2 that is `fn(x) / x`."""
    return lambda square: fn(np.sqrt(square)) / np.sqrt(square)


# Exponentials and logarithms.


def _split(value, bits):
    """Splits a number into one of few bits and the rest."""
    unit = 2.0 ** (math.floor(math.log2(abs(value))) - bits + 1)
    high = round(value / unit) * unit
    return high, value - high


_LN2_HIGH, _LN2_LOW = _split(math.log(2), 16)
_LOG2_E = 1 / math.log(2)


def _exp(x):
    if is_double(x):
        return (x * _LOG2_E).exp2()
    # exp(x) = 2**whole * 2**rest. The product of `whole` and the high part of
    # log(2) is exact, so that the error does not grow with x.
    x = (x < -104).where(-104.0, (x > 89).where(89.0, x))
    whole = (x * _LOG2_E).trunc()
    rest = (x - whole * _LN2_HIGH) * _LOG2_E - whole * (_LN2_LOW * _LOG2_E)
    return rest.exp2() * whole.exp2()


@traced_once(lambda x, y: [y])
def exp(x):
    return _exp(x)


def halves(x):
    """Splits floats into two, with half of the significant bits each."""
    bits, dropped = (dtypes.int64, 27) if is_double(x) else (dtypes.int32, 12)
    high = (x.bitcast(bits) & -(1 << dropped)).bitcast(x.dtype)
    return high, x - high


def exponential(base, x):
    """Raises a positive number to powers."""
    return _exponential_of(float(base))(x)


@functools.lru_cache(maxsize=64)
def _exponential_of(base):
    power = math.log2(base)

    @traced_once(lambda x, y: [y * math.log(base)])
    def function(x):
        if is_double(x) or power == 0:
            return (x * power).exp2()
        # As in `_exp`, but a few bits of log2(base) leave a larger rest.
        limit = 300 / abs(power)
        x = (x < -limit).where(-limit, (x > limit).where(limit, x))
        high, low = _split(power, 12)
        x_high, x_low = halves(x)
        whole = (x_high * high).trunc()
        rest = (x_high * high - whole) + (x_low * high + x * low)
        return rest.exp2() * whole.exp2()

    return function


def _expm1(x, exponential):
    near = x * taylor(x, lambda k: 1 / math.factorial(k + 1), 8, 14)
    return (magnitude(x) < 0.35).where(near, exponential(x) - 1)


@traced_once(lambda x, y: [y + 1])
def expm1(x):
    return _expm1(x, _exp)


def exp2(x):
    return x.exp2()


def log(x):
    return x.log2() * math.log(2)


def log2(x):
    return x.log2()


def log10(x):
    return x.log2() * math.log10(2)


def _log1p(x):
    # log(1 + x) = 2 * artanh(x / (2 + x))
    t = x / (2 + x)
    near = 2 * t * taylor(t * t, lambda k: 1 / (2 * k + 1), 5, 10)
    return (magnitude(x) < 0.25).where(near, log(1 + x))


@traced_once(lambda x, y: [1 / (1 + x)])
def log1p(x):
    return _log1p(x)


# Trigonometric functions.


# Long numbers have digits of so many bits: a product of two digits leaves
# room in 64 bits to add some up.
_BITS = 28
_MASK = (1 << _BITS) - 1


def _pi(bits):
    """Pi times 2**bits, an integer, by Machin's formula."""
    one = 1 << bits + 16

    def inverse_tangent(n):
        total, power, odd = 0, one // n, 1
        while power:
            total += power // odd
            power, odd = power // -(n * n), odd + 2
        return total

    return 4 * (4 * inverse_tangent(5) - inverse_tangent(239)) >> 16


def _two_over_pi(shift, count):
    """The first `count` digits of 2 / pi / 2**shift, largest first.

    The first one has two bits before the point.
    """
    bits = _BITS * count - 2
    number = (2 << 2 * bits) // _pi(bits + shift + 64) << 64
    return [number >> _BITS * i & _MASK for i in reversed(range(count))]


class _Turns(typing.NamedTuple):
    """How to count quarter turns in a dtype.

    Attributes:
        bits: Bits of a significand.
        steps: By how many digits the largest numbers are divided, in turn.
        places: How many digits of the product count.
        parts: How many digits a number has after that.
        digits: Those of 2 / pi / 2**bits.
    """

    bits: int
    steps: tuple
    places: int
    parts: int
    digits: list


def _turns(bits, steps, places, parts):
    digits = _two_over_pi(bits, places + sum(steps))
    return _Turns(bits, steps, places, parts, digits)


_TURNS_32 = _turns(24, (4, 2, 1), 4, 2)
_TURNS_64 = _turns(53, (32, 16, 8, 4, 2, 1), 7, 3)


def _reduce(x):
    """Returns `x - n * pi / 2` in [-pi / 4, pi / 4], and `n` modulo 4.

    As Payne and Hanek do it: of the product with 2 / pi, whose digits are
    many, those above 4 and far below 1 need not be computed.
    """
    turns = _TURNS_64 if is_double(x) else _TURNS_32
    size = magnitude(x)
    finite = size < math.inf
    rest = finite.where(size, 0)
    digits = turns.digits
    # Large numbers are divided by a power of two, and 2 / pi multiplied.
    for i, step in enumerate(turns.steps):
        count = turns.places + sum(turns.steps[i + 1 :])
        large = rest >= 2.0 ** (_BITS * step)
        rest = large.where(rest * 2.0 ** (-_BITS * step), rest)
        digits = [
            large.where(digits[j + step], digits[j]) for j in range(count)
        ]
    rest = rest * 2.0**turns.bits
    parts = []
    for i in reversed(range(turns.parts)):
        part = (rest * 2.0 ** (-_BITS * i)).trunc()
        rest = rest - part * 2.0 ** (_BITS * i)
        parts.insert(0, _unsigned(part.cast(dtypes.int32)))
    carry, product = 0, []
    for j in reversed(range(turns.places)):
        for part, digit in zip(parts, digits[j:]):
            carry = carry + part * _unsigned(digit)
        product.insert(0, (carry & _MASK).cast(dtypes.int32))
        carry = carry >> _BITS
    half = 1 << _BITS - 3
    quadrant = (product[0] + half) >> _BITS - 2
    product[0] = product[0] - quadrant * (2 * half)
    # Negative numbers of many digits would cancel.
    below = product[0] < 0
    fraction = 0
    for i in reversed(range(turns.places - turns.parts + 1)):
        digit = below.where(product[i] ^ (-1 if i == 0 else _MASK), product[i])
        unit = 2.0 ** (2 - _BITS * (i + 1))
        fraction = fraction + digit.cast(x.dtype) * unit
    angle = fraction * (math.pi / 2)
    near = size < math.pi / 4
    angle = near.where(x, below.ne(x < 0).where(-angle, angle))
    quadrant = near.where(0, (x < 0).where(-quadrant, quadrant) & 3)
    return finite.where(angle, math.nan), quadrant


def _unsigned(digit):
    """Widens an int32 digit."""
    # By way of uint32: processors multiply unsigned halves faster.
    return digit.cast(dtypes.uint32).cast(dtypes.uint64)


def _sin_near(x):
    square = x * x

    def term(k):
        return (-1) ** k / math.factorial(2 * k + 1)

    return x * taylor(square, term, 5, 9)


def _cos_near(x):
    def term(k):
        return (-1) ** k / math.factorial(2 * k)

    return taylor(x * x, term, 6, 10)


def _turn(x, quarters):
    """sin(x + quarters * pi / 2), for 0 or 1 quarters."""
    rest, quadrant = _reduce(x)
    quadrant = quadrant + quarters
    odd = (quadrant & 1).ne(0)
    size = odd.where(_cos_near(rest), _sin_near(rest))
    return (quadrant & 2).ne(0).where(-size, size)


@traced_once(lambda x, y: [cos(x)])
def sin(x):
    return _turn(x, 0)


@traced_once(lambda x, y: [-sin(x)])
def cos(x):
    return _turn(x, 1)


@traced_once(lambda x, y: [1 + y * y])
def tan(x):
    return _turn(x, 0) / _turn(x, 1)


_ARCSIN = Approximation(_over_root(np.arcsin), 0, 0.25, 6, 14)
_ARCTAN = Approximation(
    _over_root(np.arctan), 0, math.tan(math.pi / 8) ** 2, 5, 12
)


def _arcsin_parts(x):
    """Returns whether |x| > 1/2, and the arcsine of |x| or of its partner."""
    size = magnitude(x)
    far = size > 0.5
    # arcsin(x) = pi / 2 - 2 * arcsin(sqrt((1 - x) / 2))
    square = far.where((1 - size) * 0.5, size * size)
    return far, far.where(square.sqrt(), size) * _ARCSIN(square)


@traced_once(lambda x, y: [1 / ((1 - x) * (1 + x)).sqrt()])
def arcsin(x):
    far, angle = _arcsin_parts(x)
    return with_sign(far.where(math.pi / 2 - 2 * angle, angle), x)


@traced_once(lambda x, y: [-1 / ((1 - x) * (1 + x)).sqrt()])
def arccos(x):
    far, angle = _arcsin_parts(x)
    beyond = (x < 0).where(math.pi - 2 * angle, 2 * angle)
    return far.where(beyond, math.pi / 2 - with_sign(angle, x))


def _arctan_ratio(opposite, adjacent):
    """arctan(opposite / adjacent), for 0 <= opposite <= adjacent."""
    # arctan(t) = pi / 4 + arctan((t - 1) / (t + 1))
    steep = opposite > adjacent * math.tan(math.pi / 8)
    t = steep.where(opposite - adjacent, opposite) / steep.where(
        opposite + adjacent, adjacent
    )
    angle = t * _ARCTAN(t * t)
    return steep.where(math.pi / 4 + angle, angle)


@traced_once(lambda x, y: [1 / (1 + x * x)])
def arctan(x):
    size = magnitude(x)
    far = size > 1
    angle = _arctan_ratio(far.where(1, size), far.where(size, 1))
    return with_sign(far.where(math.pi / 2 - angle, angle), x)


def _is_negative(x):
    """Whether the sign bit is set."""
    bits = dtypes.int64 if is_double(x) else dtypes.int32
    return x.bitcast(bits) < 0


def _arctan2_derivatives(y, x, angle):
    square = x * x + y * y
    square = (square == 0).where(1, square)
    return [x / square, -y / square]


@traced_once(_arctan2_derivatives)
def arctan2(y, x):
    opposite, adjacent = magnitude(y), magnitude(x)
    steep = opposite > adjacent
    short = steep.where(adjacent, opposite)
    long = steep.where(opposite, adjacent)
    # Two zeros make an angle of zero, two infinities one of pi / 4.
    equal = opposite == adjacent
    angle = _arctan_ratio(
        equal.where(opposite.ne(0).where(1, 0), short), equal.where(1, long)
    )
    angle = steep.where(math.pi / 2 - angle, angle)
    angle = _is_negative(x).where(math.pi - angle, angle)
    return _is_negative(y).where(-angle, angle)


# Hyperbolic functions.


def _sinh(x):
    near = x * taylor(x * x, lambda k: 1 / math.factorial(2 * k + 1), 6, 10)
    size = magnitude(x)
    half = _half_exp(size)
    return (size < 1).where(near, with_sign(half - 0.25 / half, x))


def _cosh(x):
    half = _half_exp(magnitude(x))
    return half + 0.25 / half


def _half_exp(x):
    """exp(x) / 2, which does not overflow before the result does."""
    return _exp(x - 1) * (math.e / 2)


@traced_once(lambda x, y: [_cosh(x)])
def sinh(x):
    return _sinh(x)


@traced_once(lambda x, y: [_sinh(x)])
def cosh(x):
    return _cosh(x)


@traced_once(lambda x, y: [1 - y * y])
def tanh(x):
    # Beyond, the result is 1 to the last place.
    limit = 20.0 if is_double(x) else 10.0
    x = (x < -limit).where(-limit, (x > limit).where(limit, x))
    t = _expm1(2 * x, lambda t: (t * _LOG2_E).exp2())
    return t / (t + 2)


@traced_once(lambda x, y: [1 / (x * x + 1).sqrt()])
def arcsinh(x):
    size = magnitude(x)
    far = size > (2.0**28 if is_double(x) else 2.0**13)
    inner = far.where(0, size)
    square = inner * inner
    near = _log1p(inner + square / (1 + (1 + square).sqrt()))
    return with_sign(far.where(log(size) + math.log(2), near), x)


@traced_once(lambda x, y: [1 / ((x - 1) * (x + 1)).sqrt()])
def arccosh(x):
    far = x > (2.0**28 if is_double(x) else 2.0**13)
    # Selected, or tinygrad would move the constant into the sum below.
    t = far.where(0, x - 1)
    near = _log1p(t + (t * (t + 2)).sqrt())
    result = far.where(log(x) + math.log(2), near)
    return (x < 1).where(math.nan, result)


@traced_once(lambda x, y: [1 / ((1 - x) * (1 + x))])
def arctanh(x):
    size = magnitude(x)
    return with_sign(0.5 * _log1p(2 * size / (1 - size)), x)


# Division with a remainder.


def _truncated_division(x1, x2):
    """Returns the quotient of floats towards zero, and C's `fmod`.

    NaN where the quotient has more than twice as many bits as the dtype.
    """
    size, total = magnitude(x2), magnitude(x1)
    rest, quotient = total, 0
    for _ in range(2):
        # Cut to the dtype's bits, and after rounding too large by one, maybe.
        part = (rest / size).trunc()
        # Products of halves are exact.
        for a in halves(part):
            for b in halves(size):
                rest = rest - a * b
        below = rest < 0
        rest = below.where(rest + size, rest)
        quotient = quotient + below.where(part - 1, part)
    full = rest == size
    rest, quotient = full.where(0, rest), full.where(quotient + 1, quotient)
    lost = (rest < 0) | (rest > size) | rest.ne(rest)
    whole = (size == math.inf) & (total < math.inf)
    rest = whole.where(total, lost.where(math.nan, rest))
    quotient = whole.where(0, lost.where(math.nan, quotient))
    return (
        (x1 < 0).ne(x2 < 0).where(-quotient, quotient),
        (x1 < 0).where(-rest, rest),
    )


@traced_once(lambda x1, x2, y: [x1.const_like(1), -(x1 / x2).trunc()])
def fmod(x1, x2):
    return _truncated_division(x1, x2)[1]


@traced_once(lambda x1, x2, y: [x1.const_like(1), -(x1 / x2).floor()])
def mod(x1, x2):
    _, remainder = _truncated_division(x1, x2)
    other_side = remainder.ne(0) & (remainder < 0).ne(x2 < 0)
    return other_side.where(remainder + x2, remainder)


@traced_once(lambda x1, x2, y: [x1.const_like(0), x2.const_like(0)])
def floor_divide(x1, x2):
    quotient, remainder = _truncated_division(x1, x2)
    other_side = remainder.ne(0) & (remainder < 0).ne(x2 < 0)
    quotient = other_side.where(quotient - 1, quotient)
    # Where the remainder is lost it does not matter to the quotient.
    lost = remainder.ne(remainder) & (magnitude(x1) < math.inf)
    return (lost | (x2 == 0)).where((x1 / x2).trunc(), quotient)


# Roots, powers and sums of exponentials.


def sqrt(x):
    return x.sqrt()


@traced_once(lambda x, y: [1 / (3 * y * y)])
def cbrt(x):
    size = magnitude(x)
    root = (size.log2() / 3).exp2()
    # One step of Newton's method.
    better = root - (root - size / (root * root)) / 3
    regular = size.ne(0) & size.ne(math.inf)
    return with_sign(regular.where(better, size), x)


@traced_once(lambda x1, x2, y: [x1 / y, x2 / y])
def hypot(x1, x2):
    a, b = magnitude(x1), magnitude(x2)
    long, short = (a > b).where(a, b), (a > b).where(b, a)
    ratio = short / long.ne(0).where(long, 1)
    result = long * (1 + ratio * ratio).sqrt()
    return ((a == math.inf) | (b == math.inf)).where(math.inf, result)


def _power(x, exponent):
    size = magnitude(x)
    logarithm = size.log2()
    # 1 to any power, even an infinite one, is 1.
    result = logarithm.ne(0).where(logarithm * exponent, 0).exp2()
    half = exponent * 0.5
    whole = exponent == exponent.trunc()
    odd = whole & half.ne(half.trunc())
    result = (odd & _is_negative(x)).where(-result, result)
    undefined = (x < 0) & size.ne(math.inf) & ~whole
    return (exponent == 0).where(1, undefined.where(math.nan, result))


def _power_derivatives(x, exponent, y):
    by_base = (exponent == 0).where(0, exponent * _power(x, exponent - 1))
    flat = (x == 0) & ((exponent > 0) | (exponent == 0))
    return [by_base, flat.where(0, y * log(flat.where(1, x)))]


@traced_once(_power_derivatives)
def power(x, exponent):
    return _power(x, exponent)


def _add_exponentials(x1, x2, exponential, softplus):
    """log(exp(x1) + exp(x2)), with the functions of the base."""
    larger = (x1 > x2).where(x1, x2)
    # Infinities of one sign have no difference.
    gap = (x1 == x2).where(0, magnitude(x1 - x2))
    return larger + softplus(exponential(-gap))


def _shares(exponential):
    """Derivatives of `_add_exponentials`."""

    def derivatives(x1, x2, y):
        difference = (x1 == x2).where(0, x2 - x1)
        return [
            1 / (1 + exponential(difference)),
            1 / (1 + exponential(-difference)),
        ]

    return derivatives


@traced_once(_shares(_exp))
def logaddexp(x1, x2):
    return _add_exponentials(x1, x2, _exp, _log1p)


@traced_once(_shares(exp2))
def logaddexp2(x1, x2):
    return _add_exponentials(x1, x2, exp2, lambda t: _log1p(t) * _LOG2_E)


def _sinc_derivatives(x, y):
    zero = magnitude(x) < 1e-10
    angle = zero.where(1, x) * math.pi
    return [zero.where(0, (cos(angle) - y) / zero.where(1, x))]


@traced_once(_sinc_derivatives)
def sinc(x):
    zero = magnitude(x) < 1e-10
    angle = zero.where(1, x) * math.pi
    return zero.where(1, _turn(angle, 0) / angle)


_I0_NEAR = Approximation(lambda x: np.i0(x) * np.exp(-x), 0, 8, 15, 28)
_I0_FAR = Approximation(
    lambda t: np.i0(1 / t) * np.exp(-1 / t) / np.sqrt(t), 1 / 700, 1 / 8, 8, 18
)


def _i0(x):
    size = magnitude(x)
    near = size < 8
    inner, outer = near.where(size, 0), near.where(8, size)
    scaled = near.where(_I0_NEAR(inner), _I0_FAR(1 / outer) / outer.sqrt())
    root = exp(size * 0.5)
    return root * scaled * root


@traced_once(lambda x, y: _i0(x).sum().gradient(x))
def i0(x):
    return _i0(x)
