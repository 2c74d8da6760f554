"""Lowers a graph to a spec: launches over numbered slots, in order.

tinygrad schedules the graph; what it calls buffers become slots, of three
roles: inputs, which each replay binds, outputs, which each replay allocates,
and scratch, which shares one arena.
"""

import dataclasses
import functools
import hashlib
import os

from keras.src.backend.tinygrad.engine import program_cache
from keras.src.backend.tinygrad.engine.canonical import base_buffer
from keras.src.backend.tinygrad.engine.canonical import is_allocated
from keras.src.backend.tinygrad.engine.internals import Context
from keras.src.backend.tinygrad.engine.internals import ContextVar
from keras.src.backend.tinygrad.engine.internals import Ops
from keras.src.backend.tinygrad.engine.internals import ParamArg
from keras.src.backend.tinygrad.engine.internals import UOp
from keras.src.backend.tinygrad.engine.internals import buffers
from keras.src.backend.tinygrad.engine.internals import get_call_arg_uops
from keras.src.backend.tinygrad.engine.internals import graph_rewrite
from keras.src.backend.tinygrad.engine.internals import pm_copy_from_store
from keras.src.backend.tinygrad.engine.internals import pm_resolve_linear_call
from keras.src.backend.tinygrad.engine.internals import pm_schedule
from keras.src.backend.tinygrad.engine.internals import transform_to_call
from keras.src.backend.tinygrad.engine.sharing import read_stored

# What a fresh buffer does to a value anyway, or what has no effect on it.
_TRANSPARENT = {
    Ops.RESHAPE,
    Ops.CONTIGUOUS,
    Ops.CONTIGUOUS_BACKWARD,
    Ops.DETACH,
}
_ALIGNMENT = 256
# Settings of tinygrad that change what it prints, not what it makes.
_IRRELEVANT = ("DEBUG", "TRACEMETA", "VIZ", "PROFILE", "PARALLEL", "JIT")


@dataclasses.dataclass(frozen=True)
class Slot:
    """A buffer of a spec.

    Attributes:
        role: One of `"input"`, `"output"` and `"scratch"`.
        device: Canonical tinygrad device.
        size: Number of elements.
        dtype: tinygrad `DType`.
    """

    role: str
    device: str
    size: int
    dtype: object

    @property
    def nbytes(self):
        """Size in bytes."""
        return self.size * self.dtype.itemsize


@dataclasses.dataclass(frozen=True)
class View:
    """A contiguous piece of a slot: an argument of a launch."""

    slot: int
    offset: int
    size: int
    dtype: object

    @property
    def nbytes(self):
        """Size in bytes."""
        return self.size * self.dtype.itemsize


@dataclasses.dataclass(frozen=True)
class Launch:
    """One kernel or copy.

    Attributes:
        program: `PROGRAM` uop, or `None` for a copy of `args[1]` to
            `args[0]`.
        device: Canonical tinygrad device that runs it.
        args: Tuple of `View`s, in the order of the program's parameters.
    """

    program: object
    device: str
    args: tuple


@dataclasses.dataclass(frozen=True)
class Spec:
    """Slots and the launches over them, in order."""

    slots: tuple
    launches: tuple


# Calls that stand for several launches: functions of the call's `View`s that
# return them, by the name of the call's kernel.
expansions = {}


class Unsupported(Exception):
    """A graph that only tinygrad's own road runs."""


class BufferTemplate:
    """Makes `BUFFER` uops like one, for the `Buffer`s that a plan returns."""

    def __init__(self, uop):
        self._src, self._arg = uop.src, uop.arg

    def make(self, buffer):
        """Returns a new `BUFFER` uop, whose memory is a `Buffer`."""
        arg, slot = self._arg, next(UOp.unique_num)
        arg = ParamArg(slot, arg.dtype, device=arg.device)
        uop = UOp(Ops.BUFFER, arg.dtype, self._src, arg)
        buffers[uop] = buffer
        return uop


def own_buffer(uop, superseded, reserved=()):
    """Makes a value's root in a graph to lower.

    Args:
        uop: `UOp` of a device, a concrete dtype and a shape of integers.
        superseded: Set of the graph's `AFTER` uops whose buffer is written
            again later.
        reserved: `BUFFER` uops that may not hold the value.

    Returns:
        Pair of the root, an `AFTER` uop, and the unallocated `BUFFER` uop
        that holds the value, contiguous, when the root is done.
    """
    value = uop
    while value.op in _TRANSPARENT and value.arg is None:
        value = value.src[0]
    if value.op is Ops.AFTER and value not in superseded:
        target = value.src[0]
        while target.op in (Ops.RESHAPE, Ops.AFTER):
            target = target.src[0]
        if target.op is Ops.BUFFER and target not in reserved:
            if not is_allocated(target):
                return value, target
    fresh = UOp.new_buffer(uop.device, uop.max_numel(), uop.dtype)
    target = fresh.reshape(value.shape)
    return target.after(target.store(value)), fresh


def lower(graph, roots, inputs, outputs):
    """Lowers a graph, or finds it lowered on disk.

    Args:
        graph: `CanonicalGraph` of `roots`.
        roots: List of `AFTER` uops.
        inputs: List of distinct `BUFFER` uops that replays bind.
        outputs: List of distinct `BUFFER` uops that replays allocate.

    Returns:
        `Spec`, whose first slots are `inputs` and then `outputs`.

    Raises:
        Unsupported: If the graph needs what a plan does not offer.
    """
    # What is compiled for any of them is in the entry.
    devices = {u.device for u in (*graph.nodes(), *outputs)} - {None}
    key = graph.digest(inputs, outputs) + _code_fingerprint()
    key += "\n".join(map(program_cache.fingerprint, sorted(devices))).encode()
    found = program_cache.load("plan", key)
    if found is not None:
        return _unpack(found)
    call, _ = transform_to_call(UOp.sink(*read_stored(roots)))
    with Context(SCACHE=0):
        # Kept here, and not by tinygrad a second time.
        linear = graph_rewrite(call, pm_schedule, enter_calls=True)
    linear = graph_rewrite(linear, pm_resolve_linear_call)
    linear = graph_rewrite(linear, pm_copy_from_store)
    spec = _to_spec(linear.src, inputs, outputs)
    program_cache.store("plan", key, _pack(spec))
    return spec


