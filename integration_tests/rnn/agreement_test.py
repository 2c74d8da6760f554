"""Gradients through time, against what torch and jax answered."""

import numpy as np
import pytest

from integration_tests.rnn import agreement
from integration_tests.rnn import record

RECORD = record.read()["cases"]


def test_record_is_of_these_cases():
    """If not: `python -m integration_tests.rnn.record`."""
    assert list(RECORD) == list(agreement.CASES)


def test_backends_answer():
    failed = {
        (case, backend)
        for case, answers in RECORD.items()
        for backend, answer in answers.items()
        if isinstance(answer, str)
    }
    # Keras' `rnn` for jax does not broadcast a mask to states with channels.
    assert failed == {("conv2d_masked", "jax")}


@pytest.mark.parametrize("case", agreement.CASES)
def test_layer_agrees(case):
    found = [agreement.summary(array) for array in agreement.answers(case)]
    for recorded in RECORD[case].values():
        if isinstance(recorded, str):
            continue
        assert len(recorded) == len(found)
        for mine, theirs in zip(found, recorded):
            # Rounding errors are as large as the array, not as the product.
            np.testing.assert_allclose(
                mine, theirs, rtol=0, atol=1e-5 * theirs[0] + 1e-7
            )
