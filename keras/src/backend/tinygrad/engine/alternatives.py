"""Nodes that compute what others compute, and more.

A loop's gradient needs values that the loop does not keep when nobody asks
for its gradient. So the gradient brings a second loop into the graph, which
keeps them; where both occur, the second takes the place of the first.
"""

import weakref

from keras.src.backend.tinygrad.engine.internals import UOp
from keras.src.backend.tinygrad.engine.runtime_lock import lock

_alternatives = weakref.WeakKeyDictionary()


def offer(values, alternatives, call):
    """Declares that some values are also computed by a fuller call.

    Args:
        values: List of uops.
        alternatives: List of the uops of the same values, over `call`.
        call: The `CALL` uop.
    """
    with lock:
        for value, alternative in zip(values, alternatives):
            _alternatives[value] = alternative, call


def settle(roots):
    """Replaces values by their alternatives where those are computed anyway.

    Args:
        roots: List of uops.

    Returns:
        List of as many uops.
    """
    if not _alternatives:
        return roots
    nodes = UOp.sink(*roots).toposort(enter_calls=False)
    with lock:
        chosen = {
            value: alternative
            for value, (alternative, call) in _alternatives.items()
            if value in nodes and call in nodes
        }
    if not chosen:
        return roots
    # An alternative may itself be over values that have one.
    return list(UOp.sink(*roots).substitute(chosen).src)
