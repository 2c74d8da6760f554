"""Steps traced once as pure functions of inputs and state, then replayed."""

import numpy as np

from keras.src import tree
from keras.src.backend.tinygrad.engine import tracing
from keras.src.backend.tinygrad.engine.internals import Ops
from keras.src.backend.tinygrad.engine.internals import Tensor
from keras.src.backend.tinygrad.engine.internals import UOp
from keras.src.backend.tinygrad.engine.internals import compile_linear
from keras.src.backend.tinygrad.engine.internals import disable_gc
from keras.src.backend.tinygrad.engine.internals import graph_rewrite
from keras.src.backend.tinygrad.engine.internals import memory_plan_rewrite
from keras.src.backend.tinygrad.engine.internals import pm_copy_from_store
from keras.src.backend.tinygrad.engine.internals import pm_resolve_linear_call
from keras.src.backend.tinygrad.engine.internals import pm_schedule
from keras.src.backend.tinygrad.engine.internals import run_linear
from keras.src.backend.tinygrad.engine.internals import transform_to_call
from keras.src.backend.tinygrad.engine.realize import realize
from keras.src.backend.tinygrad.engine.runtime_lock import lock
from keras.src.backend.tinygrad.engine.transfer import TINYGRAD_DTYPES


def compile_step(fn, device=None):
    """Makes a compiled step of a pure function.

    Args:
        fn: Function of one nested structure of inputs that returns a pair
            `(outputs, updates)`: a nested structure of `Tensor`s, `None` and
            Python scalars, and a list of pairs `(slot, Tensor)`, where the
            state holder `slot` has an attribute `_value`, a `Tensor` of the
            same shape and dtype.
        device: Canonical tinygrad device for the inputs, or `None` for the
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

    def __call__(self, inputs, key=None):
        """Runs the step.

        Args:
            inputs: Nested structure of NumPy arrays, `Tensor`s, `None` and
                hashable Python values.
            key: Hashable value of what else the function depends on.

        Returns:
            The function's outputs, in the same structure.

        Raises:
            HostReadError: If the function reads values on the host while it
                is traced.
        """
        with lock:
            leaves = tree.flatten(inputs)
            signature = (key, _structure(inputs), tuple(map(_describe, leaves)))
            capture = self._captures.get(signature)
            if capture is None:
                capture = _Capture(self._fn, inputs, leaves, self._device)
                self._captures[signature] = capture
            return capture.run(leaves)


def _structure(value):
    if isinstance(value, dict):
        return (dict, tuple((k, _structure(v)) for k, v in value.items()))
    if isinstance(value, (list, tuple)):
        return (type(value), tuple(map(_structure, value)))
    return None


def _describe(leaf):
    if isinstance(leaf, (np.ndarray, np.generic)):
        return (np.ndarray, leaf.shape, leaf.dtype.str, leaf.dtype.name)
    if isinstance(leaf, Tensor):
        return (Tensor, leaf.shape, leaf.dtype, leaf.device)
    return (type(leaf), leaf)


class _Capture:
    @disable_gc()
    def __init__(self, fn, inputs, leaves, device):
        device = device or Tensor.empty(1).device
        states = tracing.tracked_states()
        realize(*[s._value for s in states if s._value is not None])
        self._inputs = [_placeholder(leaf, device) for leaf in leaves]
        placeholders = [
            leaf if p is None else Tensor(p)
            for leaf, p in zip(leaves, self._inputs)
        ]
        with tracing.Trace() as trace:
            outputs, updates = fn(tree.pack_sequence_as(inputs, placeholders))
        self._structure = outputs
        self._outputs = tree.flatten(outputs)
        updates = {id(slot): (slot, value) for slot, value in updates}
        known = {id(s): s for s in states}
        known.update({k: slot for k, (slot, _) in updates.items()})
        self._lower(list(updates.values()), list(known.values()), trace)

    def _lower(self, updates, states, trace):
        roots = []
        for slot, value in updates:
            target = slot._value.uop
            if value.uop is not target:
                roots.append(target.after(target.store(value.uop)))
        self._views = []
        for i, output in enumerate(self._outputs):
            if isinstance(output, Tensor) and not output.uop.is_virtual:
                fresh = output.uop.empty_like()
                roots.append(fresh.after(fresh.store(output.uop)))
                self._views.append((i, fresh, fresh.base))
        call, _ = transform_to_call(UOp.sink(*roots))
        linear_call = graph_rewrite(call, pm_schedule, enter_calls=True)
        linear = graph_rewrite(linear_call, pm_resolve_linear_call)
        linear = graph_rewrite(linear, pm_copy_from_store)
        used = {u for c in linear.src for u in c.toposort()}
        by_buffer = {}
        for slot in states:
            if slot._value is not None:
                by_buffer.setdefault(slot._value.uop.base, slot)
        self._states = [
            (slot, base) for base, slot in by_buffer.items() if base in used
        ]
        bases = [p.base for p in self._inputs if p is not None]
        bases += [base for _, base in self._states]
        bases += [base for _, _, base in self._views]
        held = {u for u in linear_call.src[1:] if u.op is Ops.BUFFER}
        params = {
            u: UOp.param(i, u.dtype, u.shape, u.device)
            for i, u in enumerate(bases)
        }
        linear = linear.substitute(params, walk=True)
        self._linear = compile_linear(memory_plan_rewrite(linear, held))

    def run(self, leaves):
        for leaf, placeholder in zip(leaves, self._inputs):
            if placeholder is not None:
                _feed(placeholder, leaf)
        buffers = [p.base for p in self._inputs if p is not None]
        buffers += [slot._value.uop.base for slot, _ in self._states]
        outputs = list(self._outputs)
        for i, view, base in self._views:
            fresh = UOp.new_buffer(base.device, base.max_numel(), base.dtype)
            buffers.append(fresh)
            outputs[i] = Tensor(fresh.reshape(view.shape))
        run_linear(self._linear, {}, input_uops=buffers, jit=True)
        return tree.pack_sequence_as(self._structure, outputs)


def _placeholder(leaf, device):
    if isinstance(leaf, Tensor):
        dtype, shape = leaf.dtype, leaf.shape
    elif isinstance(leaf, (np.ndarray, np.generic)):
        dtype, shape = TINYGRAD_DTYPES[leaf.dtype], leaf.shape
    else:
        return None
    uop = UOp.empty(shape, dtype=dtype, device=device)
    uop.base.buffer.allocate()
    return uop


def _feed(placeholder, leaf):
    buffer = placeholder.base.buffer
    if isinstance(leaf, Tensor):
        realize(leaf)
        source = leaf.contiguous().realize().uop.base.buffer
        buffer.copy_from(source.ensure_allocated())
    else:
        source = np.ascontiguousarray(leaf).reshape(-1).view(np.uint8)
        buffer.allocator._copyin(buffer._buf, memoryview(source))
