"""Steps traced once as pure functions of inputs and state, then replayed."""

import contextlib
import sys
import weakref

import numpy as np

from keras.src import tree
from keras.src.backend.tinygrad.complex import ComplexTensor
from keras.src.backend.tinygrad.engine import pieces
from keras.src.backend.tinygrad.engine import tracing
from keras.src.backend.tinygrad.engine.alternatives import settle
from keras.src.backend.tinygrad.engine.canonical import LeakedTensorError
from keras.src.backend.tinygrad.engine.canonical import canonicalize
from keras.src.backend.tinygrad.engine.canonical import is_stored_whole
from keras.src.backend.tinygrad.engine.canonical import pending_effects
from keras.src.backend.tinygrad.engine.canonical import stored_value
from keras.src.backend.tinygrad.engine.canonical import superseded_stores
from keras.src.backend.tinygrad.engine.canonical import trace_inputs
from keras.src.backend.tinygrad.engine.internals import Buffer
from keras.src.backend.tinygrad.engine.internals import Device
from keras.src.backend.tinygrad.engine.internals import Ops
from keras.src.backend.tinygrad.engine.internals import Tensor
from keras.src.backend.tinygrad.engine.internals import UOp
from keras.src.backend.tinygrad.engine.internals import apply_map_to_tensors
from keras.src.backend.tinygrad.engine.internals import buffers
from keras.src.backend.tinygrad.engine.internals import disable_gc
from keras.src.backend.tinygrad.engine.internals import dtypes
from keras.src.backend.tinygrad.engine.internals import strong_dtype
from keras.src.backend.tinygrad.engine.lowering import lower
from keras.src.backend.tinygrad.engine.lowering import own_buffer
from keras.src.backend.tinygrad.engine.plan import Plan
from keras.src.backend.tinygrad.engine.plan import new_buffer
from keras.src.backend.tinygrad.engine.realize import realize
from keras.src.backend.tinygrad.engine.runtime_lock import lock
from keras.src.backend.tinygrad.engine.tensors import buffer_uop
from keras.src.backend.tinygrad.engine.tensors import shape_source
from keras.src.backend.tinygrad.engine.tensors import shaped
from keras.src.backend.tinygrad.engine.tensors import strong
from keras.src.backend.tinygrad.engine.tensors import tensor_of
from keras.src.backend.tinygrad.engine.transfer import NUMPY_DTYPES
from keras.src.backend.tinygrad.engine.transfer import TINYGRAD_DTYPES
from keras.src.backend.tinygrad.engine.transfer import copy_in


def _count_of_unshared():
    owner = [object()]
    value = owner[0]
    return sys.getrefcount(value)


# What `sys.getrefcount` returns for an object that one owner and one local
# variable refer to: Python 3.14 counts one less than those before.
_UNSHARED = _count_of_unshared()


def compile_step(fn, device=None):
    """Makes a compiled step of a pure function.

    Args:
        fn: Function of one nested structure of inputs that returns a pair
            `(outputs, updates)`: a nested structure of `Tensor`s,
            `ComplexTensor`s, `None` and Python values, and a list of pairs
            `(slot, Tensor)`, where the state holder `slot` has an attribute
            `_value`, a `Tensor` of the same shape and dtype. What it reads of
            other state holders is read anew by each call, if they are known
            to `track_state`.
        device: Canonical tinygrad device for NumPy inputs, or `None` for the
            default one.

    Returns:
        `CompiledStep`.
    """
    return CompiledStep(fn, device)


class CompiledStep:
    """A function traced once for each signature of its inputs.

    A call copies the inputs into device buffers of the step's own, runs the
    captured launches, which update the state in place, and returns the
    outputs in fresh buffers.
    """

    def __init__(self, fn, device=None):
        self._fn = fn
        self._device = device
        self._captures = {}
        self._latest = None

    def __call__(self, inputs, key=None):
        """Runs the step.

        Args:
            inputs: Nested structure of NumPy arrays, `Tensor`s,
                `ComplexTensor`s, `None` and hashable Python values. A
                function of another structure, or of other shapes, dtypes or
                Python values, is traced anew. It gets a `ComplexTensor` for
                an array of complex numbers.
            key: Hashable value of what else the function depends on.

        Returns:
            The function's outputs, in the same structure.

        Raises:
            HostReadError: If the function reads values on the host while it
                is traced.
            TypeError: If an array has a dtype that tinygrad lacks.
        """
        with lock:
            leaves = tree.flatten(inputs)
            signature = (key, _structure(inputs), tuple(map(_describe, leaves)))
            capture = self._captures.get(signature)
            if capture is None:
                device = self._device or Device.DEFAULT
                capture = _Capture(self._fn, inputs, leaves, device)
                self._captures[signature] = capture
            if capture is not self._latest:
                if self._latest is not None:
                    # Inputs of every shape seen would fill the memory.
                    self._latest.free_inputs()
                self._latest = capture
            return capture.run(leaves)

    @property
    def plans(self):
        """List of the `Plan`s, one for each signature seen."""
        return [capture.plan for capture in self._captures.values()]


