"""Gathers and scatters of rows, each the other's gradient.

On the CPU they are kernels that do what is asked and no more: tinygrad forms
the gradient of a gather as a dense sum over all rows. Their sizes are in a
buffer of words, so that one program serves all shapes.
"""

import functools
import math

from tinygrad import Tensor
from tinygrad import dtypes

from keras.src.backend.tinygrad.engine.gradient import custom_vjp
from keras.src.backend.tinygrad.engine.handwritten import are_on_cpu
from keras.src.backend.tinygrad.engine.handwritten import constant_sizes
from keras.src.backend.tinygrad.engine.handwritten import kernel
from keras.src.backend.tinygrad.engine.handwritten import new_output
from keras.src.backend.tinygrad.engine.handwritten import on_cpu
from keras.src.backend.tinygrad.engine.internals import UOp

REDUCTIONS = ("add", "update", "max", "min", "mul")


def gather_rows(x, index):
    """Takes rows of a tensor.

    Args:
        x: `Tensor` of shape `(rows, ...)`.
        index: Integer `Tensor` of any shape, of values in `[0, rows)`.

    Returns:
        `Tensor` of shape `index.shape + x.shape[1:]` and the dtype of `x`,
        differentiable in `x`; its gradient adds up repeated rows.

    Raises:
        ValueError: If `x` is a scalar.
        TypeError: If `index` is not of an integer dtype.
    """
    _check(x, index)
    shape = index.shape + x.shape[1:]
    if 0 in shape or 0 in x.shape:
        return Tensor.zeros(*shape, dtype=x.dtype, device=x.device)
    rows, width = x.shape[0], math.prod(x.shape[1:])
    source, flat = x.reshape(rows, width), index.reshape(-1)
    if are_on_cpu(x, index):
        out = _gathered(source, flat)
    else:
        (out,) = custom_vjp(
            [source[flat]],
            [source],
            lambda grads: [_scattered_to_zeros(source, flat, grads[0])],
        )
    return out.reshape(shape)


def scatter_rows(x, index, updates, reduction):
    """Combines rows of a tensor with updates.

    Args:
        x: `Tensor` of shape `(rows, ...)`.
        index: Integer `Tensor` of shape `(n,)`, of values in `[0, rows)`,
            which may repeat.
        updates: `Tensor` of shape `(n,) + x.shape[1:]` and the dtype of `x`.
        reduction: How an update combines with what is there: `"add"`,
            `"mul"`, `"max"`, `"min"`, or `"update"`, where the last update
            of a row stays.

    Returns:
        `Tensor` of the shape and dtype of `x`, differentiable in `x` and
        `updates`. Where several values tie for a maximum or minimum they
        share its gradient.

    Raises:
        ValueError: If `x` is a scalar, the shapes do not match, or the
            reduction is unknown.
        TypeError: If `index` is not of an integer dtype, or `x` and
            `updates` differ in dtype.
    """
    _check(x, index)
    if reduction not in REDUCTIONS:
        raise ValueError(
            f"scatter knows the reductions {REDUCTIONS}. Received: "
            f"reduction={reduction!r}"
        )
    if index.ndim != 1 or updates.shape != index.shape + x.shape[1:]:
        raise ValueError(
            "scatter expects an index of one dimension and, for each of its "
            "entries, an update of a row's shape. Received: x of shape "
            f"{x.shape}, index of shape {index.shape}, updates of shape "
            f"{updates.shape}"
        )
    if x.dtype != updates.dtype:
        raise TypeError(
            "scatter expects updates of the dtype of what they update. "
            f"Received: {x.dtype} and {updates.dtype}"
        )
    if 0 in x.shape or 0 in updates.shape:
        return x
    rows, width = x.shape[0], math.prod(x.shape[1:])
    target = x.reshape(rows, width)
    values = updates.reshape(-1, width)
    if are_on_cpu(x, index, updates):
        out = _scattered(target, index, values, reduction)
    else:
        result = _masked(target, index, values, reduction)
        (out,) = custom_vjp(
            [result],
            [target, values],
            lambda grads: _scatter_vjp(
                reduction, target, index, values, result, grads[0]
            ),
        )
    return out.reshape(x.shape)


def _check(x, index):
    if not x.shape:
        raise ValueError("Rows of a scalar cannot be indexed.")
    if not dtypes.is_int(index.dtype):
        raise TypeError(
            f"An index must be of an integer dtype. Received: {index.dtype}"
        )


def _scattered_to_zeros(x, index, updates):
    return scatter_rows(x.const_like(0), index, updates, "add")


def _scatter_vjp(reduction, x, index, updates, out, g):
    """Returns the cotangents of `x` and `updates`, of `(rows, width)` each."""
    if reduction == "add":
        return g, gather_rows(g, index)
    if reduction == "update":
        order = Tensor.arange(index.shape[0], dtype=dtypes.int32)
        order = order.reshape(-1, 1)
        last = Tensor.full(
            (x.shape[0], 1), -1, dtype=dtypes.int32, device=x.device
        )
        last = scatter_rows(last, index, order, "update")
        stays = gather_rows(last, index).eq(order)
        return (
            (last < 0).where(g, 0),
            stays.where(gather_rows(g, index), 0),
        )
    if reduction == "mul":
        # The product of the others, where one factor, or several, are zero.
        x_zero, update_zero = x.eq(0), updates.eq(0)
        zeros = scatter_rows(
            x_zero.cast(dtypes.int32),
            index,
            update_zero.cast(dtypes.int32),
            "add",
        )
        rest = scatter_rows(
            x_zero.where(1, x), index, update_zero.where(1, updates), "mul"
        )
        alone = zeros.eq(1).where(g * rest, 0)
        none = zeros.eq(0).where(g * rest, 0)
        return (
            x_zero.where(alone, none / x_zero.where(1, x)),
            update_zero.where(
                gather_rows(alone, index),
                gather_rows(none, index) / update_zero.where(1, updates),
            ),
        )
    x_wins = x.eq(out)
    update_wins = updates.eq(gather_rows(out, index))
    winners = scatter_rows(
        x_wins.cast(g.dtype), index, update_wins.cast(g.dtype), "add"
    )
    share = g / winners
    return x_wins.where(share, 0), update_wins.where(
        gather_rows(share, index), 0
    )


