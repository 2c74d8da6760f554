"""Loops in the graph, lazy and differentiable, whatever their length.

The body of a loop is traced and compiled once. On the CPU a loop is one
kernel (`scan_kernel`), and so is its gradient, which runs in the other
direction; on other devices its steps share their programs.
"""

from tinygrad import Tensor

from keras.src.backend.tinygrad.engine.alternatives import offer
from keras.src.backend.tinygrad.engine.gemm import matmul
from keras.src.backend.tinygrad.engine.gradient import custom_vjp
from keras.src.backend.tinygrad.engine.internals import UOp
from keras.src.backend.tinygrad.engine.lowering import Unsupported
from keras.src.backend.tinygrad.engine.plan import NO_VIEWS
from keras.src.backend.tinygrad.engine.scan_body import differentiate
from keras.src.backend.tinygrad.engine.scan_body import differentiated_as
from keras.src.backend.tinygrad.engine.scan_body import split
from keras.src.backend.tinygrad.engine.scan_body import split_products
from keras.src.backend.tinygrad.engine.scan_body import written_buffers
from keras.src.backend.tinygrad.engine.scan_kernel import launch


def run(body, carries, xs, length, reverse=False):
    """Runs a loop over the slices of tensors, lazily.

    Args:
        body: `Body`, whose new carries have the shapes and dtypes of the
            carries.
        carries: List of `Tensor`s.
        xs: List of `Tensor`s of shape `(length, ...)`.
        length: Number of steps, at least 1.
        reverse: Whether the steps go from the last slice to the first.

    Returns:
        Pair of lists of `Tensor`s: the carries after the last step, and the
        results of all steps, stacked along a new first axis in the order of
        `xs`. They are differentiable in `carries`, in `xs` and in whatever
        else the body reads.
    """
    body, lefts, products = split_products(body)
    if products:
        _, lefts = run(lefts, [], xs, length, reverse)
        xs = xs + [
            _all_products(product, left, storage)
            for left, (product, storage) in zip(lefts, products)
        ]
    inputs = [*carries, *xs, *map(Tensor, body.sources)]
    final, ys, _ = _launch(body, inputs, length, reverse)
    results = _differentiable(body, inputs, length, reverse, final + ys)
    return results[: len(final)], results[len(final) :]


def _differentiable(body, inputs, length, reverse, results):
    """Declares the gradient of a launched loop's carries and results."""

    def vjp(cotangents):
        return gradient(body, inputs, cotangents, length, reverse, results)

    return declare(results, inputs, vjp)


def _all_products(product, left, storage):
    right = product.right.from_storage(Tensor(storage).reshape(-1))
    return matmul(left, right).reshape(len(left), -1)


def _launch(body, inputs, length, reverse):
    """Runs a loop without a gradient.

    Returns:
        The final carries, the results, and the `CALL` uop of both, if there
        is one.
    """
    device = body.outputs[0].device
    if not device.startswith(NO_VIEWS):
        try:
            return launch(body, inputs, length, reverse)
        except Unsupported:
            pass
    return _lay_out(body, inputs, length, reverse)


def _lay_out(body, inputs, length, reverse):
    """Runs a loop as a graph with as many copies of the body as steps."""
    n, m = len(body.carries), len(body.xs)
    carries, xs, consts = inputs[:n], inputs[n : n + m], inputs[n + m :]
    outputs = UOp.sink(*body.outputs)
    device = body.outputs[0].device
    written = written_buffers(outputs)
    carries, consts = _in_storage(carries, device), _in_storage(consts, device)
    ys = [None] * length
    for t in reversed(range(length)) if reverse else range(length):
        slices = _in_storage([x[t] for x in xs], device)
        values = [*carries, *slices, *consts]
        places = {
            p: v.reshape(-1).uop for p, v in zip(body.placeholders, values)
        }
        for uop in written:
            places[uop] = UOp.new_buffer(uop.device, uop.max_numel(), uop.dtype)
        results = [Tensor(u) for u in outputs.substitute(places, walk=True).src]
        carries = [r.contiguous() for r in results[:n]]
        ys[t] = results[n:]
    ys = [y[0].stack(*y[1:]) for y in map(list, zip(*ys))]
    return carries, ys, None


