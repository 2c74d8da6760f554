"""One draw of every kind; as a program, prints a digest of their values."""

import hashlib

import numpy as np

import keras
from keras import ops


def samples(seed):
    """Returns tensors drawn from every distribution with the same seed."""
    shape = (17, 5)
    ones = np.ones(shape, "float32")
    return [
        keras.random.normal(shape, seed=seed),
        keras.random.uniform(shape, -1, 2, seed=seed),
        keras.random.truncated_normal(shape, seed=seed),
        keras.random.randint(shape, 0, 1000, seed=seed),
        keras.random.categorical(ones, 11, seed=seed),
        keras.random.dropout(ones, 0.3, seed=seed),
        keras.random.shuffle(np.arange(30), seed=seed),
        keras.random.gamma(shape, 1.5, seed=seed),
        keras.random.beta(shape, 1.5, 2.5, seed=seed),
        keras.random.binomial(shape, 20, 0.5, seed=seed),
    ]


def digest(seed):
    data = [ops.convert_to_numpy(x).tobytes() for x in samples(seed)]
    return hashlib.sha256(b"".join(data)).hexdigest()


if __name__ == "__main__":
    print(digest(9))
