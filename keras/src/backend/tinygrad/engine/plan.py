"""Plans: prebound launches over numbered slots, replayed over any buffers.

A plan keeps none of the buffers that it runs over. On the CPU it is a flat
table of addresses; elsewhere a list of launches through tinygrad's runtimes.
"""

import ctypes
import itertools
import time

import numpy as np

from keras.src.backend.tinygrad.engine import blas
from keras.src.backend.tinygrad.engine import blas_threads
from keras.src.backend.tinygrad.engine import handwritten
from keras.src.backend.tinygrad.engine import host_call
from keras.src.backend.tinygrad.engine import launcher
from keras.src.backend.tinygrad.engine.internals import JIT
from keras.src.backend.tinygrad.engine.internals import JIT_BATCH_SIZE
from keras.src.backend.tinygrad.engine.internals import Buffer
from keras.src.backend.tinygrad.engine.internals import BufferSpec
from keras.src.backend.tinygrad.engine.internals import Device
from keras.src.backend.tinygrad.engine.internals import GlobalCounters
from keras.src.backend.tinygrad.engine.internals import LVPRenderer
from keras.src.backend.tinygrad.engine.internals import Ops
from keras.src.backend.tinygrad.engine.internals import UOp
from keras.src.backend.tinygrad.engine.internals import dtypes
from keras.src.backend.tinygrad.engine.internals import get_runtime
from keras.src.backend.tinygrad.engine.internals import graph_split_rewrite
from keras.src.backend.tinygrad.engine.internals import mv_address
from keras.src.backend.tinygrad.engine.internals import run_linear
from keras.src.backend.tinygrad.engine.lowering import place_scratch

# Where buffers can't be views of others.
NO_VIEWS = ("CL", "WEBGPU")
_HOST = ("CPU", "NPY", "PYTHON")


class Arenas:
    """Scratch memory shared by all plans, one arena for each device.

    Plans run one at a time, except that a kernel's host call may run another
    plan inside: each level of nesting has arenas of its own.
    """

    def __init__(self):
        self._levels = [{}]
        self._depth = 0

    def __enter__(self):
        self._depth += 1
        if self._depth > len(self._levels):
            self._levels.append({})
        return self._levels[self._depth - 1]

    def __exit__(self, *exc):
        self._depth -= 1

    def clear(self):
        """Drops the arenas; those in use live on until they are not."""
        self._levels = [{} for _ in range(max(1, self._depth))]


arenas = Arenas()


def arena(level, device, nbytes):
    """Returns a device's arena on a level, at least `nbytes` large."""
    found = level.get(device)
    if found is None or found.nbytes < nbytes:
        level[device] = None
        spec = BufferSpec(nolru=True)
        found = Buffer(device, nbytes, dtypes.uint8, options=spec).allocate()
        level[device] = found
    return found


def new_buffer(device, size, dtype):
    """Allocates a `Buffer` that one uop refers to."""
    buffer = Buffer(device, size, dtype, uop_refcount=1)
    return buffer.allocate()