def _in_storage(tensors, device):
    # As the placeholders are, so that kernels in the body may take them.
    return [
        t.clone(device=device) if t.device is None else t.contiguous()
        for t in tensors
    ]


def declare(results, inputs, vjp):
    """Declares a gradient of the floating results for the floating inputs.

    Args:
        results: List of `Tensor`s.
        inputs: List of `Tensor`s.
        vjp: Function of a list with a cotangent or `None` for each result,
            that returns a list with a `Tensor` or `None` for each input.

    Returns:
        List of `Tensor`s with the values of `results`.
    """
    to = [i for i, t in enumerate(inputs) if t.is_floating_point()]
    of = [i for i, t in enumerate(results) if t.is_floating_point()]
    count = len(results)

    def floating_vjp(cotangents):
        arrived = [None] * count
        for i, cotangent in zip(of, cotangents):
            arrived[i] = cotangent
        gradients = vjp(arrived)
        return [gradients[i] for i in to]

    declared = custom_vjp(
        [results[i] for i in of], [inputs[i] for i in to], floating_vjp
    )
    results = [t.detach() for t in results]
    for i, result in zip(of, declared):
        results[i] = result
    return results


def gradient(body, inputs, cotangents, length, reverse=False, results=()):
    """Differentiates a loop by a loop in the other direction.

    Args:
        body: `Body` of the loop.
        inputs: List of its carries, xs and consts.
        cotangents: List with a `Tensor` or `None` for each final carry, and
            then for each result.
        length: Number of steps.
        reverse: Whether the loop went from the last slice to the first.
        results: List of the final carries and the results, if they are not
            computed yet.

    Returns:
        List with a `Tensor` or `None` for each input, differentiable like
        any other loop's results.
    """
    n, m = len(body.carries), len(body.xs)
    step = differentiate(body, [c is not None for c in cotangents])
    saves = split(body, step)
    final, ys, call = _launch(saves.forward, inputs, length, reverse)
    kept = final + ys
    if call is not None:
        offer([t.uop for t in results], [t.uop for t in kept], call)
    first = len(final) + len(body.ys)
    stored = kept[first:]
    saved = _differentiable(saves.forward, inputs, length, reverse, kept)
    saved = saved[first:]
    carries = [
        inputs[i].const_like(0) if cotangents[i] is None else cotangents[i]
        for i in step.carried
    ]
    carries += [
        Tensor.zeros(*p.shape, dtype=p.dtype)
        for p in step.carries[len(carries) :]
    ]
    carries += [cotangents[i] for i in step.arriving]
    carries += [inputs[n + j] for j in saves.xs]
    consts = [Tensor(s) for s in saves.backward.sources]
    # The launch finds the rows of what was stored; gradients, its graph.
    final, ys, _ = _launch(
        saves.backward,
        [*carries, *stored[: saves.count], *consts],
        length,
        not reverse,
    )
    found = _differentiable(
        saves.backward,
        [*carries, *saved[: saves.count], *consts],
        length,
        not reverse,
        final + ys,
    )
    raw, count = ys, len(step.sliced)
    final, ys = found[: len(final)], found[len(final) :]
    gradients = [None] * len(inputs)
    for i, gradient in zip(step.carried, final):
        gradients[i] = gradient
    for j, gradient in zip(step.sliced, ys):
        gradients[n + j] = gradient
    for k, gradient in zip(step.summed, final[len(step.carried) :]):
        gradients[n + m + k] = gradient
    for use, i, *pair in zip(
        step.products, saves.lefts, raw[count:], ys[count:]
    ):
        product = use.product.right_gradient
        (gradient,) = differentiated_as(
            [product(stored[i], pair[0])],
            [saved[i], pair[1]],
            lambda *operands, product=product: [product(*operands)],
        )
        known = gradients[n + m + use.const]
        gradients[n + m + use.const] = (
            gradient if known is None else known + gradient
        )
    for reduction in step.reductions:
        stacked = ys[reduction.result].reshape(length, *reduction.shape)
        axes = tuple(range(1 + reduction.axes))
        gradients[n + m + reduction.const] = stacked.sum(axes)
    return [
        None if g is None else g.reshape(t.shape)
        for g, t in zip(gradients, inputs)
    ]