# Kernels of the CPU.


def _gathered(x, index):
    count, (rows, width) = index.shape[0], x.shape
    out = new_output(count * width, x.dtype)

    def gradient(cotangent, call):
        _, _, places, _ = call.src[1:]
        g = Tensor(cotangent).reshape(count, width)
        g = _scattered_to_zeros(x, Tensor(places), g)
        return None, g.reshape(-1).uop, None, None

    call = _gather_kernel(x.dtype, index.dtype).call(
        out.uop,
        on_cpu(x).reshape(-1).uop,
        on_cpu(index).uop,
        constant_sizes(count, rows, width).uop,
        grad_fxn=gradient,
    )
    return Tensor(out.uop.after(call)).reshape(count, width)


def _scattered(x, index, updates, reduction):
    rows, width = x.shape
    count = index.shape[0]
    out = new_output(rows * width, x.dtype)

    def gradient(cotangent, call):
        result, before, places, values, _ = call.src[1:]
        grads = _scatter_vjp(
            reduction,
            Tensor(before).reshape(rows, width),
            Tensor(places),
            Tensor(values).reshape(count, width),
            Tensor(result.after(call)).reshape(rows, width),
            Tensor(cotangent).reshape(rows, width),
        )
        to_x, to_updates = [g.cast(x.dtype).reshape(-1).uop for g in grads]
        return None, to_x, None, to_updates, None

    call = _scatter_kernel(x.dtype, index.dtype, reduction).call(
        out.uop,
        on_cpu(x).reshape(-1).uop,
        on_cpu(index).uop,
        on_cpu(updates).reshape(-1).uop,
        constant_sizes(count, rows, width).uop,
        grad_fxn=gradient,
    )
    return Tensor(out.uop.after(call)).reshape(rows, width)


@functools.cache
def _gather_kernel(dtype, index_dtype):
    out, x = [UOp.placeholder((1,), dtype, slot) for slot in (0, 1)]
    index = UOp.placeholder((1,), index_dtype, 2)
    count, rows, width = _loaded_sizes(3)
    i = UOp.range(count, 0, dtype=dtypes.int64)
    row = _row(index, i, rows)
    j = UOp.range(width, 1, dtype=dtypes.int64)
    store = out[i * width + j].store(x[row * width + j].load())
    name = f"gather_{dtype}_{index_dtype}"
    return kernel(store.end(j).end(i), name, lambda words: 0)


@functools.cache
def _scatter_kernel(dtype, index_dtype, reduction):
    out, x = [UOp.placeholder((1,), dtype, slot) for slot in (0, 1)]
    index = UOp.placeholder((1,), index_dtype, 2)
    updates = UOp.placeholder((1,), dtype, 3)
    count, rows, width = _loaded_sizes(4)
    k = UOp.range(rows * width, 0, dtype=dtypes.int64)
    copied = out[k].store(x[k].load()).end(k)
    i = UOp.range(count, 1, dtype=dtypes.int64)
    row = _row(index, i, rows)
    j = UOp.range(width, 2, dtype=dtypes.int64)
    place = out.after(copied)[row * width + j]
    update = updates[i * width + j].load()
    store = place.store(_combined(place.load(), update, reduction))
    name = f"scatter_{reduction}_{dtype}_{index_dtype}"
    moves = reduction == "update"
    return kernel(
        store.end(j).end(i),
        name,
        lambda words: 0 if moves else words[0] * words[2],
    )


def _loaded_sizes(slot):
    words = UOp.placeholder((3,), dtypes.int64, slot)
    return [words[i].load() for i in range(3)]


def _row(index, position, rows):
    # Out of range is the caller's fault, but must not reach other memory.
    row = index[position].load().cast(dtypes.int64)
    row = (row < 0).where(UOp.const(0, dtypes.int64), row)
    return (row < rows).where(row, rows - 1)


def _combined(value, update, reduction):
    if reduction == "add":
        return value + update
    if reduction == "mul":
        return value * update
    if reduction == "update":
        return update
    wins = value < update if reduction == "max" else update < value
    # NaN, which compares as false, stays once it is there.
    return (wins | update.ne(update)).where(update, value)


# Other devices.


def _masked(x, index, updates, reduction):
    """Scatters by comparing each row with each entry of the index."""
    rows = Tensor.arange(x.shape[0], dtype=index.dtype)
    hit = rows.reshape(-1, 1).eq(index.reshape(1, -1))
    if reduction == "update":
        order = Tensor.arange(index.shape[0], dtype=dtypes.int32)
        last = hit.where(order, -1).max(axis=1)
        return (last < 0).reshape(-1, 1).where(x, updates[last.maximum(0)])
    hit = hit.reshape(*hit.shape, 1)
    if reduction == "add":
        return x + hit.where(updates, 0).sum(axis=1, dtype=x.dtype)
    if reduction == "mul":
        return x * hit.where(updates, 1).prod(axis=1)
    if reduction == "max":
        return x.maximum(hit.where(updates, x.dtype.min).max(axis=1))
    return x.minimum(hit.where(updates, x.dtype.max).min(axis=1))
