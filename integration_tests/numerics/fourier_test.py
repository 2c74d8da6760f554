"""Fourier transforms and sequences: NumPy's values, adjoint gradients."""

import numpy as np
import pytest
import scipy.signal

from integration_tests.numerics.differences import check_gradient
from keras import ops
from keras.src.backend.tinygrad import math

RNG = np.random.default_rng(0)
REAL = RNG.normal(size=(3, 12))
IMAG = RNG.normal(size=(3, 12))


def joined(parts):
    real, imag = [ops.convert_to_numpy(x) for x in parts]
    return real + 1j * imag


@pytest.mark.parametrize("name", ["fft", "fft2", "ifft2"])
def test_complex_transforms(name):
    op = getattr(math, name)
    expected = getattr(np.fft, name)(REAL + 1j * IMAG)
    np.testing.assert_allclose(joined(op((REAL, IMAG))), expected)
    single = op((REAL.astype("float32"), IMAG.astype("float32")))
    assert joined(single).dtype == "complex64"
    np.testing.assert_allclose(joined(single), expected, atol=1e-5)
    check_gradient(lambda a, b: op((a, b)), REAL, IMAG)


@pytest.mark.parametrize("length", [None, 1, 7, 12, 15])
def test_real_transforms(length):
    expected = np.fft.rfft(REAL, length)
    np.testing.assert_allclose(joined(math.rfft(REAL, length)), expected)
    check_gradient(lambda x: math.rfft(x, length), REAL)
    expected = np.fft.irfft(REAL + 1j * IMAG, length)
    y = ops.convert_to_numpy(math.irfft((REAL, IMAG), length))
    np.testing.assert_allclose(y, expected, atol=1e-14)
    check_gradient(lambda a, b: math.irfft((a, b), length), REAL, IMAG)


@pytest.mark.parametrize("window", ["hann", "hamming", np.arange(1.0, 9)])
def test_istft_inverts_stft(window):
    x = RNG.normal(size=(2, 3, 61))
    spectrum = math.stft(x, 8, 2, 16, window=window)
    assert spectrum[0].shape == (2, 3, 31, 9)
    y = ops.convert_to_numpy(math.istft(spectrum, 8, 2, 16, window=window))
    np.testing.assert_allclose(y, x[..., : y.shape[-1]], atol=1e-12)
    assert y.shape[-1] == 60


def test_istft_without_a_window_adds_sequences_up():
    x = RNG.normal(size=(2, 61))
    spectrum = math.stft(x, 8, 2, 16, window=None)
    y = math.istft(spectrum, 8, 2, 16, window=None, length=50)
    # Each sample but the first is in 8 / 2 sequences.
    np.testing.assert_allclose(
        ops.convert_to_numpy(y)[:, 2:], 4 * x[:, 2:50], atol=1e-12
    )


@pytest.mark.filterwarnings("ignore:NOLA")
@pytest.mark.parametrize("center", [False, True])
def test_istft_is_scipys(center):
    z = RNG.normal(size=(2, 9, 17)) + 1j * RNG.normal(size=(2, 9, 17))
    y = math.istft((z.real, z.imag), 32, 8, 32, center=center)
    window = scipy.signal.get_window("hann", 32)
    expected = scipy.signal.istft(
        z,
        window=window,
        nperseg=32,
        noverlap=24,
        boundary=False,
        time_axis=-2,
        freq_axis=-1,
    )[1]
    expected = expected / window.sum()
    if center:
        expected = expected[..., 16:-16]
    np.testing.assert_allclose(ops.convert_to_numpy(y), expected, atol=1e-12)


def test_gradients_of_stft_and_istft():
    check_gradient(lambda x: math.stft(x, 6, 3, 8), REAL)
    real, imag = math.stft(RNG.normal(size=(2, 40)), 8, 2, 16)
    check_gradient(
        lambda a, b: math.istft((a, b), 8, 2, 16),
        ops.convert_to_numpy(real),
        ops.convert_to_numpy(imag),
    )


def test_extract_sequences_gradient():
    check_gradient(lambda x: math.extract_sequences(x, 5, 2), REAL)


@pytest.mark.parametrize(
    "count, length, stride", [(5, 8, 3), (3, 4, 4), (1, 7, 2)]
)
def test_overlap_add(count, length, stride):
    x = RNG.normal(size=(2, count, length))
    expected = np.zeros((2, stride * (count - 1) + length))
    for i in range(count):
        expected[:, i * stride : i * stride + length] += x[:, i]
    y = math._overlap_add(ops.convert_to_tensor(x), stride)
    np.testing.assert_allclose(ops.convert_to_numpy(y), expected)