class Plan:
    """Launches over slots, for any buffers in them.

    Args:
        spec: `Spec`.
        captured: Whether the plan runs so often that a graph of the device's
            own is worth its memory.

    Attributes:
        slots: Tuple of `Slot`s; the first ones are inputs, then outputs.
        launches: Tuple of `Launch`es.
        progress: What became of the last `run`: `"begun"`, `"launched"` once
            it may have written to its inputs, or `"undone"` if a host call
            failed and the inputs are as they were before.
    """

    def __init__(self, spec, captured=False):
        self.spec = spec
        self.slots, self.launches = spec.slots, spec.launches
        self.inputs = sum(s.role == "input" for s in spec.slots)
        self.outputs = [s for s in spec.slots if s.role == "output"]
        self._offsets, self._arenas = place_scratch(spec)
        self._ops, self._bytes = _estimate(spec)
        self._may_fail, self._at_risk = _host_calls(spec)
        self._runner = _runner_for(spec, captured)(self)
        self._chooser = blas_threads.Chooser(
            [
                x.program.arg.name
                for x in spec.launches
                if x.program is not None
            ],
            shares=any(_shards(x) > 1 for x in spec.launches),
        )
        self._kept = []
        self.progress = None

    @property
    def busy(self):
        """Whether its launches run: a host call of theirs is asking."""
        return self._runner.busy

    def bind(self, slot, buffer):
        """Makes an allocated `Buffer` an input of the next launches."""
        self._runner.bind(slot, buffer)

    def keep(self, buffer):
        """Keeps a `Buffer` alive as long as the plan."""
        self._kept.append(buffer)

    def run(self, inputs, var_vals=None):
        """Runs the launches over other buffers.

        Args:
            inputs: List of allocated `Buffer`s, one for each input slot.
            var_vals: Dict of the values of bound variables, by name.

        Returns:
            List of new `Buffer`s, one for each output slot.
        """
        if self.busy:
            # A host call runs its own plan inside itself.
            return Plan(self.spec).run(inputs, var_vals)
        self.progress = "begun"
        try:
            for slot, buffer in enumerate(inputs):
                self._runner.bind(slot, buffer)
            return self.launch(var_vals)
        finally:
            self._runner.release()

    def launch(self, var_vals=None):
        """Runs the launches over the bound buffers.

        If a host call fails, the bound buffers are as they were before, and
        its exception is raised.

        Args:
            var_vals: Dict of the values of bound variables, by name.

        Returns:
            List of new `Buffer`s, one for each output slot.
        """
        outputs = [new_buffer(s.device, s.size, s.dtype) for s in self.outputs]
        for slot, buffer in enumerate(outputs, self.inputs):
            self._runner.bind(slot, buffer)
        with arenas as level:
            scratch = {
                device: arena(level, device, nbytes)
                for device, nbytes in self._arenas.items()
                if self._runner.shares_scratch
                and not device.startswith(NO_VIEWS)
            }
            self._chooser.run(lambda: self._run(scratch, var_vals or {}))
        self._count()
        return outputs

    def _run(self, scratch, var_vals):
        if not self._may_fail:
            self.progress = "launched"
            self._runner.run(scratch, var_vals)
            return
        saved = self._runner.save(self._at_risk)

        def undo():
            self._runner.restore(saved)
            self.progress = "undone"

        with host_call.raising(undo):
            self.progress = "launched"
            self._runner.run(scratch, var_vals)

    def profile(self, repeats=10):
        """Times each launch by itself, over the buffers bound last.

        The launches' own effects happen: state moves on by that many steps.

        Args:
            repeats: Number of runs of the whole plan; each launch's least
                time counts.

        Returns:
            List of triples `(Launch, seconds, operations)`, in order; the
            number of arithmetic operations is `None` where it is not known.

        Raises:
            NotImplementedError: If the plan is not for the CPU.
        """
        if not isinstance(self._runner, _FlatRunner):
            raise NotImplementedError("Only plans on the CPU are timed.")
        with host_call.raising():
            return self._runner.profile(repeats)

    def _count(self):
        GlobalCounters.kernel_count += len(self.launches)
        GlobalCounters.global_ops += self._ops
        GlobalCounters.global_mem += self._bytes

    def scratch_place(self, slot):
        """Returns a scratch slot's byte offset in its device's arena."""
        return self._offsets[slot]


def _estimate(spec):
    ops = nbytes = 0
    for launch in spec.launches:
        if launch.program is not None:
            found = launch.program.src[0].arg.estimates
            if found is not None:
                # What is symbolic is not counted.
                ops += found.ops if isinstance(found.ops, int) else 0
                nbytes += found.mem if isinstance(found.mem, int) else 0
    return ops, nbytes


def _host_calls(spec):
    """Finds what a failed host call can leave half done.

    Returns:
        Whether there are host calls, and list of the input slots that are
        written before the last of them. What comes after a failure does not
        run.
    """
    calls = [
        i
        for i, launch in enumerate(spec.launches)
        if host_call.makes_host_calls(launch.program)
    ]
    written = {}
    for launch in spec.launches[: calls[-1]] if calls else ():
        for slot in _written(launch):
            if spec.slots[slot].role == "input":
                written[slot] = None
    return bool(calls), list(written)


