"""Shows how loops scale: compile time and memory by length, cost of a step.

Recurrent layers are trained in processes of their own with empty caches, at
two lengths. Loops of 1,000 steps with a small body are timed by iteration.

Run: KERAS_BACKEND=tinygrad python -m integration_tests.benchmarks.loops
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time

import numpy as np

import keras
from integration_tests.benchmarks import models
from keras import ops
from keras.src.backend.tinygrad import engine
from keras.src.backend.tinygrad.engine.gradient import gradients

STEPS = 1000
MODELS = ["lstm", "gru", "bilstm"]


def first_and_later_steps(name, length):
    """Returns the figures of a model in this process as a dict."""
    before = _processor_time()
    start = time.perf_counter()
    model, (x, y, batch) = models.MODELS[name](keras, length)
    model.compile(
        optimizer="adam",
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    model.train_on_batch(x[:batch], y[:batch])
    figures = {
        "first_s": time.perf_counter() - start,
        "first_processor_s": _processor_time() - before,
    }
    times = []
    for i in range(batch, len(x), batch):
        start = time.perf_counter()
        model.train_on_batch(x[i : i + batch], y[i : i + batch])
        times.append(time.perf_counter() - start)
    figures["step_ms"] = 1e3 * min(times)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    figures["peak_mb"] = peak / 1024
    return figures


def _processor_time():
    """Seconds of this process and of the compilers that it has run."""
    return sum(
        sum(resource.getrusage(who)[:2])
        for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )


def _in_a_new_process(name, length):
    with tempfile.TemporaryDirectory() as cache:
        result = subprocess.run(
            [sys.executable, "-m", __spec__.name, "--measure", name]
            + ["--lengths", str(length)],
            env={**os.environ, "XDG_CACHE_HOME": cache, "KERAS_HOME": cache},
            capture_output=True,
            text=True,
        )
    if result.returncode:
        sys.exit(result.stderr)
    return json.loads(result.stdout.splitlines()[-1])


def show_growth(names, lengths, repeats):
    """Prints a table of models by length, each the best of some runs."""
    print(
        f"{'model':8} {'length':>6} {'first step s':>13} {'processor s':>12} "
        f"{'step ms':>9} {'peak MB':>8}"
    )
    for name in names:
        runs = {length: [] for length in lengths}
        for _ in range(repeats):
            for length in lengths:
                runs[length].append(_in_a_new_process(name, length))
        best = {
            length: {key: min(run[key] for run in found) for key in found[0]}
            for length, found in runs.items()
        }
        for length, found in best.items():
            print(
                f"{name:8} {length:6} {found['first_s']:13.2f} "
                f"{found['first_processor_s']:12.2f} "
                f"{found['step_ms']:9.2f} {found['peak_mb']:8.0f}",
                flush=True,
            )
        short, long = best[lengths[0]], best[lengths[-1]]
        growth = {key: long[key] / short[key] for key in short}
        print(
            f"{name:8} {'growth':>6} {growth['first_s']:12.2f}x "
            f"{growth['first_processor_s']:11.2f}x "
            f"{growth['step_ms']:8.2f}x {growth['peak_mb']:7.2f}x",
            flush=True,
        )


def scan(start, xs):
    return ops.scan(_cell, start, xs)


def _cell(carry, x):
    return ops.tanh(carry * 0.9 + x), carry


def scan_gradient(start, xs):
    last, ys = scan(start, xs)
    return gradients(ops.sum(last) + ops.sum(ys * ys), [start, xs])


def fori_loop(start, xs):
    return ops.fori_loop(
        0, STEPS, lambda i, v: ops.tanh(v * 0.9 + ops.cast(i, "float32")), start
    )


def while_loop(start, xs):
    # Eight elements grow by an eighth each: the sum tells the steps.
    return ops.while_loop(
        lambda v: ops.sum(v) < STEPS, lambda v: v + 0.125, start * 0
    )


def show_iterations(repeats):
    """Prints the cost of an iteration of each loop, without the first run."""
    start = np.full((8,), 0.5, "float32")
    xs = np.random.default_rng(0).normal(size=(STEPS, 8)).astype("float32")
    arguments = [ops.convert_to_tensor(a) for a in (start, xs)]
    print(f"{'loop of ' + str(STEPS):20} {'eagerly':>14} {'in a step':>14}")
    for loop in (scan, scan_gradient, fori_loop, while_loop):

        def eagerly():
            engine.realize(*keras.tree.flatten(loop(*arguments)))

        columns = [_milliseconds(eagerly, repeats) / STEPS]
        if loop is not while_loop:
            step = engine.compile_step(lambda inputs: (loop(*inputs), []))
            columns.append(
                _milliseconds(lambda: step(arguments), repeats) / STEPS
            )
        print(
            f"{loop.__name__:20}",
            *[f"{value:9.5f} ms/it" for value in columns],
            flush=True,
        )
    steps = float(ops.sum(while_loop(*arguments)))
    if steps != STEPS:
        sys.exit(f"The while loop ended after {steps} steps, not {STEPS}.")


def _milliseconds(function, repeats):
    function()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return 1e3 * min(times)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=MODELS, choices=MODELS)
    parser.add_argument("--lengths", nargs="+", type=int, default=[50, 500])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--measure", choices=MODELS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        (length,) = arguments.lengths
        print(json.dumps(first_and_later_steps(arguments.measure, length)))
        return
    print(f"load of the last minute: {os.getloadavg()[0]:.1f}")
    show_iterations(arguments.repeats)
    show_growth(arguments.models, arguments.lengths, arguments.repeats)


if __name__ == "__main__":
    main()
