"""Faster forms of what tinygrad computes for each node of a graph.

tinygrad finds a node's dtype and shape by comparing its op with some forty
cases, one after the other, which takes half of the time that building a graph
takes, and much of lowering it. Here the common cases are a look-up. Every
other case, and every error, is left to tinygrad.
"""

import functools
import math

from tinygrad import Tensor

from keras.src.backend.tinygrad.engine.internals import DType
from keras.src.backend.tinygrad.engine.internals import GroupOp
from keras.src.backend.tinygrad.engine.internals import Ops
from keras.src.backend.tinygrad.engine.internals import UOp
from keras.src.backend.tinygrad.engine.internals import dtypes
from keras.src.backend.tinygrad.engine.internals import ops_module
from keras.src.backend.tinygrad.engine.internals import recursive_property

_PASS_DTYPE = {
    *GroupOp.Movement,
    *(Ops.NEG, Ops.TRUNC, Ops.LOAD, Ops.REDUCE, Ops.AFTER, Ops.RANGE),
    *(Ops.CONTIGUOUS, Ops.CONTIGUOUS_BACKWARD, Ops.COPY, Ops.STAGE),
    *(Ops.DETACH, Ops.SPECIAL),
}
_PROMOTE = GroupOp.Broadcastable - {
    *GroupOp.Comparison,
    *(Ops.WHERE, Ops.SHL, Ops.SHR),
}
_TO_FLOAT = {Ops.SIN, Ops.LOG2, Ops.EXP2, Ops.SQRT, Ops.RECIPROCAL}
_FLOATS = {dtypes.float16, dtypes.bfloat16, dtypes.float32, dtypes.float64}
_VOID = {Ops.STORE, Ops.SINK, Ops.END, Ops.GROUP, Ops.LINEAR}
_PASS_SHAPE = {
    *GroupOp.Unary,
    *(Ops.CAST, Ops.CONTIGUOUS, Ops.CONTIGUOUS_BACKWARD, Ops.DETACH),
    *(Ops.AFTER, Ops.LOAD, Ops.COPY, Ops.STORE, Ops.END),
}
_NO_SHAPE = {Ops.SINK, Ops.GROUP, Ops.LINEAR, Ops.BARRIER, Ops.IF, Ops.ENDIF}


def install(original):
    """Puts the faster forms in place of tinygrad's.

    Args:
        original: Function of an owner and a name that returns what tinygrad
            itself has there.
    """
    ops_module.dtype_from_uop = _dtype(original(ops_module, "dtype_from_uop"))
    prop = UOp.__dict__["_shape"]
    prop.fxn = _shape(original(prop, "fxn"))
    recursive_property.__get__ = _get(original(recursive_property, "__get__"))
    Tensor.arange = _arange(original(Tensor, "arange"))


def _arange(original):
    # A range of three numbers takes as many nodes as a softmax.
    @functools.lru_cache(maxsize=1024, typed=True)
    def graph(defaults, *args, **kwargs):
        return original(*args, **kwargs).uop

    @functools.wraps(original)
    def arange(*args, **kwargs):
        if not all(isinstance(a, (int, float)) for a in args):
            return original(*args, **kwargs)
        defaults = (dtypes.default_int, dtypes.default_float)
        return Tensor(graph(defaults, *args, **kwargs))

    return staticmethod(arange)


def _dtype(original):
    def dtype_from_uop(op, src, arg):
        if op in _PASS_DTYPE:
            return src[0].dtype
        if op in _PROMOTE:
            dtype = src[0].dtype
            for source in src:
                if source.dtype is not dtype:
                    return original(op, src, arg)
            return dtype
        if op is Ops.CAST and isinstance(arg, DType):
            return arg
        if op in _TO_FLOAT and src[0].dtype in _FLOATS:
            return src[0].dtype
        if op in GroupOp.Comparison:
            return dtypes.bool
        if op in _VOID:
            return dtypes.void
        return original(op, src, arg)

    return dtype_from_uop


def _shape(original):
    @functools.wraps(original)
    def _shape(self):
        op = self.op
        if op in _PASS_SHAPE:
            return self.src[0]._shape
        if op in GroupOp.Broadcastable:
            shapes = [source._shape for source in self.src]
            shape = shapes[0]
            if None not in shapes:
                if shapes.count(shape) == len(shapes):
                    return shape
                shape = _broadcast(shapes)
                if shape is not None:
                    return shape
        elif op in _MOVED:
            shape = self.src[0]._shape
            if shape is not None and all(type(n) is int for n in shape):
                moved = _MOVED[op](self, shape)
                if moved is not None:
                    return moved
        elif op is Ops.CONST or op is Ops.RANGE or op is Ops.SPECIAL:
            return ()
        elif op in _NO_SHAPE:
            return None
        return original(self)

    return _shape


def _broadcast(shapes):
    """The shape of shapes broadcast, or `None` if tinygrad must find it."""
    rank = max(map(len, shapes))
    result = [1] * rank
    for shape in shapes:
        for i, n in enumerate(shape, rank - len(shape)):
            if type(n) is not int:
                return None
            if n != 1:
                if result[i] not in (1, n):
                    return None
                result[i] = n
    return tuple(result)


def _reshaped(uop, shape):
    target = uop.marg
    if all(type(n) is int and n >= 0 for n in target):
        if math.prod(target) == math.prod(shape):
            return target
    return None


def _permuted(uop, shape):
    order = uop.arg
    if len(order) == len(shape) == len(set(order)):
        if not order or (min(order) == 0 and max(order) == len(order) - 1):
            return tuple([shape[i] for i in order])
    return None


def _reduced(uop, shape):
    count = uop.arg[1]
    if type(count) is int and 0 <= count <= len(shape):
        return shape[count:]
    return None


_MOVED = {
    Ops.RESHAPE: _reshaped,
    Ops.EXPAND: lambda uop, shape: tuple(uop.marg) + shape,
    Ops.PERMUTE: _permuted,
    Ops.REDUCE: _reduced,
}


def _get(original):
    def __get__(self, uop, owner=None):
        if uop is None:
            return self
        cache, name = uop.__dict__, self.nm
        if name in cache:
            return cache[name]
        for source in uop.src:
            if name not in source.__dict__:
                return original(self, uop, owner)
        value = cache[name] = self.fxn(uop)
        return value

    return __get__
