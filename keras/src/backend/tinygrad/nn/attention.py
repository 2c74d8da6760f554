"""Scaled dot-product attention."""

import math

from tinygrad import Tensor

from keras.src.backend.common.dtypes import result_type
from keras.src.backend.tinygrad.core import cast
from keras.src.backend.tinygrad.core import convert_to_tensor
from keras.src.backend.tinygrad.engine.gemm import matmul
from keras.src.backend.tinygrad.engine.gradient import custom_vjp
from keras.src.backend.tinygrad.nn.activations import softmax
from keras.src.backend.tinygrad.nn.activations import widen

# Flash attention holds the weights of so many keys at a time.
BLOCK_SIZE = 512
# In place of a masked logit. Finite, so that a query without any key gets a
# mean of all values, and not NaN.
MASKED = -0.7 * 3.4028234e38


def dot_product_attention(
    query,
    key,
    value,
    bias=None,
    mask=None,
    scale=None,
    is_causal=False,
    flash_attention=None,
    attn_logits_soft_cap=None,
):
    if attn_logits_soft_cap is not None:
        raise NotImplementedError(
            "`attn_logits_soft_cap` is not supported by "
            "`dot_product_attention` in the tinygrad backend. Pass `None`."
        )
    query = convert_to_tensor(query)
    key = convert_to_tensor(key)
    value = convert_to_tensor(value)
    if query.ndim != 4 or key.ndim != 4 or value.ndim != 4:
        raise ValueError(
            "`dot_product_attention` only supports 4D inputs. "
            f"Received: query.shape={query.shape}, key.shape={key.shape}, "
            f"value.shape={value.shape}."
        )
    dtype = result_type(query.dtype, key.dtype, value.dtype, float)
    batch, length, heads, size = query.shape
    key_length, key_heads = key.shape[1:3]
    if not key_heads or heads % key_heads:
        raise ValueError(
            "The number of query heads must be a multiple of the number of "
            f"key heads. Received: query.shape={query.shape}, "
            f"key.shape={key.shape}"
        )
    # To (batch, key heads, queries of a head, length, size).
    group = heads // key_heads
    scale = 1 / math.sqrt(size) if scale is None else scale
    # Scaled before the product: after it, float16 may have overflowed.
    query = (cast(query, dtype) * scale).permute(0, 2, 1, 3)
    query = query.reshape(batch, key_heads, group, length, size)
    key = cast(key, dtype).permute(0, 2, 1, 3).unsqueeze(2)
    value = cast(value, dtype).permute(0, 2, 1, 3).unsqueeze(2)

    def grouped(x):
        x = x.reshape((1,) * (4 - x.ndim) + x.shape)
        if x.shape[1] == 1:
            return x.unsqueeze(2)
        return x.reshape(x.shape[0], key_heads, group, *x.shape[2:])

    if bias is not None:
        bias = grouped(convert_to_tensor(bias, dtype=dtype))
    if mask is not None:
        mask = grouped(convert_to_tensor(mask, dtype="bool"))
    if is_causal:
        rows = Tensor.arange(length).reshape(length, 1)
        causal = Tensor.arange(key_length).reshape(1, key_length) <= rows
        mask = causal if mask is None else mask & causal
    if flash_attention:
        result = _flash(query, key, value, bias, mask)
    else:
        weights = softmax(_logits(query, key, bias, mask)).cast(query.dtype)
        result = matmul(weights, value)
    result = result.reshape(batch, heads, length, value.shape[-1])
    return result.permute(0, 2, 1, 3)


def _logits(query, key, bias, mask):
    logits = widen(matmul(query, key.transpose(-1, -2)))
    if bias is not None:
        logits = logits + bias
    if mask is not None:
        logits = mask.where(logits, MASKED)
    return logits


def _flash(query, key, value, bias, mask):
    """Attends to a block of keys at a time, and recomputes in the gradient.

    Dao et al., FlashAttention (2022): neither pass holds a weight for each
    pair of query and key.

    Args:
        query: `Tensor` of shape `(..., length, size)`, scaled.
        key: `Tensor` of shape `(..., keys, size)`.
        value: `Tensor` of shape `(..., keys, value size)`.
        bias: `Tensor` that broadcasts to `(..., length, keys)`, or `None`.
        mask: The same of booleans: which pairs count.

    Returns:
        `Tensor` of shape `(..., length, value size)`.
    """
    leading, length, count = query.shape[:-2], query.shape[-2], key.shape[-2]
    # In full shape, so that gradients are sums outside of this function.
    key = key.expand(*leading, *key.shape[-2:])
    value = value.expand(*leading, *value.shape[-2:])
    pairs = (*leading, length, count)
    inputs = [query, key, value]
    if bias is not None:
        bias = bias.expand(pairs)
        inputs.append(bias)
    if mask is not None:
        mask = mask.expand(pairs)
    blocks = [
        slice(start, min(start + BLOCK_SIZE, count))
        for start in range(0, count, BLOCK_SIZE)
    ]

    def block_logits(block):
        return _logits(
            query,
            key[..., block, :],
            None if bias is None else bias[..., block],
            None if mask is None else mask[..., block],
        )

    largest = total = result = None
    for block in blocks:
        logits = block_logits(block)
        top = logits.max(-1, keepdim=True)
        top = top if largest is None else top.maximum(largest)
        weights = (logits - top).exp()
        # In float32, as the sum it is divided by: float16 would round twice.
        part = matmul(weights, widen(value[..., block, :]))
        part_total = weights.sum(-1, keepdim=True)
        if largest is not None:
            fade = (largest - top).exp()
            part = part + result * fade
            part_total = part_total + total * fade
        # Kept: later blocks would compute earlier ones again.
        largest, total = top.contiguous(), part_total.contiguous()
        result = part.contiguous()
    result = result / total

    def vjp(grads):
        grad = grads[0]
        projection = (widen(grad) * result).sum(-1, keepdim=True)
        to_query = None
        to_key, to_value, to_bias = [], [], []
        for block in blocks:
            weights = (block_logits(block) - largest).exp() / total
            weights = weights.contiguous()
            slope = widen(matmul(grad, value[..., block, :].transpose(-1, -2)))
            slope = weights * (slope - projection)
            if mask is not None:
                slope = mask[..., block].where(slope, 0)
            slope = slope.cast(query.dtype).contiguous()
            part = matmul(slope, key[..., block, :])
            to_query = part if to_query is None else to_query + part
            to_key.append(matmul(slope.transpose(-1, -2), query))
            weights = weights.cast(value.dtype)
            to_value.append(matmul(weights.transpose(-1, -2), grad))
            to_bias.append(slope)
        joined = [
            to_query,
            to_key[0].cat(*to_key[1:], dim=-2),
            to_value[0].cat(*to_value[1:], dim=-2),
            to_bias[0].cat(*to_bias[1:], dim=-1),
        ]
        return joined[: len(inputs)]

    return custom_vjp([result.cast(query.dtype)], inputs, vjp)[0]
