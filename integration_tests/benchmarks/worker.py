"""Measures one model on the backend of this process; prints one JSON line.

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
        self.first_step = None
        self._start = time.perf_counter()

    def on_train_batch_end(self, batch, logs=None):
        if len(self.values) < 10:
            self.values.append(float(logs["loss"]))
        if self.first_step is None:
            self.first_step = time.perf_counter() - self._start


def _per_step_ms(run, steps, epochs):
    run()
    times = []
    for _ in range(epochs):
        start = time.perf_counter()
        run()
        times.append((time.perf_counter() - start) / steps)
    return 1e3 * float(np.median(times))


def measure(name, epochs):
    """Returns the figures of one model as a dict."""
    model, (x, y, batch) = models.MODELS[name](keras)
    models.set_deterministic_weights(model)
    model.compile(
        optimizer=keras.optimizers.Adam(1e-3),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    steps = len(x) // batch
    losses = _Losses()

    def fit(**kwargs):
        model.fit(x, y, batch_size=batch, verbose=0, shuffle=False, **kwargs)

    fit(callbacks=[losses])
    figures = {
        "model": name,
        "backend": keras.backend.backend(),
        "losses": losses.values,
        "first_step_s": losses.first_step,
        "train_ms": _per_step_ms(fit, steps, epochs),
        "evaluate_ms": _per_step_ms(
            lambda: model.evaluate(x, y, batch_size=batch, verbose=0),
            steps,
            epochs,
        ),
        "predict_ms": _per_step_ms(
            lambda: model.predict(x, batch_size=batch, verbose=0),
            steps,
            epochs,
        ),
        "eager_softmax_ms": _eager_softmax_ms(),
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    return figures


def _eager_softmax_ms(repeats=200):
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
    print(json.dumps(measure(arguments.model, arguments.epochs)))


if __name__ == "__main__":
    main()