def _written(launch):
    """Returns the slots that a launch writes.

    Kernels that hand addresses on to functions do not tell, but they write to
    buffers of their own, never to an input.
    """
    if launch.program is None:
        return [launch.args[0].slot]
    info = launch.program.arg
    return [
        view.slot
        for place, view in zip(info.globals, launch.args)
        if place in info.outs
    ]


def _runner_for(spec, captured):
    if _runs_flat(spec):
        return _FlatRunner
    devices = {launch.device for launch in spec.launches}
    if captured and JIT.value == 1 and _graphable(spec):
        if devices and all(Device[d].graph is not None for d in devices):
            return _GraphRunner
    return _Runner


def _graphable(spec):
    # A failed host call has to keep later launches from running.
    if _host_calls(spec)[0]:
        return False
    # tinygrad's graphs take a bound buffer whole.
    for view in (v for launch in spec.launches for v in launch.args):
        slot = spec.slots[view.slot]
        if slot.role != "scratch" and view.nbytes != slot.nbytes:
            return False
    return not any(s.device.startswith(NO_VIEWS) for s in spec.slots)


def _runs_flat(spec):
    if any(s.device not in _HOST for s in spec.slots):
        return False
    if any(s.device != "CPU" for s in spec.slots if s.role != "input"):
        return False
    if any(launch.device != "CPU" for launch in spec.launches):
        return False
    if any(len(x.args) > launcher.WIDTHS[-1] - 8 for x in spec.launches):
        return False
    return not isinstance(Device["CPU"].renderer, LVPRenderer)


def address(buffer):
    """Returns the address of a host-accessible buffer's first byte."""
    opaque = buffer._buf
    if buffer.device == "CPU":
        return opaque.va_addr
    if buffer.device == "NPY":
        return opaque.ctypes.data
    return mv_address(opaque)


# Called as compiled programs are: with 64-bit words alone.
_memmove = ctypes.CFUNCTYPE(None)(
    ctypes.cast(ctypes.memmove, ctypes.c_void_p).value
)


