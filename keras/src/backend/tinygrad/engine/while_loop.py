"""Loops whose end depends on values: run at once, on the host's word.

The body is traced and compiled once; between two steps the host reads
whether there is another. Where a step or a loop around this one is traced,
only the part of the body that says so is run, for the number of steps.
"""

import dataclasses
import itertools

from tinygrad import Tensor

from keras.src.backend.tinygrad.engine import tracing
from keras.src.backend.tinygrad.engine.internals import UOp
from keras.src.backend.tinygrad.engine.internals import buffers
from keras.src.backend.tinygrad.engine.lowering import BufferTemplate
from keras.src.backend.tinygrad.engine.plan import Plan
from keras.src.backend.tinygrad.engine.realize import realize
from keras.src.backend.tinygrad.engine.recent import Recent
from keras.src.backend.tinygrad.engine.runtime_lock import lock
from keras.src.backend.tinygrad.engine.scan import declare
from keras.src.backend.tinygrad.engine.scan import gradient
from keras.src.backend.tinygrad.engine.scan import run
from keras.src.backend.tinygrad.engine.scan_program import lower_body
from keras.src.backend.tinygrad.engine.scan_program import stored

_plans = Recent(1024)


def run_while(body, carries, limit=None):
    """Repeats the body of a loop while it says so.

    Args:
        body: `Body` without xs, whose only result is a boolean scalar:
            whether there is another step after it.
        carries: List of `Tensor`s, the carries before the first step, which
            is always done.
        limit: Largest number of steps, or `None`.

    Returns:
        List of `Tensor`s, the carries after the last step: realized, or lazy
        while something is traced. They are differentiable in `carries` and
        in what the body uses besides.

    Raises:
        HostReadError: If something is traced, and whether there is another
            step depends on what is not known yet.
        Unsupported: If the body needs what a plan does not offer.
    """
    inputs = [*carries, *map(Tensor, body.sources)]
    loop = dataclasses.replace(body, ys=())
    if tracing.in_progress():
        count, _ = _run(*_condition(body, inputs), limit)
        return run(loop, carries, [], count)[0]
    count, held = _run(body.plain(), inputs, limit)
    results = [
        Tensor(BufferTemplate(p).make(buffer)).reshape(uop.shape)
        for p, buffer, uop in zip(body.carries, held, body.new_carries)
    ]

    def vjp(cotangents):
        return gradient(loop, inputs, cotangents, count)

    return declare(results, inputs, vjp)


def _condition(body, inputs):
    """Reduces a loop to the carries that decide whether there is a step.

    Args:
        body: `Body`; see `run_while`.
        inputs: List of the `Tensor`s of its carries and consts.

    Returns:
        The reduced `Body`, and the list of its inputs.

    Raises:
        HostReadError: If one of these is not known yet.
    """
    after = dict(zip(body.carries, body.new_carries))
    deciding, nodes = (), set()
    while True:
        roots = (*(after[p] for p in deciding), *body.ys)
        nodes = set(UOp.sink(*roots).toposort())
        more = tuple(p for p in body.carries if p in nodes)
        if more == deciding:
            break
        deciding = more
    kept = [p in nodes for p in body.placeholders]
    inputs = list(itertools.compress(inputs, kept))
    for tensor in inputs:
        tracing.check_host_read(tensor)
    kept = kept[len(body.carries) :]
    reduced = dataclasses.replace(
        body,
        carries=deciding,
        consts=tuple(itertools.compress(body.consts, kept)),
        sources=tuple(itertools.compress(body.sources, kept)),
        new_carries=tuple(after[p] for p in deciding),
    )
    return reduced.plain(), inputs


def _run(body, inputs, limit):
    """Runs the steps.

    Returns:
        Their number, and the list of the buffers of the last carries.
    """
    device = body.outputs[0].device
    ready = [stored(t, device) for t in inputs]
    with lock:
        realize(*ready)
        held = [buffers[t.uop.base] for t in ready]
        plan = _plans.get(
            body.key(), lambda: Plan(lower_body(body, body.outputs)[0])
        )
        n = len(body.carries)
        for count in itertools.count(1):
            *held[:n], flag = plan.run(held)
            if count == limit or not any(flag.as_memoryview(True)):
                return count, held[:n]
