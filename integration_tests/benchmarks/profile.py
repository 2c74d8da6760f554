"""Lists the launches of a model's compiled train step by time.

Run: KERAS_BACKEND=tinygrad python -m integration_tests.benchmarks.profile MODEL
"""

import argparse

import keras
from integration_tests.benchmarks import models


def train_plan(name):
    """Trains a model for one epoch; returns the plan of its train step."""
    model, (x, y, batch) = models.MODELS[name](keras)
    models.set_deterministic_weights(model)
    model.compile(
        optimizer="adam",
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    model.fit(x, y, batch_size=batch, verbose=0)
    return model.train_function.step.compiled.plans[0]


def rows(plan, repeats):
    """Returns `(seconds, name, bytes moved, operations)` of each launch.

    Bytes are those of the buffers that a launch is given. Operations are
    `None` where they are not known: of host calls and loops.
    """
    found = []
    for launch, seconds, operations in plan.profile(repeats):
        moved = sum(view.nbytes for view in launch.args)
        name = "copy"
        if launch.program is not None:
            name = launch.program.arg.function_name
        found.append((seconds, name, moved, operations))
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=sorted(models.MODELS))
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--most", type=int, default=30)
    arguments = parser.parse_args()
    found = rows(train_plan(arguments.model), arguments.repeats)
    total = sum(seconds for seconds, *_ in found)
    print(f"{len(found)} launches, {total * 1e3:.2f} ms in all")
    print(f"{'ms':>8} {'share':>6} {'MB':>8} {'GFLOP/s':>8}  launch")
    found.sort(key=lambda row: row[0], reverse=True)
    for seconds, name, moved, operations in found[: arguments.most]:
        rate = "-"
        if operations is not None:
            rate = f"{operations / seconds / 1e9:.1f}"
        print(
            f"{seconds * 1e3:8.3f} {seconds / total:6.1%} {moved / 1e6:8.2f} "
            f"{rate:>8}  {name}"
        )


if __name__ == "__main__":
    main()
