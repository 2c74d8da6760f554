"""Bad arguments for each op of the table, made from its good ones.

One argument at a time is replaced by each of the values that do not belong
there; what the torch and jax backends say to that is in the record.
"""

import zlib

import numpy as np

from integration_tests.ops.op_table import TABLE
from integration_tests.ops.op_table import Draw

# The label of the arguments that the others are made from.
GOOD = "good"

# What is right although other backends say otherwise, and why.
OTHER_ERRORS = {
    ("conv_transpose", "dilation_rate text"): "Keras' own check, as in conv",
    ("conv_transpose", "dilation_rate fraction"): "Keras' own check",
    ("conv_transpose", "dilation_rate object"): "Keras' own check",
    ("depthwise_conv", "0 bool"): "zeros and ones, as in conv on jax",
    ("separable_conv", "0 bool"): "zeros and ones, as in conv on jax",
    ("conv_transpose", "0 bool"): "zeros and ones, as in conv on jax",
    ("quantile", "0 empty"): "NaN, as the median of nothing is",
    ("percentile", "0 empty"): "NaN, as the median of nothing is",
    ("nanquantile", "0 empty"): "NaN, as the median of nothing is",
    **{
        (name, "1 text"): "not a number of sections: a TypeError, as elsewhere"
        for name in ("split", "hsplit", "vsplit", "dsplit")
    },
    **{
        (name, f"0 {label}"): "what convert_to_tensor raises for it"
        for name in ("real", "conj", "conjugate")
        for label in ("object", "text", "texts")
    },
    **{
        ("rearrange", f"0 {label}"): "raised by Keras' own einops"
        for label in ("object", "text", "texts", "ragged", "rank 0")
    },
    **{
        ("image.ssim", f"filter_size {label}"): "what arange raises for it"
        for label in ("text", "object")
    },
    ("multi_hot", "0 empty"): "an empty batch has an empty result",
}


class Unknown:
    """An object that is no tensor and cannot become one."""

    def __repr__(self):
        return "Unknown()"


def cases():
    """Yields `(label, name, args, kwargs)` for the first row of each op."""
    seen = set()
    for op in TABLE:
        if op.name in seen or not op.dtypes:
            continue
        seen.add(op.name)
        dtype = op.dtypes[0]
        seed = zlib.crc32(f"{op.name} bad".encode())
        args, kwargs = op.draw(Draw(seed, dtype))
        yield GOOD, op.name, args, kwargs
        good = {**dict(enumerate(args)), **kwargs}
        for key, value in good.items():
            for label, bad in _bad(key, value, args):
                changed = {**good, key: bad}
                yield (
                    f"{key} {label}",
                    op.name,
                    tuple(changed[i] for i in range(len(args))),
                    {k: changed[k] for k in kwargs},
                )


def _bad(key, value, args):
    """Yields pairs of a label and a value that replaces `value`."""
    if isinstance(value, np.ndarray):
        yield from _bad_arrays(value)
    elif isinstance(value, list) and isinstance(value[0], np.ndarray):
        yield "empty list", []
        yield "object", [*value, Unknown()]
        yield "other rank", [*value, np.ones((1,) * 7, "float32")]
    elif key in ("axis", "axes"):
        rank = np.ndim(args[0])
        yield "too large", rank + 3
        yield "too small", -rank - 3
        yield "twice", (0, 0)
        yield "text", "last"
        yield "fraction", 0.5
    elif isinstance(value, bool) or value is None:
        return
    elif callable(value):
        yield "number", 3
    elif isinstance(value, str):
        yield "unknown", "unknown"
        yield "number", 3
    elif isinstance(value, int):
        yield "negative", -7
        yield "text", "several"
        yield "fraction", 1.5
        yield "object", Unknown()
    elif isinstance(value, tuple) and value:
        yield "too long", (*value, *value, *value)
        yield "text", "several"
        if isinstance(value[0], int):
            yield "negative", tuple(-7 for _ in value)


def _bad_arrays(array):
    yield "object", Unknown()
    yield "text", "tensor"
    yield "texts", np.array(["a", "b"])
    yield "ragged", [[1.0, 2.0], [3.0]]
    yield "rank 0", np.ones((), array.dtype)
    yield "rank 6", array.reshape((1,) * (6 - array.ndim) + array.shape)
    yield "shape", np.ones((7, 11), array.dtype)
    yield "longer", np.ones([n + 1 for n in array.shape], array.dtype)
    yield "empty", np.ones([0 for _ in array.shape] or [0], array.dtype)
    if array.dtype.kind == "f":
        yield "bool", array > 0
        yield "complex", array.astype("complex64")
    else:
        yield "float", array.astype("float32") + np.float32(0.5)