class _FlatRunner:
    """A table of addresses, walked in one call.

    A slot's address is written where it is used when it differs from the one
    that is there.
    """

    shares_scratch = True

    def __init__(self, plan):
        self._plan = plan
        self.busy = False
        self._functions, self._keep, self._held = [], [], []
        # Where each launch's rows start.
        self._starts = []
        rows, uses = [], {}
        # (first value's position, program, index of core_id, shard)
        self._symbolic = []
        for launch in plan.launches:
            self._starts.append(len(rows))
            if launch.program is None:
                destination, source = launch.args
                values = [0, 0, destination.nbytes]
                start = ctypes.cast(_memmove, ctypes.c_void_p).value
                self._add(rows, uses, launch, start, _memmove, values)
            else:
                self._add_program(rows, uses, launch)
        self._starts.append(len(rows))
        rows.append(0)
        self._table = (ctypes.c_uint64 * len(rows))(*rows)
        self._uses = uses
        self._bound = {}

    def _add_program(self, rows, uses, launch):
        info = launch.program.arg
        runtime = get_runtime("CPU", launch.program)
        self._keep.append(runtime)
        names = [v.expr for v in info.vars]
        core = names.index("core_id") if "core_id" in names else None
        shards = _shards(launch)
        symbolic = len(names) > (core is not None)
        quiet = shards > 1 and blas_threads.calls_blas(info.name)
        if quiet:
            self._add_setting(rows, 1)
        group = len(rows) + 1
        for shard in range(shards):
            values = [0] * (len(launch.args) + len(names))
            if core is not None:
                values[len(launch.args) + core] = shard
            position = self._add(
                rows, uses, launch, runtime.addr, runtime.fxn, values
            )
            if symbolic:
                first = position + launcher.HEADER + len(launch.args)
                self._symbolic.append((first, names))
        rows[group] = launcher.grouped(rows[group], shards)
        if quiet:
            self._add_setting(rows, blas.find().threads)

    def _add_setting(self, rows, threads):
        """Adds a row that sets the number of BLAS' own threads."""
        address = blas.find().set_threads
        if address is not None:
            width = launcher.width_of(1)
            rows += [address, width, threads, *[0] * (width - 1)]

    def _add(self, rows, uses, launch, start, function, values):
        position, width = len(rows), launcher.width_of(len(values))
        self._functions.append((function, position, len(values)))
        for i, view in enumerate(launch.args):
            place = (position + launcher.HEADER + i, view.offset)
            uses.setdefault(view.slot, []).append(place)
        padding = [0] * (width - len(values))
        rows += [start, width, *values, *padding]
        return position

    def bind(self, slot, buffer):
        if buffer.device == "NPY" and not buffer._buf.flags.c_contiguous:
            # Kept until `release`.
            self._held.append(np.ascontiguousarray(buffer._buf))
            start = self._held[-1].ctypes.data
        else:
            start = address(buffer)
        if self._bound.get(slot) != start:
            self._bound[slot] = start
            table = self._table
            for position, offset in self._uses.get(slot, ()):
                table[position] = start + offset

    def release(self):
        """Forgets the bound buffers; an address keeps none alive."""
        self._held.clear()

    def run(self, scratch, var_vals):
        table = self._table
        if scratch:
            start = scratch["CPU"]._buf.va_addr
            if self._bound.get("arena") != start:
                self._bound["arena"] = start
                for slot, offset in self._plan._offsets.items():
                    for position, more in self._uses[slot]:
                        table[position] = start + offset + more
        for first, names in self._symbolic:
            for i, name in enumerate(names):
                if name != "core_id":
                    table[first + i] = var_vals[name]
        self.busy = True
        try:
            alone = blas_threads.is_single()
            launcher.walk(table, self._functions, alone)
        finally:
            self.busy = False

    def save(self, slots):
        """Copies the buffers of slots; see `restore`."""
        return [
            (start, ctypes.string_at(start, self._plan.slots[slot].nbytes))
            for slot in slots
            for start in [self._bound[slot]]
        ]

    def restore(self, saved):
        """Undoes what was written since to the buffers in `saved`."""
        for start, content in saved:
            ctypes.memmove(start, content, len(content))

    def profile(self, repeats):
        times = []
        functions = iter(self._functions)
        for i, launch in enumerate(self._plan.launches):
            first, last = self._starts[i : i + 2]
            own = list(itertools.islice(functions, _shards(launch)))
            operations = self._operations(launch, own[0][1])
            own = [(f, position - first, n) for f, position, n in own]
            rows = [*self._table[first:last], 0]
            table = (ctypes.c_uint64 * len(rows))(*rows)
            times.append((launch, [], operations, table, own))
        for _ in range(repeats):
            for _, seconds, _, table, own in times:
                start = time.perf_counter()
                launcher.walk(table, own)
                seconds.append(time.perf_counter() - start)
        return [(x, min(seconds), n) for x, seconds, n, *_ in times]

    def _operations(self, launch, position):
        if launch.program is None:
            return 0
        kernel = launch.program.src[0].arg
        if handwritten.counts(kernel.name):
            place = position + launcher.HEADER + len(launch.args) - 1
            words = ctypes.c_int64 * launch.args[-1].size
            words = list(words.from_address(self._table[place]))
            return handwritten.operations(kernel.name, words)
        return (
            None if kernel.estimates is None else kernel.estimates.ops or None
        )


def _shards(launch):
    if launch.program is None or not launch.program.arg.runtimevars:
        return 1
    return launch.program.arg.global_size[0]


