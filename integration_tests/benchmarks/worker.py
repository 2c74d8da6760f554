"""Measures one model on the backend of this process.

Each group of figures is printed as a JSON line as soon as it is known, so that
a process which is stopped has told what it found.

Run: python -m integration_tests.benchmarks.worker MODEL [--epochs N]
"""

import argparse
import json
import resource
import time

import numpy as np

import keras
from integration_tests.benchmarks import models


class _Losses(keras.callbacks.Callback):
    """Keeps the running loss after each of the first ten steps."""

    def __init__(self):
        super().__init__()
        self.values = []
        self._start = time.perf_counter()

    def on_train_batch_end(self, batch, logs=None):
        if len(self.values) < 10:
            self.values.append(float(logs["loss"]))
        if len(self.values) == 1:
            _tell(first_step_s=time.perf_counter() - self._start)


def _tell(**figures):
    print(json.dumps(figures), flush=True)


def _per_step_ms(run, steps, epochs):
    run()
    times = []
    for _ in range(epochs):
        start = time.perf_counter()
        run()
        times.append((time.perf_counter() - start) / steps)
    return 1e3 * float(np.median(times))


def measure(name, epochs):
    """Prints the figures of one model.

    Args:
        name: Which of `models.MODELS`.
        epochs: How many are timed; with 0, only the first step is.
    """
    model, (x, y, batch) = models.MODELS[name](keras)
    models.set_deterministic_weights(model)
    model.compile(
        optimizer=keras.optimizers.Adam(1e-3),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    if not epochs:
        x, y = x[:batch], y[:batch]
    steps = len(x) // batch
    losses = _Losses()

    def fit(**kwargs):
        model.fit(x, y, batch_size=batch, verbose=0, shuffle=False, **kwargs)

    fit(callbacks=[losses])
    if not epochs:
        return
    _tell(losses=losses.values)
    _tell(train_ms=_per_step_ms(fit, steps, epochs))

    def evaluate():
        model.evaluate(x, y, batch_size=batch, verbose=0)

    def predict():
        model.predict(x, batch_size=batch, verbose=0)

    _tell(evaluate_ms=_per_step_ms(evaluate, steps, epochs))
    _tell(predict_ms=_per_step_ms(predict, steps, epochs))
    _tell(eager_softmax_ms=_eager_softmax_ms())
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    _tell(peak_mb=most / 1024)


def _eager_softmax_ms():
    repeats = 200
    x = np.random.default_rng(0).normal(size=(8, 16)).astype("float32")
    inputs = [keras.ops.convert_to_tensor(x + i) for i in range(repeats)]
    for value in inputs[:3]:
        keras.ops.convert_to_numpy(keras.ops.softmax(value))
    start = time.perf_counter()
    for value in inputs:
        keras.ops.convert_to_numpy(keras.ops.softmax(value))
    return 1e3 * (time.perf_counter() - start) / repeats


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=sorted(models.MODELS))
    parser.add_argument("--epochs", type=int, default=7)
    arguments = parser.parse_args()
    measure(arguments.model, arguments.epochs)


if __name__ == "__main__":
    main()
