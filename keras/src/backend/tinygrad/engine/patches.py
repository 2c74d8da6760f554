"""The closed list of patches to tinygrad's own classes, each with its reason.

`apply` is idempotent, and a second import of the backend (`set_backend`)
takes the place of the first.
"""

import collections
import errno
import functools
import glob
import math
import mmap
import os
import sqlite3
import sys

import numpy as np
from tinygrad import Device
from tinygrad import Tensor
from tinygrad import dtypes

from keras.src.backend.tinygrad.engine import compiler
from keras.src.backend.tinygrad.engine import kernel_options
from keras.src.backend.tinygrad.engine import narrow_floats
from keras.src.backend.tinygrad.engine import rendering
from keras.src.backend.tinygrad.engine import simplification
from keras.src.backend.tinygrad.engine import tracing
from keras.src.backend.tinygrad.engine import uop_speed
from keras.src.backend.tinygrad.engine.canonical import is_allocated
from keras.src.backend.tinygrad.engine.gemm import matmul
from keras.src.backend.tinygrad.engine.getitem import indexed
from keras.src.backend.tinygrad.engine.internals import LRU
from keras.src.backend.tinygrad.engine.internals import VIZ
from keras.src.backend.tinygrad.engine.internals import CPUAllocator
from keras.src.backend.tinygrad.engine.internals import CPUProgram
from keras.src.backend.tinygrad.engine.internals import DType
from keras.src.backend.tinygrad.engine.internals import HCQBuffer
from keras.src.backend.tinygrad.engine.internals import LRUAllocator
from keras.src.backend.tinygrad.engine.internals import MMIOInterface
from keras.src.backend.tinygrad.engine.internals import Ops
from keras.src.backend.tinygrad.engine.internals import PatternMatcher
from keras.src.backend.tinygrad.engine.internals import UOp
from keras.src.backend.tinygrad.engine.internals import UPat
from keras.src.backend.tinygrad.engine.internals import codegen_module
from keras.src.backend.tinygrad.engine.internals import device_module
from keras.src.backend.tinygrad.engine.internals import getenv
from keras.src.backend.tinygrad.engine.internals import helpers_module
from keras.src.backend.tinygrad.engine.internals import mv_address
from keras.src.backend.tinygrad.engine.internals import ops_cpu_module
from keras.src.backend.tinygrad.engine.internals import ops_module
from keras.src.backend.tinygrad.engine.internals import rangeify_module
from keras.src.backend.tinygrad.engine.internals import tensor_module
from keras.src.backend.tinygrad.engine.realize import realize
from keras.src.backend.tinygrad.engine.runtime_lock import lock
from keras.src.backend.tinygrad.engine.runtime_lock import memory_lock
from keras.src.backend.tinygrad.engine.tensors import strong
from keras.src.backend.tinygrad.engine.transfer import NUMPY_DTYPES
from keras.src.backend.tinygrad.engine.transfer import from_numpy
from keras.src.backend.tinygrad.engine.transfer import to_numpy

# How many bytes of freed CPU memory are kept for reuse.
_KEPT_BYTES = 256 << 20

# Graphs of up to so many nodes are printed whole.
_PRINTED_NODES = 32

# PCI and USB vendors, and device files, of the GPUs that are slow to ask for.
_VENDORS = {
    "AMD": (("1002", "add1", "3801"), ("/dev/kfd",)),
    "NV": (("10de",), ("/dev/nvidiactl",)),
    "CUDA": (("10de",), ("/dev/nvidiactl", "/dev/dxg")),
}

_ORIGINALS = "_keras_originals"


def _original(owner, name):
    """Returns what tinygrad itself has under a name, patched or not."""
    originals = vars(Tensor).get(_ORIGINALS)
    if originals is None:
        originals = {}
        setattr(Tensor, _ORIGINALS, originals)
    return originals.setdefault((owner, name), getattr(owner, name))