def _structure(value):
    if isinstance(value, dict):
        return (dict, tuple((k, _structure(v)) for k, v in value.items()))
    if isinstance(value, (list, tuple)):
        return (type(value), tuple(map(_structure, value)))
    return None


def _describe(leaf):
    if isinstance(leaf, (np.ndarray, np.generic)):
        return (np.ndarray, leaf.shape, leaf.dtype)
    if isinstance(leaf, (Tensor, ComplexTensor)):
        return (type(leaf), leaf.shape, leaf.dtype, leaf.device)
    if isinstance(leaf, float):
        # 0.0 equals -0.0, and NaN nothing.
        return (float, repr(leaf))
    return (type(leaf), leaf)


def _is_complex(leaf):
    return isinstance(leaf, ComplexTensor) or (
        isinstance(leaf, (np.ndarray, np.generic)) and leaf.dtype.kind == "c"
    )


def _parts(leaves, pairs):
    """Returns the leaves, with two parts of those that are pairs."""
    parts = []
    for leaf, pair in zip(leaves, pairs):
        parts += (leaf.real, leaf.imag) if pair else (leaf,)
    return parts


def _whole(parts, pairs):
    """Takes what `_parts` took apart together again."""
    parts = iter(parts)
    return [
        ComplexTensor(next(parts), next(parts)) if pair else next(parts)
        for pair in pairs
    ]


def _give_own_buffers(slots):
    """Realizes states, and parts those that share a buffer."""
    slots = [slot for slot in slots if slot._value is not None]
    realize(*[slot._value for slot in slots])
    seen = set()
    for slot in slots:
        if slot._value.uop.base in seen:
            slot._value = _moved(slot._value)
        seen.add(slot._value.uop.base)


def _give_randomness_state(device):
    """Makes tinygrad's own random state older than a trace that draws on it."""
    if device not in Tensor._device_seeds:
        Tensor._next_counter(device, 0)
        start = Tensor([0, 0], device=device, dtype=dtypes.uint32)
        Tensor._device_rng_counters[device] = start
    realize(Tensor._device_seeds[device], Tensor._device_rng_counters[device])


def _flush_effects():
    """Does what live tensors with storage of their own wait for.

    What they wait for would be part of each step otherwise, and a tensor
    needs its buffer to be state.
    """
    for tensor in tracing.live_tensors():
        uop = tensor.uop
        if uop.has_buffer_identity():
            continue
        base = uop.base
        stored = base.op is Ops.AFTER and base.src[1].op is Ops.STORE
        if stored or pending_effects([uop]):
            with contextlib.suppress(LeakedTensorError):
                realize(tensor)


