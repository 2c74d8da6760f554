"""The same training on other devices: tinygrad's own, and OpenCL if there.

`pocl` runs OpenCL on the CPU. With `DEV=CL`, or another of tinygrad's names
of devices, before it, any test here runs on that device.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tinygrad import Device

import keras
from keras.src.backend.tinygrad import core

REPOSITORY = Path(__file__).resolve().parents[2]
DEVICES = ["PYTHON", "CL"]

SCRIPT = """
import json
import sys

import numpy as np
import keras
from keras import layers
from keras import ops
from tinygrad import Device

assert Device.DEFAULT == sys.argv[1], Device.DEFAULT
rng = np.random.default_rng(0)
x = rng.normal(size=(6, 4, 4, 1)).astype("float32")
ids = rng.integers(1, 5, (6, 4))
y = x.sum(axis=(1, 2)) * 0.2

def attention():
    inputs = keras.Input((4,), dtype="int32")
    h = layers.Embedding(5, 4)(inputs)
    h = layers.LayerNormalization()(h + layers.MultiHeadAttention(2, 2)(h, h))
    h = layers.GlobalAveragePooling1D()(h)
    return keras.Model(inputs, layers.Dense(1)(h))

MODELS = {
    "mlp": lambda: (keras.Sequential([
        keras.Input((4, 4, 1)), layers.Flatten(),
        layers.Dense(3, activation="tanh"), layers.Dropout(0.3, seed=1),
        layers.Dense(1),
    ]), x),
    "cnn": lambda: (keras.Sequential([
        keras.Input((4, 4, 1)), layers.Conv2D(2, 3, activation="relu"),
        layers.BatchNormalization(), layers.MaxPooling2D(),
        layers.Flatten(), layers.Dense(1),
    ]), x),
    "lstm": lambda: (keras.Sequential([
        keras.Input((4,), dtype="int32"), layers.Embedding(5, 2),
        layers.LSTM(2), layers.Dense(1),
    ]), ids),
    "attention": lambda: (attention(), ids),
}

def ops_slice():
    a, b = ops.convert_to_tensor(x[:3, :, :, 0]), ops.convert_to_tensor(y)
    return [
        ops.softmax(a), ops.matmul(a, ops.swapaxes(a, 1, 2)),
        ops.sort(a, axis=1), ops.argsort(a), ops.cumsum(a, axis=2),
        ops.top_k(a, 2)[0], ops.take(b, [2, 0, 2], axis=0),
        ops.segment_sum(b, ops.convert_to_tensor([0, 1, 1, 0, 2, 2]), 3),
        ops.linalg.inv(a + 3 * ops.eye(4)), ops.linalg.svd(a)[1],
        ops.mean(a, axis=(0, 2)), ops.var(a), ops.logsumexp(a, axis=0),
        ops.slice_update(a, (0, 1, 1), a[:1, :2, :2]),
        ops.scatter(ops.convert_to_tensor([[0], [2]]), b[:2], (4, 1)),
        ops.conv(x, np.ones((2, 2, 1, 3), "float32"), padding="same"),
        ops.where(a > 0, a, a * 0.1), ops.cast(a, "float16"),
        ops.cast(a * 100, "int32") // 7, ops.fft2((a, a))[0],
        ops.scan(lambda c, v: (c + v, c * v), a[0], a)[1],
        keras.random.uniform((3,), seed=1),
        keras.random.normal((3,), seed=2),
    ]

results = {"ops": [
    np.asarray(ops.convert_to_numpy(t), "float64").tolist()
    for t in ops_slice()
]}
for name, make in MODELS.items():
    keras.utils.set_random_seed(0)
    model, inputs = make()
    model.compile(keras.optimizers.Adam(0.01), "mse")
    history = model.fit(
        inputs, y, batch_size=4, epochs=2, shuffle=False, verbose=0
    ).history["loss"]
    results[name] = [
        history,
        model.evaluate(inputs, y, batch_size=4, verbose=0),
        model.predict(inputs, batch_size=4, verbose=0).tolist(),
        *[w.tolist() for w in model.get_weights()],
    ]
print(json.dumps(results))
"""


def opens(device):
    """Whether a device opens here."""
    code = f"from tinygrad import Device; Device[{device!r}]"
    return not _run(code, device).returncode


def _run(code, device, *arguments):
    environment = {
        **os.environ,
        "PYTHONPATH": str(REPOSITORY),
        "DEV": device,
    }
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=1200,
    )


def results_on(device):
    ran = _run(SCRIPT, device, device)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def expected():
    return results_on("CPU")


@pytest.mark.parametrize("device", DEVICES)
def test_a_device_gives_the_numbers_of_the_cpu(device, expected):
    if not opens(device):
        pytest.skip(f"no {device} device here")
    found = results_on(device)
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        assert len(found[name]) == len(values)
        for i, (a, b) in enumerate(zip(found[name], values)):
            np.testing.assert_allclose(
                a, b, rtol=1e-4, atol=1e-5, err_msg=f"{name} {i}"
            )


def test_a_device_that_is_not_there_is_named():
    present = [name.lower() for name in Device.get_available_devices()]
    absent = next(n for n in ("cuda", "amd", "metal") if n not in present)
    before = core.get_device()
    for name in ("foo:0", f"{absent}:0", absent.upper()):
        with pytest.raises(ValueError, match=f"device_name='{name}'") as info:
            with keras.device(name):
                pytest.fail("the scope was entered")
        assert f"as these here: {', '.join(present)}" in str(info.value)
    assert core.get_device() == before
