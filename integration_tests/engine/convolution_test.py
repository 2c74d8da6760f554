"""Convolutions against tinygrad's own, their gradients too."""

import numpy as np
import pytest

from keras.src.backend.tinygrad.engine import convolution as module
from keras.src.backend.tinygrad.engine.convolution import convolution
from keras.src.backend.tinygrad.engine.transfer import from_numpy
from keras.src.backend.tinygrad.engine.transfer import to_numpy

RNG = np.random.default_rng(0)

# (input, kernel, strides, padding, dilation, groups)
CASES = {
    "1d": ((3, 9, 4), (3, 4, 5), (1,), [(1, 1)], (1,), 1),
    "1d causal dilated": ((2, 9, 4), (3, 4, 5), (1,), [(4, 0)], (2,), 1),
    "1d strided": ((2, 10, 4), (3, 4, 5), (2,), [(0, 1)], (1,), 1),
    "2d": ((3, 7, 8, 4), (3, 2, 4, 5), (1, 1), [(0, 0)] * 2, (1, 1), 1),
    "2d same": ((3, 7, 8, 4), (3, 3, 4, 5), (1, 1), [(1, 1)] * 2, (1, 1), 1),
    "2d strided": (
        (3, 9, 8, 4),
        (3, 3, 4, 5),
        (2, 3),
        [(0, 1), (1, 1)],
        (1, 1),
        1,
    ),
    "2d dilated": ((2, 9, 8, 3), (3, 2, 3, 5), (1, 1), [(1, 1)] * 2, (2, 3), 1),
    "one channel": (
        (2, 9, 8, 1),
        (3, 3, 1, 4),
        (1, 1),
        [(0, 0)] * 2,
        (1, 1),
        1,
    ),
    "one filter": ((2, 9, 8, 3), (3, 3, 3, 1), (1, 1), [(0, 0)] * 2, (1, 1), 1),
    "pointwise": ((2, 5, 4, 3), (1, 1, 3, 6), (1, 1), [(0, 0)] * 2, (1, 1), 1),
    "pointwise strided": (
        (2, 5, 4, 3),
        (1, 1, 3, 6),
        (2, 2),
        [(0, 0)] * 2,
        (1, 1),
        1,
    ),
    "whole window": (
        (3, 4, 5, 2),
        (4, 5, 2, 6),
        (1, 1),
        [(0, 0)] * 2,
        (1, 1),
        1,
    ),
    "groups": ((2, 7, 6, 6), (3, 3, 2, 9), (1, 1), [(1, 1)] * 2, (1, 1), 3),
    "groups strided dilated": (
        (2, 9, 8, 4),
        (2, 3, 2, 6),
        (2, 1),
        [(0, 1), (2, 2)],
        (1, 2),
        2,
    ),
    "depthwise": ((2, 7, 6, 5), (3, 3, 1, 5), (1, 1), [(1, 1)] * 2, (1, 1), 5),
    "depthwise multiplied": (
        (2, 7, 6, 3),
        (3, 2, 1, 6),
        (2, 1),
        [(0, 0), (1, 0)],
        (1, 2),
        3,
    ),
    "depthwise, many channels": (
        (2, 6, 5, 70),
        (3, 3, 1, 70),
        (1, 1),
        [(1, 1)] * 2,
        (1, 1),
        70,
    ),
    "depthwise, many channels, strided": (
        (2, 6, 5, 40),
        (3, 2, 1, 80),
        (2, 1),
        [(1, 1)] * 2,
        (1, 2),
        40,
    ),
    "3d": (
        (2, 5, 4, 6, 3),
        (2, 3, 2, 3, 4),
        (1, 1, 2),
        [(0, 1)] * 3,
        (1,) * 3,
        1,
    ),
    "3d depthwise": (
        (2, 5, 4, 6, 3),
        (2, 3, 2, 1, 3),
        (1, 2, 1),
        [(1, 0)] * 3,
        (2, 1, 1),
        3,
    ),
    "one output": ((1, 3, 3, 2), (3, 3, 2, 4), (1, 1), [(0, 0)] * 2, (1, 1), 1),
}


def normal(*shape, dtype="float64"):
    return RNG.normal(size=shape).astype(dtype)


def reference(x, kernel, strides, padding, dilation, groups):
    x = x.pad(((0, 0), *padding, (0, 0)))
    return module._by_tinygrad(x, kernel, strides, dilation, groups)


@pytest.mark.parametrize("block_bytes", [module.BLOCK_BYTES, 2000])
@pytest.mark.parametrize("case", CASES)
def test_values_and_gradients(case, block_bytes, monkeypatch):
    x_shape, kernel_shape, *settings = CASES[case]
    monkeypatch.setattr(module, "BLOCK_BYTES", block_bytes)
    module._words.cache_clear()
    x = from_numpy(normal(*x_shape), "CPU")
    kernel = from_numpy(normal(*kernel_shape), "CPU")
    out = convolution(x, kernel, *settings)
    want = reference(x, kernel, *settings)
    assert out.shape == want.shape
    cotangent = from_numpy(normal(*want.shape), "CPU")
    got_grads = (out * cotangent).sum().gradient(x, kernel)
    want_grads = (want * cotangent).sum().gradient(x, kernel)
    np.testing.assert_allclose(
        to_numpy(out), to_numpy(want), rtol=1e-11, atol=1e-11
    )
    for got, wanted in zip(got_grads, want_grads):
        np.testing.assert_allclose(
            to_numpy(got), to_numpy(wanted), rtol=1e-11, atol=1e-11
        )
    module._words.cache_clear()


