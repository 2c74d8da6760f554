"""Shortens large lazy graphs: what was computed before, and what comes first.

tinygrad's time to schedule a graph grows faster than the graph, and a value
that is read again and again while its history grows would be computed from
its beginning each time. So a large graph is computed in pieces, and the
pieces' values are remembered for as long as their nodes live.
"""

import math
import weakref

from keras.src.backend.tinygrad.engine.canonical import size
from keras.src.backend.tinygrad.engine.canonical import superseded_stores
from keras.src.backend.tinygrad.engine.internals import GroupOp
from keras.src.backend.tinygrad.engine.internals import Ops
from keras.src.backend.tinygrad.engine.internals import dtypes

# Graphs of fewer nodes are computed whole, and forgotten. The most nodes of a
# piece, where there is a place to cut.
LARGE = 256

_VIEWS = GroupOp.Movement | {Ops.BITCAST, Ops.DETACH}
_COMPUTED = GroupOp.ALU | {
    Ops.AFTER,
    Ops.CAST,
    Ops.CONTIGUOUS,
    Ops.CONTIGUOUS_BACKWARD,
    Ops.COPY,
    Ops.GETTUPLE,
    Ops.REDUCE,
}
_MARK = "_keras_computed"

_values = weakref.WeakKeyDictionary()


def remember(uops, values, nodes):
    """Notes what a large graph's computation made.

    Args:
        uops: List of the graph's roots.
        values: List of as many uops of buffers that hold their values.
        nodes: Iterable of the graph's nodes over buffers.
    """
    _values.update(zip(uops, values))
    for node in nodes:
        node.__dict__[_MARK] = True


def forget():
    """Drops what is remembered: a buffer was written in place."""
    _values.clear()


def shorten(roots, nodes, run):
    """Replaces parts of a large graph by their values.

    Args:
        roots: List of the graph's roots, `UOp`s.
        nodes: List of its nodes over buffers, sources first.
        run: Function that takes a list of `UOp`s, computes them and returns
            a list of the uops of their buffers, in their shapes.

    Returns:
        List of as many `UOp`s, of the same values; `roots` itself if there
        is nothing to replace.
    """
    superseded = superseded_stores(roots)
    left = _unknown(roots, nodes)
    shortened = len(left) < len(nodes)
    while cut := (
        _computed_again(left, superseded)
        or _first_piece(roots, left, superseded)
    ):
        _values.update(zip(cut, run(_over_values(cut, left))))
        left = _unknown(roots, left)
        shortened = True
    return _over_values(roots, left) if shortened else roots


def _unknown(roots, nodes):
    """The nodes that some roots need, short of those with known values."""
    needed, left = set(roots), []
    for node in reversed(nodes):
        if node in needed and node not in _values:
            needed.update(node.src)
            left.append(node)
    left.reverse()
    return left


def _over_values(roots, nodes):
    """Rebuilds roots so that they read known values."""
    new = {}

    def replaced(uop):
        value = _values.get(uop)
        return new.get(uop, uop) if value is None else value

    for node in _unknown(roots, nodes):
        sources = tuple(map(replaced, node.src))
        changed = any(a is not b for a, b in zip(sources, node.src))
        new[node] = node.replace(src=sources) if changed else node
    return list(map(replaced, roots))


def _computed_again(left, superseded):
    """What nodes that were computed before give to those that were not."""
    marked = {node for node in left if _MARK in node.__dict__}
    cut = {}
    for node in left:
        if node not in marked:
            for source in node.src:
                base = _base(source)
                if base in marked and _has_value(base, superseded):
                    cut[base] = None
    return list(cut)


def _first_piece(roots, left, superseded):
    """The values between the first nodes, up to `LARGE`, and the rest.

    Of the places to cut in the second half of these nodes, the one counts
    that the fewest bytes cross; if there is none, the first one after them.
    """
    if sum(map(size, left)) <= LARGE:
        return []
    # A buffer is written and read by nodes that no cut parts.
    inner = {node for node in left if node.op is not Ops.BUFFER}
    last = {s: i for i, node in enumerate(left) for s in node.src}
    last.update(dict.fromkeys(roots, len(left)))
    ends, crossing = {}, {}
    nbytes = blocked = passed = 0
    best = math.inf
    cut = []
    for i, node in enumerate(left[:-1]):
        passed += size(node)
        if passed > LARGE and cut:
            break
        ends.setdefault(last[node], []).append(node)
        base = _base(node)
        if base in inner:
            crossing[base] = crossing.get(base, 0) + 1
            if crossing[base] == 1:
                if _has_value(base, superseded):
                    nbytes += base.max_numel() * base.dtype.itemsize
                else:
                    blocked += 1
        for node in ends.pop(i, ()):
            base = _base(node)
            if base in crossing:
                crossing[base] -= 1
                if not crossing[base]:
                    del crossing[base]
                    if _has_value(base, superseded):
                        nbytes -= base.max_numel() * base.dtype.itemsize
                    else:
                        blocked -= 1
        if passed > LARGE // 2 and not blocked and 0 < nbytes <= best:
            best, cut = nbytes, list(crossing)
    return cut


def _base(uop):
    while uop.op in _VIEWS:
        uop = uop.src[0]
    return uop


def _has_value(uop, superseded):
    """Whether a buffer can hold a node's value."""
    return (
        uop.op in _COMPUTED
        and uop not in superseded
        and uop.dtype not in dtypes.weaks
        and uop.dtype is not dtypes.void
        and not uop.is_bound_var
        and all(isinstance(n, int) for n in uop.shape)
    )
