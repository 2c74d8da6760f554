"""Lets every reader of a value that is stored anyway read what is stored.

An operand of a kernel like BLAS' has to be in memory. tinygrad stores it for
that kernel and computes it anew, fused, for each of its other uses: a
gradient that two products and a sum read would be computed three times.
"""

from keras.src.backend.tinygrad.engine.internals import GroupOp
from keras.src.backend.tinygrad.engine.internals import Ops
from keras.src.backend.tinygrad.engine.internals import UOp

_COMPUTED = GroupOp.ALU | {Ops.REDUCE, Ops.GETTUPLE}
_COMPUTED -= {Ops.CAST, Ops.BITCAST}


def read_stored(roots):
    """Rewrites a graph so that stored values are computed once.

    Args:
        roots: List of `UOp`s.

    Returns:
        List of as many `UOp`s, of the same values.
    """
    order = list(UOp.sink(*roots).toposort(enter_calls=False))[:-1]
    stored = {}
    for uop in order:
        if uop.op is Ops.CONTIGUOUS and uop.arg is None:
            value = _unreshaped(uop)
            if value.op in _COMPUTED:
                stored.setdefault(value, uop)
    if not stored:
        return roots
    rebuilt = {}
    for uop in order:
        if uop.op is Ops.CONTIGUOUS and uop.arg is None:
            value = _unreshaped(uop)
            if value in stored:
                rebuilt[uop] = rebuilt[value].reshape(uop.shape)
                continue
        new = uop.replace(src=tuple(rebuilt.get(s, s) for s in uop.src))
        if uop in stored:
            new = new.reshape(stored[uop].shape).contiguous()
            new = new.reshape(uop.shape)
        rebuilt[uop] = new
    return [rebuilt[uop] for uop in roots]


def _unreshaped(contiguous):
    uop = contiguous.src[0]
    while uop.op is Ops.RESHAPE:
        uop = uop.src[0]
    return uop