def apply():
    """Applies each patch once to tinygrad's classes."""
    # tinygrad notes the name of the method that each node comes from, for its
    # visualizer alone.
    if not VIZ.value:
        _unwrap_methods()
    # Code written for tinygrad (its optimizers, say) takes our road too.
    Tensor.realize = _realize
    # A read of values on the host inside a compiled step must be noticed,
    # and two threads may not launch at once.
    Tensor._buffer = _locked_buffer(_original(Tensor, "_buffer"))
    # A step is traced with all live tensors as they are; what another thread
    # writes meanwhile would be taken for the step's.
    for name in ("assign", "replace", "backward"):
        setattr(Tensor, name, _locked(_original(Tensor, name)))
    # Data adapters and NumPy look for it.
    Tensor.__array__ = _array
    # Python numbers and conditions of scalars, as with torch and jax.
    Tensor.__float__ = lambda self: float(to_numpy(self).item())
    Tensor.__int__ = lambda self: int(to_numpy(self).item())
    Tensor.__index__ = _index
    # `abs` of a Keras variable asks its value for it.
    Tensor.__abs__ = Tensor.abs
    Tensor.__bool__ = lambda self: bool(to_numpy(self).item())
    # f"{loss:.4f}", as with torch.
    Tensor.__format__ = _format
    # Operands that tinygrad does not know: variables and complex tensors have
    # methods of their own, NumPy's become tensors.
    for name in _OPERATORS:
        original = _ORDERINGS.get(name) or _original(Tensor, name)
        setattr(Tensor, name, _operator(name, original))
    Tensor.__array_priority__ = 100
    # NumPy's integers and arrays, variables, masks, and tensors as bounds.
    Tensor.__getitem__ = indexed(_original(Tensor, "__getitem__"))
    # People, and Keras' tests, read a dtype's name; tinygrad spells C types.
    DType.__str__ = _dtype_name
    # A choice between a number and NaN, cast to integers, would raise.
    DType.const = _const(_original(DType, "const"))
    _iterate_snapshots_of_live_tensors()
    # A shape of plain numbers is simplified already; tinygrad would rewrite
    # it at each movement op, for half of the time that building a graph takes.
    UOp.simplify = _simplify(_original(UOp, "simplify"))
    # A traceback would print whole graphs, for minutes.
    UOp.__repr__ = _summary(_original(UOp, "__repr__"))
    # tinygrad compares a new node's op with forty cases, one by one.
    uop_speed.install(_original)
    # tinygrad refuses devices while it generates code, by one flag for all
    # threads: another thread that runs meanwhile would be refused its own.
    device_module.ALLOW_DEVICE_USAGE = True
    # A forked child must not write into its parent's memory.
    CPUAllocator._alloc = _private_alloc(_original(CPUAllocator, "_alloc"))
    # Freed memory would be kept for reuse without bound.
    CPUAllocator.kept_bytes = 0
    CPUAllocator.alloc = _bounded_alloc
    CPUAllocator.free = _bounded_free
    CPUAllocator.free_cache = _counted_free_cache
    # tinygrad's cache is one SQLite file that a process killed while writing
    # leaves locked for the others; programs are in `program_cache`.
    helpers_module.db_connection = _memory_database
    # tinygrad asks the drivers of GPUs that are not there, for a second.
    device_class = type(Device)
    device_class.get_available_devices = _present_devices(
        _original(device_class, "get_available_devices")
    )
    # The CPU device would compile four programs that only a mode of tinygrad
    # uses that is not used here.
    if not getenv("HCQ2"):
        ops_cpu_module.do_to_program = lambda *args: _NoProgram
        CPUProgram.__init__ = _init_program(_original(CPUProgram, "__init__"))
    # The CPU device compiles with zig where there is no clang.
    compiler.install()
    # Narrow integers wrap around, products are rounded, and bfloat16 compiles
    # with a clang that does not have it.
    rendering.install(_original)
    # Its loops are shaped for a CPU, not for a GPU.
    kernel_options.install(_original)
    # float16 and float8 are rounded at each operation, and to float8 without
    # a loss of small numbers and infinities.
    narrow_floats.install(_original)
    # What it computes is what was written, for NaN and at a dtype's ends too.
    simplification.install(_original)
    # A cast to float16 and back rounds, and overflows beyond 65504.
    codegen_module.pm_simplify_add_image = _with_all_casts(
        _original(codegen_module, "pm_simplify_add_image")
    )
    # (255 / x) * y must not become (1 / x) * (255 * y), which may be 254.99998
    # where x is y: such a quotient is one operation.
    ops_module.python_alu[Ops.FDIV] = _quotient
    # tinygrad's constant NaN equals itself: `isnan` of a choice between NaN
    # and a number would be folded to False.
    ops_module.python_alu[Ops.CMPNE] = _differ
    ops_module.python_alu[Ops.CMPEQ] = lambda a, b: not _differ(a, b)
    rangeify_module.earliest_rewrites = _QUOTIENTS + _original(
        rangeify_module, "earliest_rewrites"
    )


def _quotient(a, b):
    with np.errstate(all="ignore"):
        return float(np.float64(a) / np.float64(b))


def _differ(a, b):
    return a != b or (isinstance(a, float) and math.isnan(a))


