"""Error functions, accurate to a few units in the last place.

Each is a polynomial or rational approximation that fuses into the kernel
around it, with its analytic derivative declared. float64 is computed in
float64; everything else in float32.
"""

import math

from tinygrad import dtypes

from keras.src.backend.tinygrad.engine.gradient import custom_vjp
from keras.src.backend.tinygrad.numpy.transcendental import horner

# Coefficients, lowest power first: interpolation at Chebyshev nodes (minimax
# for the rational `_ERF_32`) of 40-digit values. Relative errors: below 2e-8
# in the float32 tables, below 3e-15 in the float64 ones.

# erf(x) / x in x**2, for |x| < 3.92, beyond which float32 has 1.
_ERF_32_TOP = (
    1.12837915,
    0.190346426,
    0.0527405384,
    0.00376296188,
    0.000284810072,
    2.05038713e-06,
)
_ERF_32_BOTTOM = (
    1,
    0.502022883,
    0.114084067,
    0.0149639285,
    0.00116186649,
    3.80910047e-05,
)
# erf(x) / x in x**2, for |x| < 1.
_ERF_64 = (
    1.1283791670955126,
    -0.37612638903183543,
    0.11283791670945006,
    -0.02686617064323777,
    0.0052239776071164225,
    -0.0008548325975389692,
    0.00012055294904839707,
    -1.492473690741966e-05,
    1.6447424703317362e-06,
    -1.6208483801871705e-07,
    1.3720064546777686e-08,
    -7.795898827002142e-10,
)
# erfc(x) * exp(x**2) * (1 + 2 * x) in (x - 2.5) / (x + 2.5), for x >= 0.
_ERFC_32 = (
    1.26483818,
    -0.122356769,
    -0.0990242396,
    0.157630376,
    -0.102970555,
    0.0327554827,
    0.000946808873,
    -0.00435827723,
    0.000463279844,
    0.000583476935,
    -6.38943719e-05,
    -6.47106382e-05,
)
# The same in (x - 3) / (x + 3).
_ERFC_64 = (
    1.2530080582697296,
    -0.13562110612457573,
    -0.04756229435344576,
    0.129645158702281,
    -0.11927366341575335,
    0.06830802735644051,
    -0.023770514907124864,
    0.002529391666621164,
    0.0018886902217603357,
    -0.0007798312764403121,
    -0.00010515888874571764,
    0.00012509529969696213,
    4.9457917889143174e-06,
    -2.0089974602014178e-05,
    -7.218910914722777e-07,
    3.454264081654598e-06,
    3.4040811214985844e-07,
    -5.963735758027136e-07,
    -1.232972366594844e-07,
    8.764763434559065e-08,
    2.900096038354821e-08,
    -7.639805716154245e-09,
    -3.39119752504003e-09,
)
# erfinv(x) / x, with w = -log(1 - x**2), in w - 2.5, for w < 5.
_ERFINV_32_CENTRE = (
    1.50140936,
    0.246640279,
    -0.00417739288,
    -0.00125272639,
    0.000218349386,
    -4.97241969e-06,
    -3.46398527e-06,
    4.68131348e-07,
    2.33359672e-08,
    -8.93192597e-09,
)
# The same in sqrt(w) - 3.475, for w >= 5.
_ERFINV_32_TAIL = (
    3.31030357,
    1.00720104,
    0.0034359891,
    -0.00217740678,
    0.0011815471,
    -0.00074395002,
    0.000473185308,
    -0.000249955072,
    7.9911154e-05,
    8.41794753e-06,
    -1.95906904e-05,
    5.43940722e-06,
)
# The same in w - 3.125, for w < 6.25.
_ERFINV_64_CENTRE = (
    1.6536545626831027,
    0.24015818242558845,
    -0.006033670871427489,
    -0.0007407025341574597,
    0.00018673420802268017,
    -1.3882523382209929e-05,
    -1.365469181267597e-06,
    4.2347879792718207e-07,
    -2.907038581874436e-08,
    -4.112644907577394e-09,
    1.0512200367259048e-09,
    -5.415046677124506e-11,
    -1.2977493703687756e-11,
    2.6327434449823037e-12,
    -8.105973917549821e-14,
    -4.0444283335958285e-14,
    6.580282043451331e-15,
    1.2744143881600212e-17,
    -1.2888083317762992e-16,
    1.1531711227035491e-17,
    1.0922303658470997e-18,
    -1.7578518227410067e-19,
)
# The same in sqrt(w) - 3.25, for w < 16.
_ERFINV_64_TAIL = (
    3.0838856104922208,
    1.0052589676941646,
    0.005370914553573593,
    -0.003751208508030541,
    0.0024914420969979908,
    -0.0016882755445265592,
    0.0009532893618552461,
    -0.00035503764895782253,
    2.4031286377073694e-05,
    6.828561398530996e-05,
    -4.7319187369358214e-05,
    1.2472740144742724e-05,
    2.9264777314239854e-06,
    -4.008956966932278e-06,
    1.497191022600222e-06,
    1.3250759477977461e-08,
    -2.697313682066162e-07,
    9.284332225420571e-08,
)
# The same in sqrt(w) - 5.375, for w >= 16.
_ERFINV_64_FAR = (
    5.228739597362451,
    1.010119977486854,
    -0.0003256826142708444,
    -0.0001245462417272216,
    4.7073116352023395e-05,
    -1.1882933869376397e-05,
    2.605405110455581e-06,
    -5.306713026444183e-07,
    1.0383514165287935e-07,
    -2.0520590605328e-08,
    4.771895800625428e-09,
    -1.5970529554019254e-09,
    6.65524440293362e-10,
    -3.1807300916481004e-10,
    1.914633963242046e-10,
    -9.528210633012094e-11,
    2.566562872079033e-11,
    -2.5413405290526725e-12,
)
# log2(e) to 9 and to 35 bits.
_LOG2_E_HIGH_32 = 369 / 256
_LOG2_E_HIGH_64 = round(2**34 / math.log(2)) / 2**34


