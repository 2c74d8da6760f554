"""Values and what takes their place, while other threads offer more."""

import sys
import threading

import pytest
from tinygrad import Tensor

from keras.src.backend.tinygrad.engine import alternatives


@pytest.fixture
def frequent_switches():
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval)


def test_values_settle_while_others_are_offered(frequent_switches):
    x = Tensor.empty(4)
    value, fuller = (x + 1).uop, (x + 2).uop
    call = x.exp2().uop
    stop, kept = threading.Event(), []

    def offer():
        number = 0.0
        while not stop.is_set():
            number += 1
            if len(kept) > 200:
                del kept[:100]
            kept.append((x * number).uop)
            alternatives.offer(kept[-1:], [fuller], call)

    alternatives.offer([value], [fuller], call)
    thread = threading.Thread(target=offer)
    thread.start()
    try:
        for _ in range(300):
            settled, _ = alternatives.settle([value, call])
            assert settled is fuller
            # Nobody computes the call.
            (settled,) = alternatives.settle([value])
            assert settled is value
    finally:
        stop.set()
        thread.join()
