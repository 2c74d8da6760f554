"""Training beside other processes and threads: right numbers, clean exits."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]

MODEL = """
import sys
import threading

import numpy as np
import keras
from keras import layers

def images(rng, count):
    return rng.normal(size=(count, 8, 8, 1)).astype("float32")

def make():
    keras.utils.set_random_seed(0)
    model = keras.Sequential([
        keras.Input((8, 8, 1)),
        layers.Conv2D(4, 3, activation="relu"),
        layers.Flatten(),
        layers.Dropout(0.2),
        layers.Dense(1),
    ])
    model.compile("adam", "mse")
    return model
"""

TRAIN = """
x = images(np.random.default_rng(0), 40)
y = x.sum(axis=(1, 2))
for i in range(int(sys.argv[1])):
    # Another shape, and so other programs, each time.
    n = 16 + 4 * i
    model = make()
    loss = model.fit(x[:n], y[:n], batch_size=n, verbose=0).history["loss"][0]
    print("trained", i, repr(loss), flush=True)
"""

# The same batches from two threads of this process and from two forks of it,
# which use the device that is open.
WORKERS = """
class Batches(keras.utils.PyDataset):
    def __len__(self):
        return 6

    def __getitem__(self, index):
        x = images(np.random.default_rng(index), 8)
        scaled = keras.ops.convert_to_numpy(keras.layers.Rescaling(2.0)(x))
        np.testing.assert_allclose(scaled, 2 * x, rtol=1e-6)
        return scaled, x.sum(axis=(1, 2))

histories = []
for forks in (False, True):
    model = make()
    batches = Batches(workers=2, use_multiprocessing=forks)
    history = model.fit(batches, epochs=2, shuffle=False, verbose=0).history
    histories.append(history["loss"])
print(histories)
np.testing.assert_allclose(*histories, rtol=1e-5)
"""

THREADS = """
x = images(np.random.default_rng(0), 64)
y = x.sum(axis=(1, 2))

def train(epochs=4):
    history = make().fit(
        x, y, batch_size=8, shuffle=False, epochs=epochs, verbose=0
    ).history
    return history["loss"]

alone = train()
errors, counts, done = [], [0] * 4, threading.Event()

def preprocess(number):
    rng = np.random.default_rng(number)
    layer = [
        layers.Rescaling(0.5, offset=1.0),
        layers.CenterCrop(8, 8),
        layers.Normalization(mean=0.0, variance=4.0),
        layers.Discretization([-1.0, 0.0, 1.0]),
    ][number]
    expected = [
        lambda v: v * 0.5 + 1.0,
        lambda v: v,
        lambda v: v / 2.0,
        lambda v: np.digitize(v, [-1.0, 0.0, 1.0]),
    ][number]
    try:
        while not done.is_set():
            batch = images(rng, 4)
            result = keras.ops.convert_to_numpy(layer(batch))
            np.testing.assert_allclose(result, expected(batch), rtol=1e-5)
            counts[number] += 1
    except BaseException as error:
        errors.append(error)

threads = [threading.Thread(target=preprocess, args=(i,)) for i in range(4)]
for thread in threads:
    thread.start()
try:
    together = train()
    while not errors and min(counts) < 3:
        done.wait(0.05)
finally:
    done.set()
    for thread in threads:
        thread.join()
assert not errors, errors
np.testing.assert_allclose(together, alone, rtol=1e-5)
print(counts)
"""

# A thread that still computes must not keep the process, nor crash it. It
# uses the engine alone: optree, which Keras' ops call, aborts in such a
# thread when the interpreter ends, on every backend.
DAEMON = """
from keras.src.backend.tinygrad.engine.transfer import from_numpy
from keras.src.backend.tinygrad.engine.transfer import to_numpy
from tinygrad import Device

def compute():
    while True:
        to_numpy(from_numpy(np.ones(8), Device.DEFAULT) + 1.0)

for _ in range(2):
    threading.Thread(target=compute, daemon=True).start()
x = images(np.random.default_rng(0), 8)
make().fit(x, x.sum(axis=(1, 2)), verbose=0)
print("done")
"""


def start(script, folder, *arguments):
    environment = {
        **os.environ,
        "PYTHONPATH": str(REPOSITORY),
        "KERAS_TINYGRAD_CACHE": str(folder),
    }
    return subprocess.Popen(
        [sys.executable, "-c", MODEL + script, *map(str, arguments)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process):
    """Returns the lines printed, once the process has ended well."""
    out, error = process.communicate(timeout=300)
    assert process.returncode == 0, error
    for word in ("Traceback", "locked", "Fatal", "Exception ignored"):
        assert word not in error
    return out.splitlines()


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


def test_two_train_with_one_cache_and_one_is_killed(tmp_path):
    victim, survivor = start(TRAIN, tmp_path, 7), start(TRAIN, tmp_path, 3)
    for line in victim.stdout:
        if line.startswith("trained 0"):
            break
    victim.send_signal(signal.SIGKILL)
    victim.communicate()
    survived = finish(survivor)
    assert len(survived) == 3
    assert finish(start(TRAIN, tmp_path, 3)) == survived


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_batches_from_forked_workers(cache):
    assert finish(start(WORKERS, cache))


def test_preprocessing_threads_while_a_model_trains(cache):
    counts = finish(start(THREADS, cache))[-1]
    assert all(int(n) > 0 for n in counts.strip("[]").split(","))


def test_exit_while_other_threads_compute(cache):
    assert finish(start(DAEMON, cache)) == ["done"]
