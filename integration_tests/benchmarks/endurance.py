"""Trains for thousands of steps, and fails if what it holds grows.

Run: python -m integration_tests.benchmarks.endurance MODEL [--steps N]
"""

import argparse
import gc
import os
import sys
import threading

import keras
from integration_tests.benchmarks import models

PARTS = 10
# The pages that a process holds vary by themselves; a leak of a hundred bytes
# a step is half a megabyte after 5,000.
ALLOWED_MB = 2.0


def open_files():
    """Returns the number of open files, or 0 where it can't be told."""
    for folder in ("/proc/self/fd", "/dev/fd"):
        if os.path.isdir(folder):
            return len(os.listdir(folder))
    return 0


def resident_mb():
    """Returns the memory that this process holds, in megabytes."""
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[1])
    return pages * os.sysconf("SC_PAGESIZE") / 2**20


def endure(name, steps):
    """Trains a model of the benchmark.

    Args:
        name: The model's name.
        steps: Number of training steps, in ten parts.

    Yields:
        `(steps done, megabytes, open files, threads)` after each part.
    """
    model, (x, y, batch) = models.MODELS[name](keras)
    model.compile(
        optimizer="adam",
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    epochs = -(-steps // (PARTS * (len(x) // batch)))
    for part in range(1, PARTS + 1):
        model.fit(x, y, batch_size=batch, epochs=epochs, verbose=0)
        gc.collect()
        yield (
            int(model.optimizer.iterations),
            resident_mb(),
            open_files(),
            threading.active_count(),
        )


def growth(rows):
    """Says what grew from the second part, when all is warm, to the last.

    Args:
        rows: List of what `endure` yields.

    Returns:
        List of strings, empty if nothing grew.
    """
    (_, megabytes, files, threads), last = rows[1], rows[-1]
    found = []
    if last[1] > megabytes + ALLOWED_MB:
        found.append(f"memory from {megabytes:.1f} to {last[1]:.1f} MB")
    if last[2] > files:
        found.append(f"open files from {files} to {last[2]}")
    if last[3] > threads:
        found.append(f"threads from {threads} to {last[3]}")
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=sorted(models.MODELS))
    parser.add_argument("--steps", type=int, default=5000)
    arguments = parser.parse_args()
    print(f"{'steps':>6} {'MB':>8} {'files':>6} {'threads':>8}")
    rows = []
    for row in endure(arguments.model, arguments.steps):
        rows.append(row)
        print("{:>6} {:>8.1f} {:>6} {:>8}".format(*row), flush=True)
    found = growth(rows)
    print("grew: " + "; ".join(found) if found else "flat")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