@pytest.mark.parametrize("case", ["2d strided", "groups", "depthwise"])
def test_second_derivatives(case):
    x_shape, kernel_shape, *settings = CASES[case]
    x = from_numpy(normal(*x_shape), "CPU")
    kernel = from_numpy(normal(*kernel_shape), "CPU")

    def second(function):
        first = (function(x, kernel, *settings) ** 2).sum()
        to_x, to_kernel = first.gradient(x, kernel)
        loss = (to_x**2).sum() + (to_kernel**2).sum()
        return [to_numpy(g) for g in loss.gradient(x, kernel)]

    for got, want in zip(second(convolution), second(reference)):
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_dtypes(dtype):
    x, kernel = normal(2, 7, 6, 4), normal(3, 3, 4, 5)
    rounded = [a.astype(dtype).astype("float64") for a in (x, kernel)]
    settings = ((1, 1), [(1, 1)] * 2, (1, 1), 1)
    got = convolution(
        *[from_numpy(a.astype(dtype), "CPU") for a in (x, kernel)], *settings
    )
    want = reference(*[from_numpy(a, "CPU") for a in rounded], *settings)
    got, want = to_numpy(got), to_numpy(want)
    assert got.dtype == np.dtype(dtype)
    tolerance = {"float16": 1e-3, "bfloat16": 1e-2, "float32": 1e-5}[dtype]
    np.testing.assert_allclose(
        got.astype("float64"),
        want,
        rtol=tolerance,
        atol=tolerance * np.abs(want).max(),
    )


def test_integers():
    x = RNG.integers(-5, 5, (2, 6, 5, 3)).astype("int32")
    kernel = RNG.integers(-5, 5, (2, 2, 3, 4)).astype("int32")
    settings = ((1, 1), [(0, 0)] * 2, (1, 1), 1)
    got = convolution(*[from_numpy(a, "CPU") for a in (x, kernel)], *settings)
    want = convolution(
        *[from_numpy(a.astype("float64"), "CPU") for a in (x, kernel)],
        *settings,
    )
    assert to_numpy(got).dtype == np.int32
    np.testing.assert_array_equal(to_numpy(got), np.rint(to_numpy(want)))


def test_computed_operands():
    x, kernel = normal(2, 6, 5, 3), normal(3, 3, 3, 4)
    settings = ((1, 1), [(1, 1)] * 2, (1, 1), 1)
    t = from_numpy(x.transpose(0, 3, 1, 2).copy(), "CPU")
    k = from_numpy(kernel, "CPU")
    out = convolution((t * 2).relu().permute(0, 2, 3, 1), k + 1, *settings)
    g = out.sum().gradient(t)[0]
    want = reference((t * 2).relu().permute(0, 2, 3, 1), k + 1, *settings)
    want_g = want.sum().gradient(t)[0]
    np.testing.assert_allclose(to_numpy(out), to_numpy(want), rtol=1e-11)
    np.testing.assert_allclose(
        to_numpy(g), to_numpy(want_g), rtol=1e-11, atol=1e-11
    )


@pytest.mark.parametrize("case", ["2d same", "depthwise", "1d strided"])
def test_another_device(case):
    x_shape, kernel_shape, *settings = CASES[case]
    x = normal(*x_shape, dtype="float32")
    kernel = normal(*kernel_shape, dtype="float32")
    there = convolution(
        *[from_numpy(a, "PYTHON") for a in (x, kernel)], *settings
    )
    here = convolution(*[from_numpy(a, "CPU") for a in (x, kernel)], *settings)
    assert there.device == "PYTHON"
    np.testing.assert_allclose(
        to_numpy(there), to_numpy(here), rtol=1e-5, atol=1e-5
    )


def test_one_program_for_all_shapes():
    keys = set()
    for case in ("1d", "2d strided", "3d"):
        x_shape, kernel_shape, *settings = CASES[case]
        x = from_numpy(normal(*x_shape), "CPU")
        kernel = from_numpy(normal(*kernel_shape), "CPU")
        linear = convolution(x, kernel, *settings).schedule_linear()
        keys.add(linear.src[-1].src[0].key)
    assert len(keys) == 1


def test_patches_stay_small():
    x = from_numpy(normal(64, 34, 34, 16, dtype="float32"), "CPU")
    kernel = from_numpy(normal(3, 3, 16, 8, dtype="float32"), "CPU")
    settings = ((1, 1), [(0, 0)] * 2, (1, 1), 1)
    out = convolution(x, kernel, *settings)
    for tensor in (out, *out.sum().gradient(x, kernel)):
        calls = tensor.schedule_linear().src
        largest = max(b.max_numel() * 4 for call in calls for b in call.src[1:])
        assert largest <= 64 * 34 * 34 * 16 * 4


@pytest.mark.parametrize(
    "x, kernel, groups",
    [((2, 5, 5, 3), (3, 3, 2, 4), 1), ((2, 5, 5, 4), (3, 3, 2, 3), 2)],
)
def test_errors(x, kernel, groups):
    with pytest.raises(ValueError, match="multiple of groups"):
        convolution(
            from_numpy(normal(*x), "CPU"),
            from_numpy(normal(*kernel), "CPU"),
            (1, 1),
            [(0, 0)] * 2,
            (1, 1),
            groups,
        )
