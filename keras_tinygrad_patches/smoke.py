"""Imports Keras on tinygrad, and trains, saves and loads a small model.

`rebase` runs this on a tree that is not in place yet; the tree is the first
argument.
"""

import pathlib
import sys
import tempfile

import numpy as np

import keras


def main(tree):
    """Runs the test.

    Args:
        tree: `pathlib.Path`, where Keras has to come from.
    """
    assert pathlib.Path(keras.__file__).is_relative_to(tree), keras.__file__
    assert keras.backend.backend() == "tinygrad", keras.backend.backend()

    keras.utils.set_random_seed(0)
    x = np.random.default_rng(0).normal(size=(64, 8)).astype("float32")
    y = (x.sum(axis=1) > 0).astype("int32")
    model = keras.Sequential(
        [
            keras.Input((8,)),
            keras.layers.Dense(16, activation="relu"),
            keras.layers.Dropout(0.1),
            keras.layers.Dense(2),
        ]
    )
    model.compile(
        optimizer=keras.optimizers.Adam(0.02),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    before = model.evaluate(x, y, verbose=0, return_dict=True)
    model.fit(x, y, batch_size=16, epochs=10, verbose=0)
    after = model.evaluate(x, y, verbose=0, return_dict=True)
    assert after["loss"] < 0.7 * before["loss"], (before, after)

    with tempfile.TemporaryDirectory() as directory:
        path = pathlib.Path(directory) / "model.keras"
        model.save(path)
        loaded = keras.models.load_model(path)
    np.testing.assert_array_equal(
        loaded.predict(x, verbose=0), model.predict(x, verbose=0)
    )
    print(
        f"Keras {keras.__version__} on tinygrad: trained to "
        f"{after['accuracy']:.0%}, saved and loaded."
    )


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]).resolve())
