"""Trains on scikit-learn's digits, with whichever Keras is installed.

`shell/demo.sh` runs this from outside the repository, on the installed wheel.
"""

import argparse
import os
import sys
import time
from pathlib import Path

# Before Keras is imported, which reads it.
os.environ.setdefault("KERAS_BACKEND", "tinygrad")

import matplotlib
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import keras

matplotlib.use("Agg")

from matplotlib import pyplot as plt  # noqa: E402

SEED = 1
EPOCHS = 15
BATCH_SIZE = 32
NEEDED_ACCURACY = 0.97


def load():
    """Returns the scans and their digits: train and test, 80 to 20."""
    images, digits = load_digits(return_X_y=True)
    images = images.reshape(-1, 8, 8, 1).astype("float32") / 16.0
    return train_test_split(
        images,
        digits.astype("int32"),
        test_size=0.2,
        random_state=SEED,
        stratify=digits,
    )


def make_cnn():
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(32, 3, padding="same", use_bias=False),
            keras.layers.BatchNormalization(momentum=0.9),
            keras.layers.ReLU(),
            keras.layers.MaxPooling2D(),
            keras.layers.Conv2D(64, 3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(10, activation="softmax"),
        ],
        name="cnn",
    )


def make_mlp():
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Flatten(),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dropout(0.2),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10, activation="softmax"),
        ],
        name="mlp",
    )


def train(model, images, digits):
    """Trains a model and returns Keras' history of it."""
    model.compile(
        optimizer=keras.optimizers.Adam(2e-3),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    started = time.perf_counter()
    history = model.fit(
        images,
        digits,
        batch_size=BATCH_SIZE,
        epochs=EPOCHS,
        validation_split=0.1,
    )
    print(f"{model.name}: trained in {time.perf_counter() - started:.1f} s")
    return history.history


def check_saving(model, images, path):
    """Saves a model, loads it, and returns whether it predicts the same."""
    model.save(path)
    loaded = keras.saving.load_model(path)
    before = model.predict(images, verbose=0)
    after = loaded.predict(images, verbose=0)
    return np.array_equal(before, after)


def draw(histories, images, digits, predicted, path):
    """Writes the picture: learning curves, and test scans with predictions."""
    rows, columns = 5, 8
    figure = plt.figure(figsize=(14, 6), layout="constrained")
    left, right = figure.subfigures(1, 2, width_ratios=[1, 1.2])
    loss, accuracy = left.subplots(2, 1, sharex=True)
    for color, (name, history) in zip(("C0", "C1"), histories.items()):
        epochs = range(1, len(history["loss"]) + 1)
        for axes, key in ((loss, "loss"), (accuracy, "accuracy")):
            axes.plot(epochs, history[key], color, label=f"{name}, training")
            axes.plot(
                epochs,
                history[f"val_{key}"],
                color,
                linestyle="--",
                label=f"{name}, validation",
            )
    loss.set(ylabel="loss", yscale="log", title="Learning curves")
    accuracy.set(xlabel="epoch", ylabel="accuracy")
    accuracy.legend()
    right.suptitle("Test scans as the CNN reads them (its mistakes first, red)")
    mistakes_first = np.argsort(predicted == digits, kind="stable")
    grid = right.subplots(rows, columns).flat
    for index, axes in zip(mistakes_first, grid):
        axes.imshow(images[index, :, :, 0], cmap="gray_r")
        axes.set_axis_off()
        correct = predicted[index] == digits[index]
        axes.set_title(
            str(predicted[index]), color="black" if correct else "red"
        )
    figure.savefig(path, dpi=110)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True)
    output = parser.parse_args(arguments).output
    output.mkdir(parents=True, exist_ok=True)

    print(
        f"Keras {keras.__version__} on {keras.backend.backend()}, from "
        f"{Path(keras.__file__).parent}"
    )
    keras.utils.set_random_seed(SEED)
    train_images, test_images, train_digits, test_digits = load()
    print(f"{len(train_images)} scans to train on, {len(test_images)} to test")

    histories, accuracies = {}, {}
    for model in (make_mlp(), make_cnn()):
        print(f"\n-- {model.name}: {model.count_params()} parameters")
        histories[model.name] = train(model, train_images, train_digits)
        _, accuracies[model.name] = model.evaluate(
            test_images, test_digits, verbose=0
        )
        print(f"{model.name}: test accuracy {accuracies[model.name]:.4f}")

    saved = output / "digits.keras"
    identical = check_saving(model, test_images, saved)
    print(f"\nsaved and loaded {saved}")
    print(f"predictions identical after loading: {identical}")

    predicted = model.predict(test_images, verbose=0).argmax(axis=-1)
    picture = output / "digits.png"
    draw(histories, test_images, test_digits, predicted, picture)
    print(f"picture: {picture}")

    failures = []
    if accuracies["cnn"] < NEEDED_ACCURACY:
        failures.append(
            f"The CNN's test accuracy is {accuracies['cnn']:.4f}; at least "
            f"{NEEDED_ACCURACY} was expected."
        )
    if not identical:
        failures.append("The loaded model predicts other numbers.")
    for failure in failures:
        print(failure, file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
