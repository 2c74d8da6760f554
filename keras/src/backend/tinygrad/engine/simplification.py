"""Holds tinygrad's simplifications to what their dtypes' arithmetic gives.

tinygrad simplifies a graph as if it computed with exact numbers: `x - x` is 0
and `x / x` is 1 for NaN and infinities too, `(x + 1e8) - 1e8` is `x`, a common
factor leaves a sum that it kept from overflowing, and `x + 1 < c` is
`x < c - 1` where `x + 1` wraps around. Those rules are kept for the numbers
that index memory, and for integers where they are true.
"""

import functools
import sys

from keras.src.backend.tinygrad.engine.internals import Ops
from keras.src.backend.tinygrad.engine.internals import PatternMatcher
from keras.src.backend.tinygrad.engine.internals import UOp
from keras.src.backend.tinygrad.engine.internals import dtypes
from keras.src.backend.tinygrad.engine.internals import sym

_EXACT = (*dtypes.ints, dtypes.bool, dtypes.weakint)


def install(original):
    """Restricts the rules, and the bounds of numbers that they go by.

    Args:
        original: Function of an owner and a name that returns what tinygrad
            itself has there.
    """
    floats = {id(p): p for x in _float_examples() for p in _rules_of(x)}
    for pattern in floats.values():
        pattern.match_dtype = _EXACT
    sums = {id(p): p for x in _sum_examples() for p in _rules_of(x)}
    for pattern in sums.values():
        for operands in pattern.src:
            operands[0].match_dtype = (dtypes.weakint,)
    _compile_again({*floats, *sums})
    bounds = functools.cached_property(_bounds(original(UOp, "_min_max").func))
    bounds.__set_name__(UOp, "_min_max")
    UOp._min_max = bounds


def _float_examples():
    """Lists expressions of floats that tinygrad's rules give another value."""
    x, y = (UOp.variable(n, -1.0, 1.0, dtypes.float32) for n in "xy")
    index = UOp.range(4, 0)
    element = x * index.cast(dtypes.float32)
    return [
        # Not for NaN and infinities.
        x * 0.0,
        x / x,
        x * y / y,
        UOp(Ops.FLOORDIV, src=(x, x)),
        UOp(Ops.FLOORMOD, src=(x, x)),
        x + x * 2.0,
        x * 2.0 + x * 3.0,
        y + x + x,
        y + x + x * 2.0,
        y + x * 2.0 + x,
        y + x * 2.0 + x * 3.0,
        # Not where a part overflows, or is rounded away.
        x + 1.0 + 2.0,
        x + 1.0 + y,
        x * 2.0 * 3.0,
        x * 2.0 * y,
        x / y / 2.0,
        (x * x).reciprocal(),
        (x * x * x).reciprocal(),
        (x * 2.0).reciprocal(),
        (element * 2.0).reduce(index, arg=(Ops.ADD, 0)),
        (element * y).reduce(index, arg=(Ops.ADD, 0)),
        # Not for x near 0, of which 1 - 1 / (1 + x) leaves little.
        x / (1.0 + x),
        x * ((1.0 + x).reciprocal() * y),
        x * ((1.0 + x).reciprocal() + y),
    ]


def _sum_examples():
    """Lists comparisons of a sum that may have wrapped around."""
    return [UOp.variable("x", -8, 8, dtypes.int32) + 1 < 5]


def _rules_of(node):
    """Yields the patterns of the rules that rewrite a node."""
    for pattern, rewrite in sym.patterns:
        rule = PatternMatcher([(pattern, rewrite)], compiled=False)
        if rule.rewrite(node, ctx={}) is not None:
            yield pattern


def _compile_again(patterns):
    """Has matchers that know some patterns look at them again.

    Args:
        patterns: Set of the patterns' identities.
    """
    matchers = {
        value
        for name, module in list(sys.modules.items())
        if name.startswith("tinygrad.")
        for value in vars(module).values()
        if isinstance(value, PatternMatcher)
    }
    for matcher in matchers:
        if not patterns.isdisjoint(id(p) for p, _ in matcher.patterns):
            matcher.__init__(matcher.patterns)
    PatternMatcher.__add__.cache_clear()


def _bounds(original):
    def _min_max(self):
        bounds = original(self)
        dtype = self.dtype
        if dtype in dtypes.ints and not (
            dtype.min <= bounds[0] and bounds[1] <= dtype.max
        ):
            # It may have wrapped around.
            return dtype.min, dtype.max
        return bounds

    return _min_max
