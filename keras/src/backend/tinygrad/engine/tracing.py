"""What a compiled step knows while its function is traced.

Inside a trace nothing is launched: a request to realize is noted as a root of
the step's graph, and a read of values on the host raises, unless the values
depend on neither inputs nor state.
"""

import contextlib
import linecache
import os
import sys
import threading
import weakref

from keras.src.backend.tinygrad.engine.internals import Ops
from keras.src.backend.tinygrad.engine.internals import Tensor
from keras.src.backend.tinygrad.engine.internals import UOp
from keras.src.backend.tinygrad.engine.internals import all_tensors
from keras.src.backend.tinygrad.engine.internals import tensor_module

_ROOTS = tuple(
    os.path.dirname(os.path.abspath(path)) + os.sep
    for path in (
        tensor_module.__file__,
        os.path.join(__file__, "..", "..", "..", ".."),
    )
)

_states = {}
_current = None


class _Loops(threading.local):
    """The loops whose bodies this thread traces, by what changes in them."""

    def __init__(self):
        self.inputs = []


_loops = _Loops()


class HostReadError(RuntimeError):
    """A traced function read a tensor's values on the host."""


def track_state(slot):
    """Makes a state holder known, so that steps that read it follow it.

    Args:
        slot: Object with an attribute `_value`, a `Tensor`; it may assign
            another `Tensor` to the attribute at any time. Held weakly.
    """
    key = id(slot)
    _states[key] = weakref.ref(slot, lambda _: _states.pop(key, None))


def tracked_states():
    """Returns the live state holders."""
    slots = (reference() for reference in list(_states.values()))
    return [slot for slot in slots if slot is not None]


def live_tensors():
    """Returns the live tensors of the process."""
    tensors = (reference() for reference in list(all_tensors))
    return [tensor for tensor in tensors if tensor is not None]


class Trace:
    """Context in which one step's function is traced, on one thread.

    Attributes:
        realized: `Tensor`s whose realization was asked for.
        mutated: After the exit, the pairs (tensor, uop before) of `Tensor`s
            that are older than the trace and were given another value in it.
    """

    def __init__(self):
        self.realized = []
        self.mutated = []
        self._thread = threading.get_ident()
        self._paused = False

    def __enter__(self):
        global _current
        if active() is not None:
            raise RuntimeError(
                "A compiled step was called while another one was traced. "
                "Call the inner step's function itself instead."
            )
        self._first_buffer = next(UOp.unique_num)
        self._before = {id(t): (t, t.uop, t.grad) for t in live_tensors()}
        _current = self
        return self

    def __exit__(self, error, *exc):
        global _current
        _current = None
        for tensor, uop, grad in self._before.values():
            tensor.grad = grad
            if tensor.uop is not uop:
                if error is not None:
                    tensor.uop = uop
                self.mutated.append((tensor, uop))
        self._before = {}

    def give_buffers(self):
        """Gives buffers to the mutated tensors that had none.

        Returns:
            Whether there were any. Then every mutated tensor has the value
            again that it had before the trace.
        """
        without = [
            (tensor, before)
            for tensor, before in self.mutated
            if not tensor.uop.has_buffer_identity()
            and not before.has_buffer_identity()
        ]
        if without:
            self.restore()
            for tensor, before in without:
                copy = Tensor(before).clone(device=tensor.device).realize()
                tensor.uop = copy.uop
        return bool(without)

    def restore(self):
        """Gives the mutated tensors the value they had before the trace.

        A tensor whose value alone was computed in the trace keeps it.
        """
        for tensor, before in self.mutated:
            if not tensor.uop.has_buffer_identity():
                tensor.uop = before

    @contextlib.contextmanager
    def undone_on_error(self):
        """Context that leaves no mutation behind if it ends in an error."""
        try:
            yield
        except BaseException:
            for tensor, before in self.mutated:
                tensor.uop = before
            raise

    def is_unchanged(self, tensor):
        """Whether a tensor has not been given another value in the trace."""
        entry = self._before.get(id(tensor))
        return entry is None or entry[1] is tensor.uop

    def is_static(self, uop):
        """Whether a value depends on nothing older than the trace."""
        return all(
            u.arg.slot >= self._first_buffer
            for u in uop.toposort(enter_calls=False)
            if u.op is Ops.BUFFER and u.device is not None
        )


@contextlib.contextmanager
def paused():
    """Context in which what a trace may do on the host is really done."""
    trace = active()
    if trace is None:
        yield
        return
    trace._paused = True
    try:
        yield
    finally:
        trace._paused = False


def active():
    """Returns the trace that runs on this thread, or `None`."""
    trace = _current
    if trace is None or trace._thread != threading.get_ident():
        return None
    return None if trace._paused else trace


def in_progress():
    """Whether a step or the body of a loop is traced on this thread."""
    return active() is not None or bool(_loops.inputs)


def note_realize(tensors):
    """Takes note of tensors to realize.

    Args:
        tensors: List of unrealized `Tensor`s.

    Returns:
        The tensors to realize now: all of them outside a trace, in it those
        that depend on nothing older than the trace.
    """
    for tensor in tensors:
        _check_loop_body(tensor)
    trace = active()
    if trace is None:
        return tensors
    static = []
    for tensor in tensors:
        if trace.is_unchanged(tensor) and trace.is_static(tensor.uop):
            static.append(tensor)
        else:
            trace.realized.append(tensor)
    return static


def check_host_read(tensor):
    """Raises if a traced function may not read a tensor's values.

    Args:
        tensor: `Tensor` about to be copied to the host.

    Raises:
        HostReadError: If the values depend on the step's inputs or on state,
            or on what changes from step to step of a loop being traced.
    """
    _check_loop_body(tensor)
    trace = active()
    if trace is None or trace.is_static(tensor.uop):
        return
    raise HostReadError(
        "A compiled step may not read a tensor's values on the host, since "
        "they are not known while the step is traced. The tensor of shape "
        f"{tuple(tensor.shape)} and dtype '{tensor.dtype}' is read at "
        f"{_user_line()}. Use `keras.ops` on the tensor instead, or run the "
        "step uncompiled with `run_eagerly=True`."
    )


@contextlib.contextmanager
def loop_body(inputs):
    """Context in which the body of a loop is traced.

    Args:
        inputs: Iterable of the `BUFFER` uops that stand for what changes from
            step to step.
    """
    _loops.inputs.append(set(inputs))
    try:
        yield
    finally:
        _loops.inputs.pop()


def _check_loop_body(tensor):
    if not _loops.inputs:
        return
    nodes = tensor.uop.toposort(enter_calls=False)
    if any(not inputs.isdisjoint(nodes) for inputs in _loops.inputs):
        raise HostReadError(
            "The body of a loop may not read a tensor's values on the host, "
            "since it is traced once for all steps. The tensor of shape "
            f"{tuple(tensor.shape)} and dtype '{tensor.dtype}' is read at "
            f"{_user_line()}. Use `keras.ops` on the tensor instead."
        )


def _user_line():
    frame = sys._getframe(1)
    nearest = frame
    while frame is not None:
        filename = frame.f_code.co_filename
        if not os.path.abspath(filename).startswith(_ROOTS):
            nearest = frame
            break
        frame = frame.f_back
    filename, line = nearest.f_code.co_filename, nearest.f_lineno
    text = linecache.getline(filename, line).strip()
    return f"{filename}:{line} (`{text}`)" if text else f"{filename}:{line}"
