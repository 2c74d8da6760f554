"""Puts a lazy graph in canonical form: a key, and the buffers it is over.

Two graphs with equal keys do the same work over buffers of the same sizes,
so that what was planned for one runs the other.
"""

import hashlib
import weakref

from keras.src.backend.tinygrad.engine.internals import BEAM
from keras.src.backend.tinygrad.engine.internals import AddrSpace
from keras.src.backend.tinygrad.engine.internals import GroupOp
from keras.src.backend.tinygrad.engine.internals import Ops
from keras.src.backend.tinygrad.engine.internals import UOp
from keras.src.backend.tinygrad.engine.internals import buffers
from keras.src.backend.tinygrad.engine.internals import to_program_config

# Where an AFTER keeps the buffer that its stores go to.
_VIEWS = GroupOp.Movement | {Ops.BITCAST, Ops.AFTER, Ops.DETACH}
_CLOSED = "_keras_closed"
_SIZE = "_keras_size"
_KEY = "_keras_key"

# Buffers that stood for a step's inputs while it was traced.
trace_inputs = weakref.WeakSet()


class LeakedTensorError(RuntimeError):
    """A tensor of a compiled step's trace was used outside of the step."""


class CanonicalGraph:
    """A graph's key and what the key leaves out.

    Attributes:
        key: Hashable; equal for graphs that one plan runs. It keeps the
            buffer-free parts of the graph alive, which compare by identity.
        inputs: List of the allocated `BUFFER` uops, in order of occurrence.
        effects: List of `AFTER` uops that write to a buffer in `inputs`.
        var_vals: Dict of the values of bound variables, by name.
        supported: Whether a plan can run it (one device per buffer).
    """

    __slots__ = (
        "key",
        "inputs",
        "effects",
        "var_vals",
        "supported",
        "_index",
        "_size",
    )

    def __len__(self):
        """The number of nodes over buffers, about, as `size` counts them."""
        return self._size

    def nodes(self):
        """Returns the list of the nodes over buffers, sources first."""
        return [u for u, i in self._index.items() if i.__class__ is int]

    def digest(self, *groups):
        """Returns bytes that name the graph in any process.

        Args:
            *groups: Lists of uops in the graph, whose roles matter too.
        """
        digest = hashlib.sha256()
        for entry in self.key:
            digest.update(repr(list(map(_portable, entry))).encode())
        for group in groups:
            places = [_portable(self._index.get(uop)) for uop in group]
            digest.update(repr(places).encode())
        return digest.digest()


def is_allocated(buffer_uop):
    """Whether a `BUFFER` uop has memory."""
    buffer = buffers.get(buffer_uop)
    return buffer is not None and buffer.is_allocated()


def base_buffer(uop):
    """The `BUFFER` under movement ops, bitcasts and stores, or `None`."""
    while uop.op in _VIEWS:
        uop = uop.src[0]
    return uop if uop.op is Ops.BUFFER else None


def stored_value(uop):
    """What holds an `AFTER` uop's value once its store is done."""
    views = []
    while uop.op in _VIEWS:
        if uop.op is not Ops.AFTER and uop.op is not Ops.DETACH:
            views.append(uop)
        uop = uop.src[0]
    for view in reversed(views):
        uop = view.replace(src=(uop, *view.src[1:]))
    return uop


def is_stored_whole(uop, effects):
    """Whether a value is what a buffer holds after one of `effects`."""
    while uop.op is Ops.RESHAPE:
        uop = uop.src[0]
    if uop not in effects:
        return False
    while uop.op is Ops.RESHAPE or uop.op is Ops.AFTER:
        uop = uop.src[0]
    return uop.op is Ops.BUFFER


def pending_effects(roots):
    """The `AFTER` uops in graphs that write to an allocated buffer."""
    effects, visited = [], {}
    for root in roots:
        for uop in root.toposort(gate=lambda u: u not in visited):
            visited[uop] = None
            if uop.op is Ops.AFTER and not uop.is_bound_var:
                base = base_buffer(uop)
                if base is not None and is_allocated(base):
                    effects.append(uop)
    return effects


