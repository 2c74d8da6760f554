"""How kernels are written in C, where tinygrad's own rules are not enough."""

import struct

from keras.src.backend.tinygrad.engine.internals import AddrSpace
from keras.src.backend.tinygrad.engine.internals import ClangRenderer
from keras.src.backend.tinygrad.engine.internals import CStyleLanguage
from keras.src.backend.tinygrad.engine.internals import Ops
from keras.src.backend.tinygrad.engine.internals import PatternMatcher
from keras.src.backend.tinygrad.engine.internals import UPat
from keras.src.backend.tinygrad.engine.internals import dtypes
from keras.src.backend.tinygrad.engine.internals import float_to_bf16


def install(original):
    """Makes tinygrad's renderers write C by the rules of this module.

    Args:
        original: Function of an object and an attribute's name that returns
            what tinygrad itself has there.
    """
    rewrites = {
        kind: original(kind, "string_rewrite")
        for kind in (CStyleLanguage, *_subclasses(CStyleLanguage))
        if "string_rewrite" in vars(kind) or kind is ClangRenderer
    }
    for kind, rewrite in rewrites.items():
        kind.string_rewrite = _NARROW_INTEGERS + _NEGATION + rewrite
    ClangRenderer.string_rewrite = (
        _BFLOAT16 + _POLYNOMIAL_STEP + ClangRenderer.string_rewrite
    )
    # clang before 15 has no type __bf16 on x86. tinygrad computes bfloat16
    # in float32 and moves bits, for which an integer type does as well.
    ClangRenderer.type_map = {
        **original(ClangRenderer, "type_map"),
        dtypes.bfloat16: "unsigned short",
    }
    ClangRenderer._render_defines = _rounding_products(
        original(ClangRenderer, "_render_defines")
    )


def _subclasses(kind):
    for subclass in kind.__subclasses__():
        yield subclass
        yield from _subclasses(subclass)


# C computes with ints what is narrower. Unless a store cuts it off, what
# overflows would stay, and a kernel would compute other numbers than those
# that it was fused from.
_NARROW_INTEGERS = PatternMatcher(
    [
        (
            UPat(
                (Ops.ADD, Ops.SUB, Ops.MUL, Ops.NEG, Ops.SHL, Ops.CDIV),
                (dtypes.int8, dtypes.uint8, dtypes.int16, dtypes.uint16),
                name="x",
            ),
            lambda ctx, x: (
                "("
                + ctx.render_cast(
                    x,
                    ctx.code_for_op[x.op](*(ctx[s] for s in x.src), x.dtype),
                )
                + ")"
            ),
        )
    ]
)

# tinygrad writes `a - -b` without the space.
_NEGATION = PatternMatcher(
    [
        (
            UPat(Ops.NEG, name="x"),
            lambda ctx, x: f"({ctx.code_for_op[x.op](ctx[x.src[0]], x.dtype)})",
        )
    ]
)

_BFLOAT16 = PatternMatcher(
    [
        (
            UPat.cvar("c").cast(dtypes.bfloat16),
            lambda c: f"((unsigned short){_bfloat16_bits(c.val)}u)",
        )
    ]
)

# clang would fuse a product and a sum into one instruction that does not round
# the product. So `a * b - a * b` would not be 0, and a kernel would compute
# other numbers than those that it was fused from. Two cases are left to it
# which need the speed: the steps of polynomials, such as those for exp and
# log, and kernels that sum.
_POLYNOMIAL_STEP = PatternMatcher(
    [
        (
            UPat(
                Ops.ADD,
                dtypes.floats,
                [UPat(Ops.MUL, name="product"), UPat.cvar().cast(name="c")],
            ),
            # tinygrad takes away the parentheses of a sum's operand.
            lambda ctx, product, c: (
                '(({ _Pragma("clang fp contract(fast)") '
                f"{ctx[product]}+{ctx[c]}; }}))"
            ),
        )
    ]
)


def _rounding_products(original):
    def _render_defines(self, uops):
        lines = original(self, uops)
        if any(
            u.op is Ops.BUFFER and u.addrspace is AddrSpace.REG for u in uops
        ):
            return lines
        return ["#pragma clang fp contract(off)", *lines]

    return _render_defines


def _bfloat16_bits(value):
    return struct.unpack("<I", struct.pack("<f", float_to_bf16(value)))[0] >> 16
