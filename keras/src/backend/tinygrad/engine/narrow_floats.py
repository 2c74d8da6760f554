"""Arithmetic of float16 and float8 where a device computes them in another.

A CPU's C computes float16 in float32, and where a device has no float8 or no
float16, tinygrad computes them in a wider dtype. What an operation gives is
rounded to its dtype before the next one takes it, so that a kernel computes
the same numbers as those that it was fused from.
"""

import ml_dtypes
import numpy as np

from keras.src.backend.tinygrad.engine.internals import ClangRenderer
from keras.src.backend.tinygrad.engine.internals import GroupOp
from keras.src.backend.tinygrad.engine.internals import Ops
from keras.src.backend.tinygrad.engine.internals import PatternMatcher
from keras.src.backend.tinygrad.engine.internals import UOp
from keras.src.backend.tinygrad.engine.internals import UPat
from keras.src.backend.tinygrad.engine.internals import codegen_module
from keras.src.backend.tinygrad.engine.internals import decomposition_module
from keras.src.backend.tinygrad.engine.internals import dtype_module
from keras.src.backend.tinygrad.engine.internals import dtypes
from keras.src.backend.tinygrad.engine.internals import graph_rewrite
from keras.src.backend.tinygrad.engine.transfer import NUMPY_DTYPES

_FLOAT8 = dtypes.fp8_ocp
_NARROW = (dtypes.float16, *_FLOAT8)
# Operations whose result is one of their operands need no rounding.
_ROUNDED = GroupOp.ALU - {Ops.WHERE, Ops.MAX}


def install(original):
    """Makes tinygrad's decomposition of dtypes round, without saturation.

    Args:
        original: Function of an owner and a name that returns what tinygrad
            itself has there.
    """
    convert = original(decomposition_module, "f2f")
    clamp = original(decomposition_module, "f2f_clamp")
    encode = original(dtype_module, "float_to_fp8")

    def f2f(bits, source, target, sat=True):
        if target in _NARROW and source.bitsize > target.bitsize:
            return _narrowed(bits, source, target)
        if source in _NARROW:
            return _widened(bits, source, target)
        return convert(bits, source, target, sat)

    def float_to_fp8(x, dtype):
        if dtype not in _FLOAT8:
            return encode(x, dtype)
        with np.errstate(over="ignore"):
            return _bits(NUMPY_DTYPES[dtype].type(x))

    dtype_module.float_to_fp8 = float_to_fp8
    codegen_module.pm_dtype_decomps = _FIRST + original(
        codegen_module, "pm_dtype_decomps"
    )
    decomposition_module.f2f = f2f
    decomposition_module.f2f_clamp = lambda x, dtype, sat=True: (
        x if dtype in _NARROW else clamp(x, dtype, sat)
    )


def _has_float16(renderer):
    return dtypes.float16 in renderer.supported_dtypes()


def _computed_in_float32(ctx, x):
    native = _has_float16(ctx) and not isinstance(ctx, ClangRenderer)
    if x.dtype == dtypes.float16 and native:
        return None
    sources = tuple(map(_factor if x.op is Ops.MUL else _float32, x.src))
    return UOp(x.op, src=sources, arg=x.arg).cast(x.dtype)


def _float32(x):
    return x.cast(dtypes.float32)


def _factor(x):
    # A quotient is one operation.
    if x.op is Ops.RECIPROCAL:
        return _float32(x.src[0]).reciprocal()
    return _float32(x)


def _cast(ctx, x, y):
    native = y.dtype == dtypes.float16 and _has_float16(ctx)
    if native or x.dtype == y.dtype:
        return None
    bits = _float32(x).bitcast(dtypes.uint32)
    return _narrowed(bits, dtypes.float32, y.dtype).bitcast(y.dtype)


