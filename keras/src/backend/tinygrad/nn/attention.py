"""Scaled dot-product attention."""

import math

from tinygrad import Tensor
from tinygrad import dtypes

from keras.src.backend.common.dtypes import result_type
from keras.src.backend.tinygrad.core import cast
from keras.src.backend.tinygrad.core import convert_to_tensor
from keras.src.backend.tinygrad.engine.gemm import matmul
from keras.src.backend.tinygrad.nn.activations import softmax


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
    if flash_attention:
        raise NotImplementedError(
            "`dot_product_attention` has no flash attention kernel in the "
            "tinygrad backend. Pass `flash_attention=None` or `False`."
        )
    if attn_logits_soft_cap is not None:
        raise NotImplementedError(
            "`attn_logits_soft_cap` is not supported by "
            "`dot_product_attention` in the tinygrad backend."
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
    # (batch, length, heads, size) to (batch, key heads, group, length, size)
    batch, length, heads, size = query.shape
    key_length, key_heads = key.shape[1:3]
    if heads % key_heads:
        raise ValueError(
            "The number of query heads must be a multiple of the number of "
            f"key heads. Received: query.shape={query.shape}, "
            f"key.shape={key.shape}"
        )
    group = heads // key_heads
    query = cast(query, dtype).permute(0, 2, 1, 3)
    query = query.reshape(batch, key_heads, group, length, size)
    key = cast(key, dtype).permute(0, 2, 3, 1).unsqueeze(2)
    value = cast(value, dtype).permute(0, 2, 1, 3).unsqueeze(2)

    def grouped(x):
        x = x.reshape((1,) * (4 - x.ndim) + x.shape)
        if x.shape[1] == 1:
            return x.unsqueeze(2)
        return x.reshape(x.shape[0], key_heads, group, *x.shape[2:])

    scale = 1 / math.sqrt(size) if scale is None else scale
    # Scaled before the product: in float16 the product may overflow.
    logits = matmul(query * scale, key)
    if logits.dtype != dtypes.float64:
        logits = logits.cast(dtypes.float32)
    if bias is not None:
        logits = logits + grouped(convert_to_tensor(bias, dtype=dtype))
    allowed = None
    if mask is not None:
        allowed = grouped(convert_to_tensor(mask, dtype="bool"))
    if is_causal:
        rows = Tensor.arange(length).reshape(length, 1)
        causal = Tensor.arange(key_length).reshape(1, key_length) <= rows
        allowed = causal if allowed is None else allowed & causal
    if allowed is not None:
        # Finite, so that a row without a key gives no NaN.
        logits = allowed.where(logits, -0.7 * 3.4e38)
    weights = cast(softmax(logits), dtype)
    result = matmul(weights, value)
    result = result.reshape(batch, heads, length, value.shape[-1])
    return result.permute(0, 2, 1, 3)