class _Runner:
    """Launches through tinygrad's runtimes, for any device."""

    shares_scratch = True

    def __init__(self, plan):
        self._plan = plan
        self.busy = False
        self._buffers = {}
        self._runtimes = [
            None
            if launch.program is None
            else get_runtime(launch.device, launch.program)
            for launch in plan.launches
        ]

    def bind(self, slot, buffer):
        self._buffers[slot] = buffer

    def release(self):
        """Forgets the bound buffers."""
        self._buffers.clear()

    def run(self, scratch, var_vals):
        plan = self._plan
        buffers = [
            self._buffers[i]
            if slot.role != "scratch"
            else self._scratch(i, slot, scratch)
            for i, slot in enumerate(plan.slots)
        ]
        self.busy = True
        try:
            self._launch(buffers, var_vals)
        finally:
            self.busy = False

    def save(self, slots):
        """Copies the buffers of slots; see `restore`."""
        saved = []
        for buffer in (self._buffers[slot] for slot in slots):
            copy = new_buffer(buffer.device, buffer.size, buffer.dtype)
            _copy(copy, buffer)
            saved.append((buffer, copy))
        return saved

    def restore(self, saved):
        """Undoes what was written since to the buffers in `saved`."""
        for buffer, copy in saved:
            _copy(buffer, copy)

    def _launch(self, buffers, var_vals):
        for launch, runtime in zip(self._plan.launches, self._runtimes):
            if launcher.stopped.value:
                return
            args = [_view(buffers[v.slot], v) for v in launch.args]
            if runtime is None:
                _copy(*args)
                continue
            info = launch.program.arg
            global_size, local_size = info.launch_dims(var_vals)
            runtime(
                *[b.get_buf(launch.device) for b in args],
                global_size=global_size,
                local_size=local_size,
                vals=info.vals(var_vals),
                wait=False,
            )

    def _scratch(self, index, slot, scratch):
        if index not in self._plan._offsets:
            # No launch uses it.
            return None
        if slot.device not in scratch:
            return new_buffer(slot.device, slot.size, slot.dtype)
        offset = self._plan.scratch_place(index)
        base = scratch[slot.device]
        return base.view(slot.size, slot.dtype, offset).ensure_allocated()


class _GraphRunner:
    """Launches gathered in the device's own graphs (CUDA, Metal)."""

    shares_scratch = False

    def __init__(self, plan):
        self.busy = False
        self._buffers = {}
        arenas = {
            device: UOp.new_buffer(device, nbytes, dtypes.int8)
            for device, nbytes in plan._arenas.items()
        }
        slots = []
        for i, slot in enumerate(plan.slots):
            if slot.role == "scratch":
                # Its address is part of the graph, so it is not shared.
                start = plan.scratch_place(i)
                slots.append((arenas[slot.device], start))
            else:
                size, device = (slot.size,), slot.device
                slots.append((UOp.param(i, slot.dtype, size, device), None))
        calls = [_call(launch, slots) for launch in plan.launches]
        linear = UOp(Ops.LINEAR, src=tuple(calls))
        self._linear = graph_split_rewrite(linear, JIT_BATCH_SIZE.value)

    def bind(self, slot, buffer):
        self._buffers[slot] = UOp.from_buffer(buffer)

    def release(self):
        """Forgets the bound buffers."""
        self._buffers.clear()

    def run(self, scratch, var_vals):
        inputs = [self._buffers[i] for i in range(len(self._buffers))]
        self.busy = True
        try:
            run_linear(self._linear, var_vals, inputs, jit=True)
        finally:
            self.busy = False


def _call(launch, slots):
    """A launch as tinygrad's graphs know it, a `CALL` uop."""
    args = []
    for view in launch.args:
        uop, start = slots[view.slot]
        if start is not None:
            start += view.offset
            uop = uop[start : start + view.nbytes].bitcast(view.dtype)
        args.append(uop)
    if launch.program is None:
        destination, source = args
        body = source.param_like(1).copy_to_device(destination.device)
        return body.call(destination, source)
    # Parameters that a program does not use have a place all the same.
    places = launch.program.arg.globals
    padded = [args[0]] * (max(places) + 1)
    for place, arg in zip(places, args):
        padded[place] = arg
    return launch.program.call(*padded)


def _view(buffer, view):
    if view.offset == 0 and view.nbytes == buffer.nbytes:
        return buffer
    return buffer.view(view.size, view.dtype, view.offset).ensure_allocated()


def _copy(destination, source):
    allocator = destination.allocator
    kinds = [b.device.split(":")[0] for b in (destination, source)]
    if hasattr(allocator, "_transfer") and allocator.supports_transfer:
        if kinds[0] == kinds[1]:
            allocator._transfer(
                destination._buf,
                source._buf,
                destination.nbytes,
                src_dev=source.allocator.dev,
                dest_dev=allocator.dev,
            )
            return
    if hasattr(allocator, "_as_buffer"):
        memory = destination.as_memoryview(force_zero_copy=True)
        source.allocator._copyout(memory, source._buf)
    else:
        memory = source.as_memoryview(allow_zero_copy=True)
        allocator._copyin(destination._buf, memory)