def superseded_stores(roots):
    """The `AFTER` uops in a graph whose buffer another one writes again."""
    superseded, visited = set(), {}
    for root in roots:
        for uop in root.toposort(gate=lambda u: u not in visited):
            visited[uop] = None
            if uop.op is Ops.AFTER:
                uop = uop.src[0]
                while uop.op in _VIEWS:
                    if uop.op is Ops.AFTER:
                        superseded.add(uop)
                    uop = uop.src[0]
    return superseded


def size(uop):
    """How many nodes a node counts for: more than one if it is a function.

    Four nodes of a function, which has no kernels within, take about the time
    of one outside to schedule and to compile.
    """
    if uop.op is not Ops.FUNCTION:
        return 1
    body = uop.src[0]
    if _SIZE not in body.__dict__:
        body.__dict__[_SIZE] = -(-len(body.toposort()) // 4)
    return body.__dict__[_SIZE]


def is_closed(uop):
    """Whether a uop is known to be over no buffer."""
    return _CLOSED in uop.__dict__


def canonicalize(roots):
    """Finds the canonical form of a graph.

    Args:
        roots: List of the `UOp`s that are wanted.

    Returns:
        `CanonicalGraph`.

    Raises:
        LeakedTensorError: If the graph reads a compiled step's traced input.
    """
    graph = CanonicalGraph()
    graph.inputs, graph.effects, graph.var_vals = [], [], {}
    graph.supported = True
    graph._size = 0
    index, entries = {}, [(BEAM.value, *[v.value for v in to_program_config])]
    stack = list(roots)
    while stack:
        uop = stack[-1]
        if uop in index:
            stack.pop()
            continue
        if is_closed(uop):
            index[uop] = uop
            stack.pop()
            continue
        sources = uop.src
        pending = [s for s in sources if s not in index]
        if pending:
            pending.reverse()
            stack.extend(pending)
            continue
        stack.pop()
        op = uop.op
        if op is Ops.BUFFER and uop.arg.addrspace is AddrSpace.GLOBAL:
            entry = _buffer_entry(uop, graph)
        elif op is Ops.AFTER and uop.is_bound_var:
            variable, value = uop.unbind()
            graph.var_vals[variable.expr] = value
            entry = (op, variable)
        elif all(index[s].__class__ is not int for s in sources):
            # Over no buffer: the node, kept alive by the key, stands for
            # itself. A kernel's body is one; so are shapes and constants.
            uop.__dict__[_CLOSED] = True
            index[uop] = uop
            continue
        else:
            arg = _computed(uop)
            if op is Ops.AFTER:
                base = base_buffer(uop)
                if base is not None and is_allocated(base):
                    graph.effects.append(uop)
            entry = (op, uop.dtype, arg, *[index[s] for s in sources])
        index[uop] = len(entries)
        entries.append(entry)
        graph._size += size(uop)
    entries.append(tuple([index[u] for u in roots]))
    graph.key = tuple(entries)
    graph._index = index
    return graph


def _computed(uop):
    """A node's argument, as far as it has a part in what is computed."""
    arg = uop.arg
    if arg and uop.op in (Ops.CALL, Ops.FUNCTION):
        # The rule for the gradient has none.
        return arg.name, arg.precompile, arg.precompile_backward, arg.aux
    return arg


def _portable(value):
    if isinstance(value, tuple):
        return tuple(map(_portable, value))
    return _key(value) if isinstance(value, UOp) else value


def _key(uop):
    """Names a graph in any process: a `UOp.key` is made of addresses too."""
    for u in uop.toposort(lambda u: _KEY not in u.__dict__):
        digest = hashlib.sha256(repr((u.op, u.dtype, _computed(u))).encode())
        for source in u.src:
            digest.update(source.__dict__[_KEY])
        u.__dict__[_KEY] = digest.digest()
    return uop.__dict__[_KEY]


def _buffer_entry(uop, graph):
    device = uop.arg.device
    if not isinstance(device, str) or device.startswith(("DISK", "TINYFS")):
        graph.supported = False
    allocated = graph.supported and is_allocated(uop)
    if allocated:
        graph.inputs.append(uop)
    elif uop in trace_inputs:
        raise LeakedTensorError(
            "This tensor was computed from the inputs of a compiled step "
            "while the step was traced; it has no value outside. Return it "
            "from the step, or keep it in a variable."
        )
    return (Ops.BUFFER, uop.dtype, device, uop.src, allocated)
