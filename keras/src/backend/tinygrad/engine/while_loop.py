"""Loops whose end depends on values: run at once, on the host's word.

The body is traced and compiled once; between two steps the host reads
whether there is another.
"""

import collections
import dataclasses
import itertools

from tinygrad import Tensor

from keras.src.backend.tinygrad.engine.internals import buffers
from keras.src.backend.tinygrad.engine.lowering import BufferTemplate
from keras.src.backend.tinygrad.engine.plan import Plan
from keras.src.backend.tinygrad.engine.realize import realize
from keras.src.backend.tinygrad.engine.runtime_lock import lock
from keras.src.backend.tinygrad.engine.scan import declare
from keras.src.backend.tinygrad.engine.scan import gradient
from keras.src.backend.tinygrad.engine.scan_program import lower_body
from keras.src.backend.tinygrad.engine.scan_program import stored

_CAPACITY = 1024
_plans = collections.OrderedDict()


def run_while(body, carries, limit=None):
    """Repeats the body of a loop while it says so.

    Args:
        body: `Body` without xs, whose only result is a boolean scalar:
            whether there is another step after it.
        carries: List of `Tensor`s, the carries before the first step, which
            is always done.
        limit: Largest number of steps, or `None`.

    Returns:
        List of realized `Tensor`s, the carries after the last step. They are
        differentiable in `carries` and in what the body uses besides.

    Raises:
        Unsupported: If the body needs what a plan does not offer.
    """
    inputs = [*carries, *map(Tensor, body.sources)]
    loop, body = dataclasses.replace(body, ys=()), body.plain()
    device = body.outputs[0].device
    ready = [stored(t, device) for t in inputs]
    with lock:
        realize(*ready)
        held = [buffers[t.uop.base] for t in ready]
        plan, n = _plan(body), len(carries)
        for count in itertools.count(1):
            *held[:n], flag = plan.run(held)
            if count == limit or not any(flag.as_memoryview(True)):
                break
    results = [
        Tensor(BufferTemplate(p).make(buffer)).reshape(uop.shape)
        for p, buffer, uop in zip(body.carries, held, body.new_carries)
    ]

    def vjp(cotangents):
        return gradient(loop, inputs, cotangents, count)

    return declare(results, inputs, vjp)


def _plan(body):
    key = body.key()
    if key not in _plans:
        _plans[key] = Plan(lower_body(body, body.outputs)[0])
        if len(_plans) > _CAPACITY:
            _plans.popitem(last=False)
    _plans.move_to_end(key)
    return _plans[key]