class _Capture:
    """A traced function: its plan, and what the plan's slots are bound to."""

    @disable_gc()
    def __init__(self, fn, inputs, leaves, device):
        self._complex_inputs = list(map(_is_complex, leaves))
        parts = _parts(leaves, self._complex_inputs)
        self._feeds = [_make_feed(part, device) for part in parts]
        slots = tracing.tracked_states()
        _give_own_buffers(slots)
        _give_randomness_state(device)
        _flush_effects()
        arguments = [
            _constant(part, device) if feed is None else Tensor(feed.uop)
            for part, feed in zip(parts, self._feeds)
        ]
        arguments = _whole(arguments, self._complex_inputs)
        arguments = tree.pack_sequence_as(inputs, arguments)
        try:
            with tracing.Trace() as trace:
                outputs, updates = fn(arguments)
            if trace.give_buffers():
                # What had none was written to: now it can be state.
                with tracing.Trace() as trace:
                    outputs, updates = fn(arguments)
            with trace.undone_on_error():
                self._lower(outputs, updates, slots, trace)
        finally:
            # Whatever kept a traced tensor gets an error for it.
            trace_inputs.update(f.uop.base for f in self._feeds if f)
        for feed in self._feeds:
            if feed is not None:
                feed.uop = None

    def free_inputs(self):
        """Frees the buffers of the inputs; the next run makes new ones."""
        for feed in self._feeds:
            if feed is not None:
                feed.free()

    def _lower(self, outputs, updates, slots, trace):
        updates = {id(slot): (slot, value) for slot, value in updates}
        slots = {id(s): s for s in slots}
        slots.update({k: slot for k, (slot, _) in updates.items()})
        holders = {}
        for slot in slots.values():
            if slot._value is not None:
                holders.setdefault(slot._value.uop.base, _State(slot))
        stores = [
            (slot._value.uop, value.uop)
            for slot, value in updates.values()
            if value.uop is not slot._value.uop
        ]
        effects = set(pending_effects([t.uop for t, _ in trace.mutated]))
        for tensor, before in trace.mutated:
            if not tensor.uop.has_buffer_identity():
                holders[before.base] = _TensorState(tensor)
                if not is_stored_whole(tensor.uop, effects):
                    stores.append((before, tensor.uop))
        effects = list(effects)
        try:
            self._plan(outputs, stores, effects, holders)
        except RuntimeError as error:
            if "cycle" not in str(error):
                raise
            # Updates that read each other's old values: each is computed
            # before any is stored.
            stores = [(target, u.clone()) for target, u in stores]
            self._plan(outputs, stores, effects, holders)
        trace.restore()
        apply_map_to_tensors(
            {u: stored_value(u) for u in effects}, name="effects"
        )

    def _plan(self, outputs, stores, effects, holders):
        roots = [t.after(t.store(u)) for t, u in stores] + effects
        results = tree.flatten(outputs)
        self._structure = tree.pack_sequence_as(outputs, range(len(results)))
        self._complex = [isinstance(x, ComplexTensor) for x in results]
        leaves = _parts(results, self._complex)
        wanted = [
            x.uop
            for x in leaves
            if isinstance(x, Tensor)
            and not x.uop.is_virtual
            and 0 not in x.shape
        ]
        superseded = superseded_stores(roots + wanted)
        fed = [f.uop.base for f in self._feeds if f is not None]
        made, self._outputs = {}, []
        for leaf in leaves:
            if not isinstance(leaf, Tensor):
                self._outputs.append((leaf, None))
                continue
            if 0 in leaf.shape:
                leaf = _empty(leaf.shape, leaf.dtype, leaf.device)
            if 0 in leaf.shape or leaf.uop.is_virtual:
                self._outputs.append((leaf.uop, None))
                continue
            root, buffer = own_buffer(leaf.uop, superseded, fed)
            if buffer not in made:
                made[buffer] = len(made)
                roots.append(root)
            source = shape_source(leaf.uop.shape)
            self._outputs.append((made[buffer], source))
        roots = settle(roots)
        graph = canonicalize(roots)
        inputs = fed + graph.inputs
        spec = lower(graph, roots, inputs, list(made))
        self.plan = Plan(spec, captured=True)
        written = {stored_value(u).base for u in graph.effects}
        self._states = []
        owners = {
            t.uop.base: t
            for t in tracing.live_tensors()
            if t.uop.has_buffer_identity() and not t.uop.is_virtual
        }
        for i, base in enumerate(graph.inputs):
            holder = holders.get(base)
            if holder is None and base in owners:
                # Written to outside of the step, if at all.
                holder = _TensorState(owners[base])
            if holder is None:
                # A constant, which the plan keeps.
                self.plan.bind(len(fed) + i, buffers[base])
                self.plan.keep(buffers[base])
            else:
                holder = holder.for_slot(len(fed) + i, base in written)
                self._states.append(holder)

    def run(self, leaves):
        plan = self.plan
        if plan.busy:
            raise RuntimeError(
                "A compiled step was called by a host call within itself. "
                "Call the step's function itself instead."
            )
        position = 0
        parts = _parts(leaves, self._complex_inputs)
        for feed, leaf in zip(self._feeds, parts):
            if feed is not None:
                plan.bind(position, feed.load(leaf))
                position += 1
        # Another thread may replace a state while the plan writes to it.
        held = [state.bind(plan) for state in self._states]
        made = plan.launch()
        del held
        bases = list(map(buffer_uop, made))
        values = [
            tensor_of(shaped(bases[value], source))
            if source is not None
            else Tensor(value)
            if isinstance(value, UOp)
            else value
            for value, source in self._outputs
        ]
        results = _whole(values, self._complex)
        return tree.pack_sequence_as(self._structure, results)


