"""Turns lazy tensors into buffers, through cached plans."""

import collections

from keras.src.backend.tinygrad.engine import pieces
from keras.src.backend.tinygrad.engine import tracing
from keras.src.backend.tinygrad.engine.alternatives import settle
from keras.src.backend.tinygrad.engine.canonical import canonicalize
from keras.src.backend.tinygrad.engine.canonical import is_stored_whole
from keras.src.backend.tinygrad.engine.canonical import stored_value
from keras.src.backend.tinygrad.engine.canonical import superseded_stores
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

# Plans kept in memory, the longest unused dropped first.
_CAPACITY = 4096
_plans = collections.OrderedDict()


def realize(*tensors):
    """Computes tensors, so that each is backed by a buffer of its own.

    Other tensors whose graphs share nodes with these keep their graphs, and
    so their gradients, except that a store into an existing buffer is done
    once: it is replaced by the buffer wherever it occurs.

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
    """Drops the plans and the scratch memory; programs on disk stay."""
    with lock:
        _plans.clear()
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
        run_linear(*Tensor.linear_with_vars(*tensors))
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
    entry = _plans.get(graph.key)
    if entry is None and is_large:
        roots = pieces.shorten(roots, nodes, _compute)
        if roots is not asked:
            graph = canonicalize(roots)
            entry = _plans.get(graph.key)
    if entry is None:
        entry = _plans[graph.key] = _Entry(roots, graph)
        if len(_plans) > _CAPACITY:
            _plans.popitem(last=False)
    else:
        _plans.move_to_end(graph.key)
    made = entry.plan.run([buffers[u] for u in graph.inputs], graph.var_vals)
    values = entry.results(roots, made)
    if graph.effects:
        pieces.forget()
        apply_map_to_tensors(
            {u: stored_value(u) for u in graph.effects}, name="effects"
        )
    if is_large:
        pieces.remember(asked, values, nodes)
    return values


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
