"""Turns lazy tensors into buffers, through cached plans."""

from keras.src.backend.tinygrad.engine import host_call
from keras.src.backend.tinygrad.engine import pieces
from keras.src.backend.tinygrad.engine import recent
from keras.src.backend.tinygrad.engine import tracing
from keras.src.backend.tinygrad.engine.alternatives import settle
from keras.src.backend.tinygrad.engine.canonical import canonicalize
from keras.src.backend.tinygrad.engine.canonical import is_stored_whole
from keras.src.backend.tinygrad.engine.canonical import stored_value
from keras.src.backend.tinygrad.engine.canonical import superseded_stores
from keras.src.backend.tinygrad.engine.internals import Device
from keras.src.backend.tinygrad.engine.internals import Ops
from keras.src.backend.tinygrad.engine.internals import Tensor
from keras.src.backend.tinygrad.engine.internals import apply_map_to_tensors
from keras.src.backend.tinygrad.engine.internals import buffers
from keras.src.backend.tinygrad.engine.internals import disable_gc
from keras.src.backend.tinygrad.engine.internals import dtypes
from keras.src.backend.tinygrad.engine.internals import run_linear
from keras.src.backend.tinygrad.engine.lowering import Unsupported
from keras.src.backend.tinygrad.engine.lowering import lower
from keras.src.backend.tinygrad.engine.lowering import own_buffer
from keras.src.backend.tinygrad.engine.plan import Plan
from keras.src.backend.tinygrad.engine.plan import arenas
from keras.src.backend.tinygrad.engine.runtime_lock import lock
from keras.src.backend.tinygrad.engine.tensors import buffer_uop
from keras.src.backend.tinygrad.engine.tensors import shape_source
from keras.src.backend.tinygrad.engine.tensors import shaped

_plans = recent.Recent(4096)


def realize(*tensors):
    """Computes tensors, so that each is backed by a buffer of its own.

    Other tensors whose graphs share nodes with these keep their graphs, and
    so their gradients, except that a store into an existing buffer is done
    once: it is replaced by the buffer wherever it occurs. If a host call
    raises, no buffer has changed, and a store that depends on one is dropped.

    Args:
        *tensors: `Tensor`s of any shapes, dtypes and devices. Those that are
            realized already cost nothing.
    """
    pending = [t for t in tensors if not _is_done(t.uop)]
    pending = pending and tracing.note_realize(pending)
    if pending:
        with lock:
            _realize(pending)


def clear_caches():
    """Drops what is kept in memory to run things again, scratch included.

    Programs on disk stay.
    """
    with lock:
        recent.clear()
        arenas.clear()


def _is_done(uop):
    return uop.has_buffer_identity() or uop.is_virtual or 0 in uop.shape


@disable_gc()
def _realize(tensors):
    if any(t.dtype in dtypes.weaks for t in tensors):
        raise RuntimeError(
            "A tensor of a weak dtype has no storage. Cast it to a concrete "
            "dtype first."
        )
    asked = [t.uop for t in tensors]
    uops = list(dict.fromkeys(asked))
    try:
        values = dict(zip(uops, _compute(settle(uops))))
    except Unsupported:
        with host_call.raising():
            run_linear(*Tensor.linear_with_vars(*tensors))
            # With `HCQ2` set, which is an experiment of tinygrad's, its queue
            # makes host calls on a thread of its own.
            Device["CPU"].synchronize()
        return
    for tensor, uop in zip(tensors, asked):
        tensor.uop = values[uop]


def _compute(roots):
    """Computes uops and returns the uops of the buffers of their values."""
    graph = canonicalize(roots)
    if not graph.supported or not all(
        isinstance(s, int) for u in roots for s in u.shape
    ):
        raise Unsupported("several devices, or a shape that is not known")
    is_large = len(graph) >= pieces.LARGE and not graph.effects
    asked, nodes = roots, graph.nodes() if is_large else ()
    if is_large and graph.key not in _plans:
        roots = pieces.shorten(roots, nodes, _compute)
        if roots is not asked:
            graph = canonicalize(roots)
    entry = _plans.get(graph.key, lambda: _Entry(roots, graph))
    plan = entry.plan
    try:
        made = plan.run([buffers[u] for u in graph.inputs], graph.var_vals)
    except BaseException as error:
        if plan.progress == "launched":
            # An interrupt, say, that arrived while the launches ran.
            _settle_effects(graph.effects)
        elif plan.progress == "undone" and isinstance(error, Exception):
            # What can't be computed is not stored, and not tried again.
            _settle_effects(filter(_depends_on_host_call, graph.effects))
        raise
    values = entry.results(roots, made)
    _settle_effects(graph.effects)
    if is_large:
        pieces.remember(asked, values, nodes)
    return values


def _settle_effects(effects):
    """Lets live tensors read, in place of effects, the buffers written to."""
    stored = {u: stored_value(u) for u in effects}
    if stored:
        pieces.forget()
        apply_map_to_tensors(stored, name="effects")


def _depends_on_host_call(uop):
    nodes = uop.toposort(enter_calls=False)
    bodies = [u.src[0] for u in nodes if u.op is Ops.CALL]
    return any(
        host_call.KERNEL in body.arg.name
        for body in bodies
        if body.op is Ops.SINK
    )


class _Entry:
    """A plan and how its outputs become the values of its roots."""

    def __init__(self, uops, graph):
        effects, superseded = set(graph.effects), superseded_stores(uops)
        roots, outputs, self._results = [], {}, []
        inputs = graph.inputs
        for uop in uops:
            if is_stored_whole(uop, effects):
                roots.append(uop)
                self._results.append(None)
                continue
            root, buffer = own_buffer(uop, superseded)
            if buffer not in outputs:
                roots.append(root)
                outputs[buffer] = len(outputs)
            self._results.append((outputs[buffer], shape_source(uop.shape)))
        graph = canonicalize(roots)
        self.plan = Plan(lower(graph, roots, inputs, list(outputs)))

    def results(self, uops, made):
        bases = list(map(buffer_uop, made))
        return [
            stored_value(uop)
            if result is None
            else shaped(bases[result[0]], result[1])
            for uop, result in zip(uops, self._results)
        ]