@functools.cache
def _code_fingerprint():
    """A digest of the code and settings that decide how a graph is lowered."""
    digest = hashlib.sha256()
    folder = os.path.dirname(os.path.abspath(__file__))
    for name in sorted(os.listdir(folder)):
        if name.endswith(".py"):
            with open(os.path.join(folder, name), "rb") as file:
                digest.update(file.read())
    settings = {k: str(v.value) for k, v in ContextVar._cache.items()}
    for name in _IRRELEVANT:
        settings.pop(name, None)
    digest.update(repr(sorted(settings.items())).encode())
    return digest.digest()


def _pack(spec):
    programs = {}
    launches = []
    for launch in spec.launches:
        number = None
        if launch.program is not None:
            number = programs.setdefault(launch.program, len(programs))
        launches.append((number, launch.device, launch.args))
    return spec.slots, launches, list(map(program_cache.pack, programs))


def _unpack(packed):
    slots, launches, programs = packed
    programs = list(map(program_cache.unpack, programs))
    return Spec(
        slots,
        tuple(
            Launch(None if n is None else programs[n], device, args)
            for n, device, args in launches
        ),
    )


def _to_spec(calls, inputs, outputs):
    slots, index = [], {}
    for role, uops in (("input", inputs), ("output", outputs)):
        for uop in uops:
            index[uop] = len(slots)
            slots.append(_slot(role, uop))
    programs = iter(
        program_cache.compile_calls([c for c in calls if not _expansion(c)])
    )
    launches = []
    for call in calls:
        kind = call.src[0].op
        if kind not in (Ops.SINK, Ops.PROGRAM, Ops.COPY):
            raise Unsupported(str(kind))
        expand = _expansion(call)
        program = None if expand else next(programs)
        args = get_call_arg_uops(call)
        if program is not None:
            args = [args[i] for i in program.arg.globals]
        views = []
        for arg in args:
            base, offset = _contiguous_view(arg)
            if base not in index:
                index[base] = len(slots)
                slots.append(_slot("scratch", base))
            views.append(View(index[base], offset, arg.max_numel(), arg.dtype))
        if expand:
            launches += expand(views)
        else:
            device = call.src[1].device
            launches.append(Launch(program, device, tuple(views)))
    return Spec(tuple(slots), tuple(launches))


def _expansion(call):
    if call.src[0].op is not Ops.SINK:
        return None
    return expansions.get(call.src[0].arg.name)


def _slot(role, uop):
    if not isinstance(uop.device, str):
        raise Unsupported("several devices")
    return Slot(role, uop.device, uop.max_numel(), uop.dtype)


def _contiguous_view(uop):
    if uop.op is Ops.BUFFER:
        return uop, 0
    base = base_buffer(uop)
    view = uop.contiguous_view()
    if base is None or view is None:
        raise Unsupported("a strided view as an argument")
    inner, offset = view
    offset *= inner.dtype.itemsize
    if inner.op is not Ops.BUFFER:
        base, more = _contiguous_view(inner)
        return base, offset + more
    return inner, offset


def place_scratch(spec):
    """Places scratch slots in arenas, by the launches they live between.

    Args:
        spec: `Spec`.

    Returns:
        Pair of a dict from scratch slot to its byte offset, and a dict from
        device to the size of its arena in bytes.
    """
    first, last = {}, {}
    for i, launch in enumerate(spec.launches):
        for view in launch.args:
            if spec.slots[view.slot].role == "scratch":
                first.setdefault(view.slot, i)
                last[view.slot] = i
    starts, ends = {}, {}
    for slot, i in first.items():
        starts.setdefault(i, []).append(slot)
        ends.setdefault(last[slot], []).append(slot)
    offsets, heaps = {}, {}
    for i in range(len(spec.launches)):
        for slot in starts.get(i, ()):
            heap = heaps.setdefault(spec.slots[slot].device, _Heap())
            offsets[slot] = heap.take(_round_up(spec.slots[slot].nbytes))
        for slot in ends.get(i, ()):
            size = _round_up(spec.slots[slot].nbytes)
            heaps[spec.slots[slot].device].give(offsets[slot], size)
    return offsets, {device: heap.peak for device, heap in heaps.items()}


def _round_up(nbytes):
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


class _Heap:
    """Best-fit placement in an address space that grows at its end."""

    def __init__(self):
        self.peak = 0
        self._free = []

    def take(self, size):
        fits = [(s, o) for o, s in self._free if s >= size]
        if fits:
            found, offset = min(fits)
            self._free.remove((offset, found))
            if found > size:
                self.give(offset + size, found - size)
            return offset
        if self._free and sum(self._free[-1]) == self.peak:
            offset, _ = self._free.pop()
        else:
            offset = self.peak
        self.peak = offset + size
        return offset

    def give(self, offset, size):
        blocks = sorted([*self._free, (offset, size)])
        merged = [blocks[0]]
        for offset, size in blocks[1:]:
            start, length = merged[-1]
            if start + length == offset:
                merged[-1] = (start, length + size)
            else:
                merged.append((offset, size))
        self._free = merged