_ROUNDING = PatternMatcher(
    [
        (UPat(_ROUNDED, _NARROW, name="x"), _computed_in_float32),
        (UPat(Ops.CAST, _NARROW, (UPat.var("x"),), name="y"), _cast),
    ]
)


def _round(sink, ctx):
    found, renderer = ctx
    if found.isdisjoint(_NARROW):
        return None
    rounded = graph_rewrite(sink, _ROUNDING, ctx=renderer, bottom_up=True)
    return None if rounded is sink else rounded


_FIRST = PatternMatcher([(UPat(Ops.SINK, name="sink"), _round)])


class _Layout:
    """Where sign, exponent and mantissa of a float dtype are.

    Attributes:
        bits: Bits of a number.
        mantissa: Bits of its mantissa.
        bias: What its exponent is too large by.
        integer: Unsigned dtype of as many bits.
        sign: The bit of the sign.
        exponents: The greatest exponent, in its place.
    """

    def __init__(self, dtype):
        exponent, self.mantissa = dtypes.finfo(dtype)
        self.bits = dtype.bitsize
        self.bias = (1 << (exponent - 1)) - 1
        self.integer = getattr(dtypes, f"uint{self.bits}")
        self.sign = 1 << (self.bits - 1)
        self.exponents = ((1 << exponent) - 1) << self.mantissa


def _widened(bits, source, target):
    """Returns the numbers of a wider dtype that bits of `source` stand for."""
    narrow, wide = _Layout(source), _Layout(target)
    bits = bits.cast(wide.integer)
    sign = (bits & narrow.sign) << (wide.bits - narrow.bits)
    bits = bits & (narrow.sign - 1)
    shift = wide.mantissa - narrow.mantissa
    number = (bits << shift) + ((wide.bias - narrow.bias) << wide.mantissa)
    subnormal = bits.cast(target) * 2.0 ** (1 - narrow.bias - narrow.mantissa)
    subnormal = subnormal.bitcast(wide.integer)
    number = (bits < (1 << narrow.mantissa)).where(subnormal, number)
    # float8_e4m3fn has one NaN in place of infinity and all of its NaNs.
    finite = 0x7E if source == dtypes.fp8e4m3 else narrow.exponents - 1
    special = (bits << shift) | wide.exponents
    return ((bits > finite).where(special, number) | sign).bitcast(target)


def _narrowed(bits, source, target):
    """Returns the bits in a narrower dtype of what bits of `source` stand for.

    Rounds half to even, as `ml_dtypes` does; what is beyond the greatest
    number becomes infinity, or NaN in float8_e4m3fn.
    """
    wide, narrow = _Layout(source), _Layout(target)
    sign = (bits >> (wide.bits - narrow.bits)) & narrow.sign
    bits = bits & (wide.sign - 1)
    shift = wide.mantissa - narrow.mantissa
    rebias = wide.bias - narrow.bias
    half = (1 << (shift - 1)) - 1
    number = (bits + half + ((bits >> shift) & 1)) >> shift
    number = number - (rebias << narrow.mantissa)
    if rebias:
        # Below 2 ** mantissa a float's last bits count what it is a sum of.
        count = bits.bitcast(source) * 2.0 ** (
            narrow.bias - 1 + narrow.mantissa
        )
        count = (count + 2.0**wide.mantissa).bitcast(wide.integer)
        count = count & ((1 << wide.mantissa) - 1)
        subnormal = bits < ((rebias + 1) << wide.mantissa)
        number = subnormal.where(count, number)
    limits = ml_dtypes.finfo(NUMPY_DTYPES[target])
    greatest = _bits(limits.max)
    nan = _bits(limits.dtype.type("nan"))
    infinity = nan if target == dtypes.fp8e4m3 else narrow.exponents
    number = (number > greatest).where(infinity, number)
    number = (bits > wide.exponents).where(nan, number)
    return (number | sign).cast(narrow.integer)


def _bits(number):
    return int(number.view(f"u{number.itemsize}"))