class _State:
    """A state holder's slot in a plan.

    The plan updates the state's buffer in place. So that nothing else sees
    that, a value that anything but the holder refers to (a lazy graph that
    has not run, an alias) is moved into a new buffer before.
    """

    def __init__(self, holder):
        self._holder = holder
        self._bound = lambda: None

    def for_slot(self, slot, written):
        self._slot, self._written = slot, written
        return self

    def bind(self, plan):
        value = self._holder._value
        uop = value.uop
        if self._written:
            base = uop.base
            if (
                sys.getrefcount(value) > _UNSHARED
                or sys.getrefcount(uop) > _UNSHARED + (uop is base)
                or sys.getrefcount(base) > _UNSHARED + (uop is base)
            ):
                del base
                value = self._holder._value = _moved(value)
                uop = value.uop
        if uop is not self._bound():
            if not uop.has_buffer_identity():
                realize(value)
                uop = value.uop
            plan.bind(self._slot, buffers[uop.base])
            self._bound = weakref.ref(uop)
        return uop


class _TensorState(_State):
    """A `Tensor` that may be written to, itself its holder."""

    def __init__(self, holder):
        super().__init__(holder)
        self._nbytes = holder.uop.base.nbytes()

    def bind(self, plan):
        uop = self._holder.uop
        if uop is not self._bound():
            realize(self._holder)
            uop = self._holder.uop
            if uop.base.nbytes() != self._nbytes:
                raise ValueError(
                    "A tensor that a compiled step uses was given a value of "
                    "another size. Expected its dtype and shape to stay, "
                    f"received {uop.dtype} and {tuple(uop.shape)}. Keep what "
                    "changes so in the step's inputs."
                )
            plan.bind(self._slot, buffers[uop.base])
            self._bound = weakref.ref(uop)
        if self._written:
            pieces.forget()
        return uop


def _moved(value):
    """Returns a realized `Tensor` with the same values in a new buffer."""
    realize(value)
    source = buffers[value.uop.base]
    fresh = new_buffer(source.device, source.size, source.dtype)
    fresh.copy_from(source)
    return tensor_of(shaped(buffer_uop(fresh), shape_source(value.shape)))


def _make_feed(leaf, device):
    if isinstance(leaf, Tensor):
        if 0 in leaf.shape:
            return None
        dtype = strong_dtype(leaf.dtype)
        return _TensorFeed(leaf.shape, dtype, leaf.device or device)
    if not isinstance(leaf, (np.ndarray, np.generic)):
        return None
    dtype = TINYGRAD_DTYPES.get(leaf.dtype)
    if dtype is None:
        raise TypeError(
            "A compiled step's inputs are arrays of numbers. Expected one of "
            f"the dtypes {sorted(str(d) for d in TINYGRAD_DTYPES)}, received "
            f"an array of dtype '{leaf.dtype}' and shape {leaf.shape}."
        )
    if leaf.size == 0:
        return None
    return _ArrayFeed(leaf.shape, dtype, device)


def _constant(leaf, device):
    if isinstance(leaf, np.ndarray):
        return _empty(leaf.shape, TINYGRAD_DTYPES[leaf.dtype], device)
    return leaf


def _empty(shape, dtype, device):
    return Tensor.zeros(*shape, dtype=dtype, device=device)


class _TensorFeed:
    """A device buffer that each call's tensor is copied into.

    Attributes:
        uop: While the step is captured, the `BUFFER` uop that stands for it.
    """

    def __init__(self, shape, dtype, device):
        self.uop = UOp.empty(shape, dtype=dtype, device=device)
        base = self.uop.base
        self._shape = shape
        self._buffer = Buffer(base.device, base.max_numel(), base.dtype)

    def free(self):
        if self._buffer.is_allocated():
            self._buffer.deallocate()

    def load(self, leaf):
        if leaf.uop.is_virtual:
            # A constant, which has no buffer.
            leaf = strong(leaf).clone(device=self._buffer.device)
        realize(leaf)
        self._buffer.ensure_allocated().copy_from(buffers[leaf.uop.base])
        return self._buffer


class _ArrayFeed(_TensorFeed):
    """A device buffer that each call's array is copied into."""

    _view = None

    def free(self):
        self._view = None
        super().free()

    def load(self, leaf):
        buffer = self._buffer.ensure_allocated()
        if buffer.device != "CPU":
            copy_in(leaf, buffer)
            return buffer
        if self._view is None:
            memory = buffer.as_memoryview(force_zero_copy=True)
            array = np.frombuffer(memory, NUMPY_DTYPES[buffer.dtype])
            self._view = array.reshape(self._shape)
        self._view[...] = leaf
        return buffer