def _divided(number, x):
    # The renderers of other devices may have no division.
    if number.val == 1 or not str(x.device).startswith("CPU"):
        return None
    return number.alu(Ops.FDIV, x)


_QUOTIENTS = PatternMatcher(
    [
        (
            UPat.cvar("number") * UPat.var("x", dtypes.floats).reciprocal(),
            _divided,
        )
    ]
)


def _with_all_casts(matcher):
    return PatternMatcher(
        [
            (p, rewrite)
            for p, rewrite in matcher.patterns
            if Ops.CAST not in p.op
        ]
    )


def _realize(self, *others, do_update_stats=True):
    realize(self, *others)
    return self


def _locked(original):
    @functools.wraps(original)
    def method(self, *args, **kwargs):
        with lock:
            return original(self, *args, **kwargs)

    return method


def _locked_buffer(original):
    def _buffer(self):
        tracing.check_host_read(self)
        with lock, tracing.paused():
            return original(self)

    return _buffer


def _array(self, dtype=None, copy=None):
    array = to_numpy(self)
    return array if dtype is None else array.astype(dtype)


def _index(self):
    if not (self.dtype.name.startswith(("int", "uint")) and self.shape == ()):
        raise TypeError(
            "Only a scalar tensor of an integer dtype can be an index. "
            f"Received: shape={self.shape}, dtype={self.dtype}"
        )
    return int(to_numpy(self).item())


def _format(self, spec):
    if not spec:
        return str(self)
    if self.shape != ():
        raise TypeError(
            "Only a scalar tensor can be formatted as a number. "
            f"Received: shape={self.shape}, format {spec!r}"
        )
    return format(to_numpy(self).item(), spec)


_OPERATORS = [
    f"__{prefix}{name}__"
    for prefix in ("", "r", "i")
    for name in "add sub mul truediv floordiv mod pow matmul and or xor".split()
    if hasattr(Tensor, f"__{prefix}{name}__")
] + ["__lt__", "__le__", "__gt__", "__ge__", "__eq__", "__ne__"]

# tinygrad's own are true for NaN.
_ORDERINGS = {
    "__le__": lambda x, y: (x < y) | (x == y),
    "__ge__": lambda x, y: (x > y) | (x == y),
}


def _operator(name, original):
    @functools.wraps(original)
    def operator(self, other):
        if name.startswith("__i") and not is_allocated(self.uop.base):
            # No storage to write to: Python makes it `self = self + other`,
            # which has a gradient.
            return NotImplemented
        if isinstance(other, Tensor):
            if name == "__matmul__" and other.dtype == self.dtype:
                return matmul(self, other)
            try:
                result = original(self, other)
                # A node finds its shape, or none, when it is asked for.
                result.shape
                return result
            except IndexError:
                raise ValueError(
                    f"`{name}` expects operands whose shapes broadcast. "
                    f"Received: shapes {self.shape} and {other.shape}, dtypes "
                    f"{self.dtype} and {other.dtype}"
                ) from None
        if isinstance(other, (int, float, UOp)):
            return _strong(original(self, other), self)
        # Imported at use: the engine stands below it.
        from keras.src.backend.tinygrad import complex

        if complex.is_complex(other):
            method = getattr(complex.convert(self), name, None)
            return NotImplemented if method is None else method(other)
        if isinstance(other, np.generic):
            return _strong(original(self, other.item()), self)
        if isinstance(other, np.ndarray):
            device = self.device or Device.DEFAULT
            return original(self, from_numpy(other, device))
        return NotImplemented

    return operator


def _strong(result, operand):
    # Constants stay weak, as they take the dtype of what they meet.
    if not isinstance(result, Tensor) or operand.dtype in dtypes.weaks:
        return result
    return strong(result)


def _dtype_name(self):
    known = NUMPY_DTYPES.get(self)
    return repr(self) if known is None else f"dtypes.{known.name}"


def _const(original):
    def const(self, value):
        if (
            isinstance(value, float)
            and not math.isfinite(value)
            and dtypes.is_int(self)
        ):
            # As processors convert it, and NumPy.
            return self.min if self in (dtypes.int32, dtypes.int64) else 0
        return original(self, value)

    return const


class _LiveTensors(dict):
    """tinygrad's table of live tensors, safe to iterate from any thread.

    `Tensor.backward` loops over it, while another thread makes tensors.
    """

    def __iter__(self):
        return iter(list(self.keys()))


