"""Cross-entropies, class encodings and signal-to-noise ratio."""

from tinygrad import Tensor
from tinygrad import dtypes

from keras.src.backend.config import epsilon
from keras.src.backend.config import floatx
from keras.src.backend.tinygrad.core import convert_to_tensor
from keras.src.backend.tinygrad.core import to_tinygrad_dtype
from keras.src.backend.tinygrad.nn.activations import log_softmax
from keras.src.backend.tinygrad.nn.activations import to_float_tensor
from keras.src.backend.tinygrad.nn.activations import widen
from keras.src.backend.tinygrad.numpy.common import canonicalize_axis
from keras.src.backend.tinygrad.numpy.common import to_int
from keras.src.backend.tinygrad.numpy.transcendental import log1p


def one_hot(x, num_classes, axis=-1, dtype=None, sparse=False):
    if sparse:
        raise ValueError(
            "Unsupported value `sparse=True` with tinygrad backend"
        )
    x = convert_to_tensor(x)
    axis = canonicalize_axis(axis, x.ndim + 1)
    num_classes = to_int("num_classes", num_classes, 0)
    mask = _class_mask(x.unsqueeze(axis), num_classes, axis)
    return mask.cast(to_tinygrad_dtype(dtype or floatx()))


def _class_mask(labels, num_classes, axis):
    """Compares labels with the class numbers along an axis of size one."""
    if not dtypes.is_int(labels.dtype) or labels.dtype.itemsize < 4:
        labels = labels.cast(dtypes.int32)
    shape = [1] * labels.ndim
    shape[axis] = num_classes
    classes = Tensor.arange(num_classes, dtype=labels.dtype).reshape(shape)
    return labels == classes


def multi_hot(x, num_classes, axis=-1, dtype=None, sparse=False):
    x = convert_to_tensor(x)
    reduction_axis = 1 if x.ndim > 1 else 0
    encoded = one_hot(x, num_classes, axis=axis, dtype="bool", sparse=sparse)
    return encoded.any(reduction_axis).cast(
        to_tinygrad_dtype(dtype or floatx())
    )


def categorical_crossentropy(target, output, from_logits=False, axis=-1):
    output = to_float_tensor(output, "categorical_crossentropy")
    target = convert_to_tensor(target, dtype=output.dtype)
    _check_same_shape(target, output)
    if output.ndim < 1:
        raise ValueError(
            "Arguments `target` and `output` must be at least rank 1. "
            "Received: "
            f"target.shape={target.shape}, output.shape={output.shape}"
        )
    log_prob = _log_probability(output, from_logits, axis)
    return -(target * log_prob).sum(axis)


def sparse_categorical_crossentropy(target, output, from_logits=False, axis=-1):
    target = convert_to_tensor(target, dtype="int32")
    output = to_float_tensor(output, "sparse_categorical_crossentropy")
    if output.ndim < 1:
        raise ValueError(
            "Argument `output` must be at least rank 1. "
            "Received: "
            f"output.shape={output.shape}"
        )
    axis = canonicalize_axis(axis, output.ndim)
    if target.ndim == output.ndim and target.shape[axis] == 1:
        target = target.squeeze(axis)
    if target.shape != output.shape[:axis] + output.shape[axis + 1 :]:
        raise ValueError(
            "Arguments `target` and `output` must have the same shape "
            "up until the last dimension: "
            f"target.shape={target.shape}, output.shape={output.shape}"
        )
    log_prob = _log_probability(output, from_logits, axis)
    # tinygrad turns a sum over `classes == label` into one load for each
    # label, and its gradient is elementwise: no one-hot array, no scatter.
    mask = _class_mask(target.unsqueeze(axis), output.shape[axis], axis)
    return -mask.where(log_prob, 0).sum(axis)


def _log_probability(output, from_logits, axis):
    if from_logits:
        return log_softmax(output, axis=axis)
    output = output / output.sum(axis, keepdim=True)
    return output.clip(epsilon(), 1.0 - epsilon()).log()


def _check_same_shape(target, output):
    if target.shape != output.shape:
        raise ValueError(
            "Arguments `target` and `output` must have the same shape. "
            "Received: "
            f"target.shape={target.shape}, output.shape={output.shape}"
        )


def binary_crossentropy(target, output, from_logits=False):
    output = to_float_tensor(output, "binary_crossentropy")
    target = convert_to_tensor(target, dtype=output.dtype)
    _check_same_shape(target, output)
    dtype = output.dtype
    target = widen(target)
    output = widen(output)
    if from_logits:
        # Exact for labels and confident logits alike. At logit 0 `maximum`
        # passes half the gradient each way, which is the derivative.
        loss = (
            target * output.neg().maximum(0)
            + (1 - target) * output.maximum(0)
            + log1p(output.abs().neg().exp())
        )
    else:
        output = output.clip(epsilon(), 1.0 - epsilon())
        loss = -(target * output.log() + (1 - target) * (1 - output).log())
    return loss.cast(dtype)


def psnr(x1, x2, max_val):
    x1 = convert_to_tensor(x1)
    x2 = convert_to_tensor(x2)
    if x1.shape != x2.shape:
        raise ValueError(
            f"Input shapes {x1.shape} and {x2.shape} must "
            "match for PSNR calculation. "
        )
    # Differences of unsigned integers would wrap around.
    error = (to_float_tensor(x1) - to_float_tensor(x2)).square().mean()
    max_val = convert_to_tensor(max_val, error.dtype)
    return 20 * max_val.log10() - 10 * error.log10()
