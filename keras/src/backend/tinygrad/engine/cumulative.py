"""Cumulative sums and products, with their gradients.

On the CPU they are kernels that touch each element once: tinygrad's own adds
up each prefix anew, or each prefix of a block.
"""

import functools
import math

from tinygrad import Tensor
from tinygrad import dtypes

from keras.src.backend.tinygrad.engine.gradient import custom_vjp
from keras.src.backend.tinygrad.engine.handwritten import constant_sizes
from keras.src.backend.tinygrad.engine.handwritten import kernel
from keras.src.backend.tinygrad.engine.handwritten import new_output
from keras.src.backend.tinygrad.engine.handwritten import on_cpu
from keras.src.backend.tinygrad.engine.internals import UOp


def cumulative_sum(x, axis):
    """Sums of the elements so far along an axis.

    Args:
        x: `Tensor` of at least one dimension.
        axis: Non-negative axis.

    Returns:
        `Tensor` of the shape and dtype of `x`, differentiable.
    """
    if not dtypes.is_float(x.dtype):
        return _cumulate(x, axis, "add")

    def vjp(grads):
        return [cumulative_sum(grads[0].flip(axis), axis).flip(axis)]

    return custom_vjp([_cumulate(x, axis, "add")], [x], vjp)[0]


def cumulative_product(x, axis):
    """Products of the elements so far along an axis.

    Args:
        x: `Tensor` of at least one dimension.
        axis: Non-negative axis.

    Returns:
        `Tensor` of the shape and dtype of `x`, differentiable, at zeros too.
    """
    if not dtypes.is_float(x.dtype):
        return _cumulate(x, axis, "mul")
    products = _cumulate(x, axis, "mul")

    def vjp(grads):
        def sum_of_rest(terms):
            return cumulative_sum(terms.flip(axis), axis).flip(axis)

        g = grads[0]
        zero = x.eq(0)
        zeros = _cumulate(zero.cast(dtypes.int32), axis, "add")
        first = zero & zeros.eq(1)
        # The first zero meets the products of the others, up to the second;
        # what follows it meets a zero.
        others = cumulative_product(first.where(1, x), axis)
        after = sum_of_rest((zeros.eq(0) | zeros.eq(1)).where(g * others, 0))
        before = sum_of_rest(g * products) / zero.where(1, x)
        return [first.where(after, zeros.eq(0).where(before, 0))]

    return custom_vjp([products], [x], vjp)[0]


def _cumulate(x, axis, operation):
    if 0 in x.shape or x.shape[axis] == 1:
        return x
    if x.device != "CPU":
        other = {"add": Tensor.cumsum, "mul": Tensor.cumprod}[operation]
        return other(x, axis).cast(x.dtype)
    before = math.prod(x.shape[:axis])
    after = math.prod(x.shape[axis + 1 :])
    out = new_output(math.prod(x.shape), x.dtype)
    call = _kernel(x.dtype, operation).call(
        out.uop,
        on_cpu(x.detach()).reshape(-1).uop,
        constant_sizes(before, x.shape[axis], after).uop,
    )
    return Tensor(out.uop.after(call)).reshape(x.shape)


@functools.cache
def _kernel(dtype, operation):
    out, x = [UOp.placeholder((1,), dtype, slot) for slot in (0, 1)]
    words = UOp.placeholder((3,), dtypes.int64, 2)
    before, size, after = [words[i].load() for i in range(3)]
    # The first elements are their own sums; then each adds to the one before.
    i = UOp.range(before, 0, dtype=dtypes.int64)
    j = UOp.range(after, 1, dtype=dtypes.int64)
    start = i * size * after + j
    copied = out[start].store(x[start].load()).end(j).end(i)
    out = out.after(copied)
    i = UOp.range(before, 2, dtype=dtypes.int64)
    k = UOp.range(size - 1, 3, dtype=dtypes.int64)
    j = UOp.range(after, 4, dtype=dtypes.int64)
    place = (i * size + k) * after + j
    value, previous = x[place + after].load(), out[place].load()
    combined = previous + value if operation == "add" else previous * value
    store = out[place + after].store(combined)
    return kernel(
        store.end(j).end(k).end(i),
        f"cumulative_{operation}_{dtype}",
        lambda words: words[0] * (words[1] - 1) * words[2],
    )