def erf(x):
    """Error function of a floating tensor, elementwise."""
    (y,) = custom_vjp(
        [_compute(_erf, x)],
        [x],
        lambda grads: [grads[0] * (2 / math.sqrt(math.pi)) * _gaussian(x)],
    )
    return y


def erfc(x):
    """Complementary error function of a floating tensor, elementwise.

    Relative accuracy holds in the tail, down to the smallest normal number.
    """
    (y,) = custom_vjp(
        [_compute(_erfc, x)],
        [x],
        lambda grads: [grads[0] * (-2 / math.sqrt(math.pi)) * _gaussian(x)],
    )
    return y


def erfinv(x):
    """Inverse of `erf`, elementwise: infinite at -1 and 1, NaN beyond."""

    def vjp(grads):
        slope = (math.sqrt(math.pi) / 2) * erfinv(x).square().exp()
        return [grads[0] * slope]

    return custom_vjp([_compute(_erfinv, x)], [x], vjp)[0]


def erfinv_from_tail(tail):
    """`erfinv(1 - tail)` for `tail` in (0, 1], exact far into the tail.

    Args:
        tail: float32 `Tensor` with values of at least 2**-32, or float64
            `Tensor` with values of at least 2**-64.

    Returns:
        `Tensor` of the same shape and dtype.
    """
    w = (tail * (2 - tail)).log().neg()
    return (1 - tail) * _erfinv_ratio(w)


def _compute(fn, x):
    if x.dtype == dtypes.float64:
        return fn(x)
    return fn(x.cast(dtypes.float32)).cast(x.dtype)


def _gaussian(x):
    return x.square().neg().exp()


def _sign(x):
    return (x < 0).where(x.const_like(-1), x.const_like(1))


def _erf(x):
    size = x.abs()
    if x.dtype == dtypes.float64:
        inner = x * horner(x.square(), _ERF_64)
        return (size > 1).where(_sign(x) * (1 - _erfc_positive(size)), inner)
    square = x.square()
    ratio = horner(square, _ERF_32_TOP) / horner(square, _ERF_32_BOTTOM)
    return (size > 3.92).where(_sign(x), x * ratio)


def _erfc(x):
    result = _erfc_positive(x.abs())
    return (x < 0).where(2 - result, result)


def _erfc_positive(x):
    """`erfc(x)` for x >= 0."""
    double = x.dtype == dtypes.float64
    # Past the clip the result underflows; NaN passes.
    x = (x > (28 if double else 11)).where(
        x.const_like(28 if double else 11), x
    )
    pole = 3 if double else 2.5
    t = (x - pole) / (x + pole)
    scaled = horner(t, _ERFC_64 if double else _ERFC_32) / (1 + 2 * x)
    # exp(-x * x) without the rounding errors that the exponential would
    # magnify: x = head + rest with head * head exact, and log2(e) in two
    # parts so that its product with head * head is exact as well.
    head = (x * 16).trunc() / 16
    rest = (head - x) * (head + x)
    square = head.square()
    high = _LOG2_E_HIGH_64 if double else _LOG2_E_HIGH_32
    low = 1 / math.log(2) - high
    power = rest * (1 / math.log(2)) - square * low
    return (square * -high).exp2() * power.exp2() * scaled


def _erfinv(x):
    w = ((1 - x) * (1 + x)).log().neg()
    y = x * _erfinv_ratio(w)
    return (x.abs() == 1).where(x * math.inf, y)


def _erfinv_ratio(w):
    """`erfinv(x) / x` where `w = -log(1 - x * x)`."""
    root = w.sqrt()
    if w.dtype == dtypes.float64:
        centre = horner(w - 3.125, _ERFINV_64_CENTRE)
        tail = horner(root - 3.25, _ERFINV_64_TAIL)
        far = horner(root - 5.375, _ERFINV_64_FAR)
        return (w < 6.25).where(centre, (w < 16).where(tail, far))
    centre = horner(w - 2.5, _ERFINV_32_CENTRE)
    tail = horner(root - 3.475, _ERFINV_32_TAIL)
    return (w < 5).where(centre, tail)
