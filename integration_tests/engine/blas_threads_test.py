"""The choice of BLAS' threads, on a clock of its own."""

import numpy as np
import pytest

from keras.src.backend.tinygrad.engine import blas_threads
from keras.src.backend.tinygrad.engine.handwritten import constant_words


class Machine:
    """Runs a plan in given times, for several threads and for one."""

    def __init__(self, several, one):
        self.now, self.several, self.one = 0.0, several, one
        self.log = []

    def clock(self):
        return self.now

    def run(self):
        single = blas_threads._State.is_single
        self.log.append(single)
        self.now += self.one if single else self.several


@pytest.fixture
def words():
    tensor = constant_words([7, 4])
    blas_threads.register(tensor, 1, 4)
    yield tensor
    blas_threads.limit(False)


def threads(tensor):
    buffer = tensor.uop.base.buffer
    view = np.frombuffer(buffer.as_memoryview(force_zero_copy=True), "u8")
    return int(view[1])


def runs(chooser, machine, count):
    machine.log.clear()
    for _ in range(count):
        chooser.run(machine.run)
    return machine.log


def test_idle_cores_share_the_work(words):
    machine = Machine(several=0.1, one=0.2)
    chooser = blas_threads.Chooser(["gemm_float32"], machine.clock)
    runs(chooser, machine, 5)
    assert runs(chooser, machine, 100).count(True) <= 5


def test_a_busy_core_leaves_one_thread(words):
    machine = Machine(several=2.0, one=0.2)
    chooser = blas_threads.Chooser(["gemm_float32"], machine.clock)
    runs(chooser, machine, 5)
    assert runs(chooser, machine, 100).count(False) <= 5
    assert threads(words) == 1


def test_a_core_that_becomes_busy_is_noticed(words):
    machine = Machine(several=0.01, one=0.02)
    chooser = blas_threads.Chooser(["convolution_forward"], machine.clock)
    runs(chooser, machine, 100)
    machine.several = 0.5
    runs(chooser, machine, 3)
    assert runs(chooser, machine, 100).count(False) <= 4


def test_a_core_that_becomes_idle_is_noticed(words):
    machine = Machine(several=0.5, one=0.02)
    chooser = blas_threads.Chooser(["gemm_float32"], machine.clock)
    runs(chooser, machine, 1000)
    machine.several = 0.01
    runs(chooser, machine, int(2 * blas_threads.LAST_INTERVAL / 0.02))
    assert runs(chooser, machine, 100).count(True) <= 5


def test_other_plans_are_not_timed(words):
    machine = Machine(several=2.0, one=0.2)
    chooser = blas_threads.Chooser(["E_128"], machine.clock)
    assert not any(runs(chooser, machine, 10))


def test_new_products_follow_the_choice_in_force(words):
    blas_threads.limit(True)
    tensor = constant_words([7, 8])
    blas_threads.register(tensor, 1, 8)
    assert threads(tensor) == threads(words) == 1
    blas_threads.limit(False)
    assert threads(tensor) == 8 and threads(words) == 4


def test_exceptions_pass():
    def fail():
        raise ValueError("from the plan")

    words = constant_words([7, 4])
    blas_threads.register(words, 1, 4)
    chooser = blas_threads.Chooser(["gemm_float32"])
    with pytest.raises(ValueError, match="from the plan"):
        chooser.run(fail)