def _iterate_snapshots_of_live_tensors():
    old = tensor_module.all_tensors
    if type(old).__name__ == _LiveTensors.__name__:
        return
    table = _LiveTensors(old)
    for module in list(sys.modules.values()):
        if getattr(module, "__dict__", {}).get("all_tensors") is old:
            module.all_tensors = table


def _unwrap_methods():
    wrapper = tensor_module._metadata_wrapper(len).__code__
    for name, method in list(vars(Tensor).items()):
        if getattr(method, "__code__", None) is wrapper:
            setattr(Tensor, name, method.__wrapped__)


def _simplify(original):
    def simplify(self, tracked=False):
        if self.op is Ops.SINK and all(map(_is_plain, self.src)):
            return self
        return original(self, tracked)

    return simplify


def _is_plain(uop):
    if uop.op is Ops.STACK:
        return all(source.op is Ops.CONST for source in uop.src)
    return uop.op is Ops.CONST


def _summary(original):
    def __repr__(self):
        seen, pending = {self}, [self]
        while pending:
            new = [s for s in pending.pop().src if s not in seen]
            seen.update(new)
            pending += new
            if len(seen) > _PRINTED_NODES:
                # Still another one for each graph: tinygrad makes keys of it.
                return f"<UOp {self.op} {self.dtype} {self.key.hex()}>"
        return original(self)

    return __repr__


def _private_alloc(original):
    def _alloc(self, size, options):
        if options.external_ptr is not None or sys.platform == "win32":
            return original(self, size, options)
        try:
            memory = mmap.mmap(
                -1,
                size,
                mmap.MAP_ANON | mmap.MAP_PRIVATE,
                mmap.PROT_READ | mmap.PROT_WRITE,
            )
        except OSError as error:
            if error.errno != errno.ENOMEM:
                raise
            # What tinygrad and Python's users look for.
            raise MemoryError(f"No memory for {size} bytes") from error
        address = mv_address(memory)
        return HCQBuffer(
            address,
            size,
            meta=memory,
            view=MMIOInterface(address, size, fmt="B"),
            owner=self.dev,
        )

    return _alloc


def _bounded_alloc(self, size, options=None):
    with memory_lock:
        kept = self.cache.get((size, options))
        if kept:
            self.kept_bytes -= size
            return kept.pop()
    allocate = super(LRUAllocator, self).alloc
    try:
        return allocate(size, options)
    except MemoryError:
        self.free_cache()
    return allocate(size, options)


def _bounded_free(self, opaque, size, options=None):
    # Also called where a buffer is finalized: in any thread, and between any
    # two lines of this one.
    with memory_lock:
        if LRU and options is None and self.kept_bytes + size <= _KEPT_BYTES:
            self.kept_bytes += size
            self.cache[(size, options)].append(opaque)
            return
    super(LRUAllocator, self).free(opaque, size, options)


def _counted_free_cache(self):
    with memory_lock:
        kept, self.cache = self.cache, collections.defaultdict(list)
        released = sum(
            size * len(opaques) for (size, _), opaques in kept.items()
        )
        self.kept_bytes -= released
    for (size, options), opaques in kept.items():
        for opaque in opaques:
            super(LRUAllocator, self).free(opaque, size, options)


def _present_devices(original):
    def get_available_devices(self):
        absent = {d for d in _VENDORS if not _may_exist(d)}
        names = device_module.ALL_DEVICES
        device_module.ALL_DEVICES = [n for n in names if n not in absent]
        try:
            yield from original(self)
        finally:
            device_module.ALL_DEVICES = names

    return get_available_devices


def _may_exist(device):
    """Whether a GPU that tinygrad calls `device` may be in this machine."""
    if sys.platform != "linux" or not os.path.isdir("/sys/bus/pci/devices"):
        return True
    vendors, nodes = _VENDORS[device]
    if any(os.path.exists(node) for node in nodes):
        return True
    places = ("pci/devices/*/vendor", "usb/devices/*/idVendor")
    for path in (p for x in places for p in glob.glob(f"/sys/bus/{x}")):
        try:
            with open(path) as file:
                if file.read().strip().removeprefix("0x") in vendors:
                    return True
        except OSError:
            return True
    return False


class _NoProgram:
    """Stands for a program that nothing calls."""

    @staticmethod
    def to_elf():
        return None


def _init_program(original):
    def __init__(self, dev, obj):
        if obj is not None:
            original(self, dev, obj)

    return __init__


def _memory_database():
    if _memory_database.connection is None:
        _memory_database.connection = sqlite3.connect(
            ":memory:", check_same_thread=False
        )
    return _memory_database.connection


_memory_database.connection = None
