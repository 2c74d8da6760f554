"""Calls of NumPy functions from inside a lazy graph.

The call is an ordinary tinygrad kernel on the CPU device. Its source holds no
address and no size: a buffer argument, the handle, carries the address of one
C callback shared by all calls and the number under which `_entries` knows the
function. So one program serves every function with the same number of
buffers, in this process and in the next.
"""

import collections
import contextlib
import ctypes
import functools
import itertools
import math
import sys
import threading
import types
import weakref

import numpy as np
from tinygrad import Device
from tinygrad import Tensor
from tinygrad import dtypes

from keras.src.backend.tinygrad.engine import launcher
from keras.src.backend.tinygrad.engine.handwritten import constant_words
from keras.src.backend.tinygrad.engine.handwritten import kernel
from keras.src.backend.tinygrad.engine.handwritten import new_output
from keras.src.backend.tinygrad.engine.handwritten import on_cpu
from keras.src.backend.tinygrad.engine.internals import UOp
from keras.src.backend.tinygrad.engine.recent import Recent
from keras.src.backend.tinygrad.engine.transfer import NUMPY_DTYPES
from keras.src.backend.tinygrad.engine.transfer import TINYGRAD_DTYPES

# tinygrad's x86 assembler passes six integer arguments to a call: the entry,
# the position of the first pointer, and four pointers.
POINTERS_PER_CALL = 4
# tinygrad launches CPU programs with at most 63 arguments.
MAX_BUFFERS = 62
MAX_HANDLES = 256
# Part of the name of each kernel that calls the host.
KERNEL = "host_call"

_entries = {}
_entry_numbers = itertools.count(1)
_handles = Recent(MAX_HANDLES)
# The failures of each `raising` context, the innermost one's last.
_levels = []
_arrived = threading.local()


def host_call(fn, inputs, outputs, gradient=None, name="host_call"):
    """Applies a NumPy function to tensors, lazily.

    Args:
        fn: Function of one read-only `numpy.ndarray` for each input. It
            returns an array, or a tuple of arrays, one for each output, of
            the declared shapes; they are cast to the declared dtypes. It is
            called each time the kernel runs, so it must not keep what it
            gets.
        inputs: List of `Tensor`s of concrete dtypes and any shapes.
        outputs: List of `(shape, dtype name)`.
        gradient: Function of `(inputs, outputs, output_grads)`, three lists
            of `Tensor`s (a cotangent that nothing asked for is zeros). It
            returns a list with one `Tensor` of the input's shape, or `None`,
            for each input. Without it, asking for a gradient raises.
        name: Name of the operation, for error messages.

    Returns:
        List of `Tensor`s of the declared shapes and dtypes, on the device of
        the inputs, or tinygrad's default device where none has one.

    Raises:
        ValueError: If there are more than 62 non-empty inputs and outputs.
        NotImplementedError: If a gradient is asked for and none was
            declared, or if an input is sharded over devices.

    An exception raised by `fn` surfaces where the result is realized; see
    `raising`.
    """
    home = next(
        (t.device for t in inputs if t.device is not None), Device.DEFAULT
    )
    if not isinstance(home, str):
        raise NotImplementedError(
            f"{name} runs on the host and does not support tensors that are "
            f"sharded over several devices. Received: device={home}"
        )
    specs = tuple((tuple(shape), _dtype(name)) for shape, name in outputs)
    if all(0 in shape for shape, _ in specs):
        return [_zeros(spec, home) for spec in specs]
    operands = [on_cpu(t) for t in inputs]
    handle = _handle(
        fn, specs, tuple((t.shape, NUMPY_DTYPES[t.dtype]) for t in operands)
    )
    written = [i for i, (shape, _) in enumerate(specs) if 0 not in shape]
    read = [i for i, t in enumerate(operands) if 0 not in t.shape]
    if len(written) + len(read) > MAX_BUFFERS:
        raise ValueError(
            f"{name} takes at most {MAX_BUFFERS} non-empty inputs and "
            f"outputs. Received: {len(read)} inputs and {len(written)} "
            "outputs."
        )
    arguments = [_numbered(_buffer(specs[i]), i).uop for i in written] + [
        operands[i].reshape(-1).uop for i in read
    ]
    call = _kernel(len(arguments)).call(
        *arguments,
        handle.uop,
        grad_fxn=_gradient_function(
            gradient, operands, read, specs, written, name
        ),
    )
    results = {}
    for argument, i in zip(arguments, written):
        result = Tensor(argument.after(call)).reshape(specs[i][0])
        results[i] = result.to(home)
    return [
        results[i] if i in results else _zeros(spec, home)
        for i, spec in enumerate(specs)
    ]


def float_host_call(fn, inputs, shapes, gradient, name):
    """Host call of a function that NumPy has for float32 and float64 alone.

    Args:
        fn: As for `host_call`; it computes in float64 where the first input
            is float64, and in float32 otherwise.
        inputs: List of real floating `Tensor`s of any shapes.
        shapes: List with the shape of each output.
        gradient: As for `host_call`; its tensors have the dtype computed in.
        name: Name of the operation, for error messages.

    Returns:
        Tuple of `Tensor`s of the declared shapes, in the first input's dtype.

    Raises:
        As `host_call`.
    """
    dtype = inputs[0].dtype
    wide = float_host_dtype(inputs[0])
    results = host_call(
        fn,
        [t.cast(getattr(dtypes, wide)) for t in inputs],
        [(shape, wide) for shape in shapes],
        gradient=gradient,
        name=name,
    )
    return tuple(result.cast(dtype) for result in results)


def float_host_dtype(x):
    """Returns the name of the dtype in which NumPy computes for `x`."""
    return "float64" if x.dtype == dtypes.float64 else "float32"


@contextlib.contextmanager
def raising(undo=None):
    """Context in which kernels run, that raises what their host calls raise.

    A C callback cannot raise through the kernel that called it: the exception
    waits here, and `launcher.stopped` keeps what follows from running. Until
    then the outputs of a failed call are NaN, or zero where the dtype has no
    NaN.

    Args:
        undo: Function called before a host call's exception is raised.
    """
    failures, hook = [], sys.unraisablehook

    def unraisable(report):
        # An interrupt may arrive before the first line of `_enter`.
        trace = report.exc_traceback
        if trace is not None and trace.tb_frame.f_code is _enter.__code__:
            _fail(report.exc_value)
        else:
            hook(report)

    _levels.append(failures)
    sys.unraisablehook = unraisable
    try:
        yield
    finally:
        sys.unraisablehook = hook
        _levels.pop()
        launcher.stopped.value = 0
        if failures:
            if undo is not None:
                undo()
            raise failures[0]


def makes_host_calls(program):
    """Whether a `PROGRAM` uop, or `None`, calls the host."""
    return program is not None and KERNEL in program.arg.name


def _dtype(name):
    for dtype in TINYGRAD_DTYPES:
        if dtype.name == name:
            return dtype
    raise ValueError(
        f"tinygrad has no dtype '{name}'. Expected one of "
        f"{sorted(d.name for d in TINYGRAD_DTYPES)}."
    )


def _zeros(spec, device):
    shape, dtype = spec
    return Tensor.zeros(*shape, dtype=TINYGRAD_DTYPES[dtype], device=device)


def _buffer(spec):
    shape, dtype = spec
    return new_output(math.prod(shape), TINYGRAD_DTYPES[dtype])


def _numbered(tensor, index):
    # A call's gradient function gets the cotangents that exist, without the
    # positions of their outputs; here the rank tells them.
    return tensor.reshape((1,) * index + (-1,))


def _kernel(count):
    """Builds the kernel that hands `count` pointers to the callback."""
    # Declared as bytes of unknown number: a pointer is all that is needed,
    # whatever the dtype, supported by the compiler or not.
    pointers = [
        UOp.placeholder((1,), dtypes.uint8, slot)[0] for slot in range(count)
    ]
    handle = UOp.placeholder((2,), dtypes.uint64, count)
    call = None
    for start in range(0, count, POINTERS_PER_CALL):
        group = pointers[start : start + POINTERS_PER_CALL]
        group += group[-1:] * (POINTERS_PER_CALL - len(group))
        state = handle if call is None else handle.after(call)
        call = (
            state[0]
            .load()
            .call(
                state[1].load(),
                UOp.const(start, dtypes.uint64),
                *group,
                ret_dtype=dtypes.void,
            )
        )
    return kernel(call, f"{KERNEL}_{count}")


def _gradient_function(gradient, operands, read, specs, written, name):
    shapes = [t.shape for t in operands]
    empty = [None if 0 not in t.shape else t for t in operands]

    def gradient_of_call(*cotangents, call=None):
        # tinygrad passes the call by name or last, as the cotangents are
        # several or one.
        if call is None:
            *cotangents, call = cotangents
        if gradient is None:
            raise NotImplementedError(f"{name} has no gradient in tinygrad.")
        arguments = call.src[1:]
        inputs = list(empty)
        for position, i in enumerate(read):
            argument = Tensor(arguments[len(written) + position])
            inputs[i] = argument.reshape(shapes[i])
        outputs = [_zeros(spec, "CPU") for spec in specs]
        output_grads = list(outputs)
        for argument, i in zip(arguments, written):
            outputs[i] = Tensor(argument.after(call)).reshape(specs[i][0])
        for cotangent in cotangents:
            i = written[written.index(len(cotangent.shape) - 1)]
            output_grads[i] = Tensor(cotangent).reshape(specs[i][0])
        grads = gradient(inputs, outputs, output_grads)
        return (
            (None,) * len(written)
            + tuple(
                None
                if grads[i] is None
                else grads[i].cast(inputs[i].dtype).reshape(-1).uop
                for i in read
            )
            + (None,)
        )

    return gradient_of_call


# Function, dtypes and shapes behind a handle; `outputs` and `inputs` are the
# `(shape, dtype)` of arrays, in the order of the kernel's pointers.
_Entry = collections.namedtuple("_Entry", "fn outputs inputs pointers")


def _handle(fn, outputs, inputs):
    def make():
        number = next(_entry_numbers)
        pointers = sum(0 not in shape for shape, _ in outputs + inputs)
        _entries[number] = _Entry(fn, outputs, inputs, pointers)
        handle = constant_words([_ENTER_ADDRESS, number])
        # A plan may hold the buffer longer than this table does.
        weakref.finalize(handle.uop.buffer, _entries.pop, number)
        return handle

    return _handles.get((_identity(fn), outputs, inputs), make)


def _identity(value):
    """Returns a hashable key, equal for functions that do the same.

    Ops build their functions anew at each call, as partials or closures over
    plain settings: those share an entry.
    """
    if isinstance(value, functools.partial):
        return (
            "partial",
            _identity(value.func),
            _identity(value.args),
            _identity(tuple(sorted(value.keywords.items()))),
        )
    if isinstance(value, types.FunctionType):
        cells = tuple(c.cell_contents for c in value.__closure__ or ())
        return (
            value.__code__,
            id(value.__globals__),
            _identity(cells),
            _identity(value.__defaults__),
            _identity(tuple(sorted((value.__kwdefaults__ or {}).items()))),
        )
    if isinstance(value, (tuple, list)):
        return (type(value), tuple(_identity(v) for v in value))
    # The repr tells 1 from 1.0 and True, and 0.0 from -0.0.
    if value is None or isinstance(value, (bool, int, float, str, np.dtype)):
        return (type(value), repr(value))
    return _ByIdentity(value)


class _ByIdentity:
    """Key of an object that equals itself alone, and keeps it alive."""

    def __init__(self, value):
        self.value = value

    def __hash__(self):
        return id(self.value)

    def __eq__(self, other):
        return isinstance(other, _ByIdentity) and self.value is other.value


def _enter(number, start, *pointers):
    try:
        entry = _entries[number]
        if start == 0:
            _arrived.pointers = []
        _arrived.pointers.extend(pointers)
        if len(_arrived.pointers) >= entry.pointers:
            _run(entry, iter(_arrived.pointers))
    except BaseException as error:
        _fail(error)


_callback = ctypes.CFUNCTYPE(
    None, *[ctypes.c_uint64] * (2 + POINTERS_PER_CALL)
)(_enter)
_ENTER_ADDRESS = ctypes.cast(_callback, ctypes.c_void_p).value


def _fail(error):
    if not _levels:
        # Nobody to tell: Python prints it.
        raise error
    _levels[-1].append(error)
    launcher.stopped.value = 1


def _run(entry, pointers):
    results = [_array(pointers, *spec) for spec in entry.outputs]
    if launcher.stopped.value:
        # A later step of a loop in which a call failed.
        _fill(results)
        return
    try:
        operands = [_array(pointers, *spec) for spec in entry.inputs]
        for operand in operands:
            operand.flags.writeable = False
        values = entry.fn(*operands)
        if not isinstance(values, (tuple, list)):
            values = (values,)
        for result, value in zip(results, values, strict=True):
            value = np.asarray(value)
            if value.shape != result.shape:
                raise ValueError(
                    "A host call returned an array of another shape than "
                    f"declared. Expected: {result.shape}. Received: "
                    f"{value.shape} from {entry.fn}"
                )
            result[...] = value
    except BaseException:
        _fill(results)
        raise


def _fill(results):
    # A kernel may take them for indices before it ends.
    for result in results:
        result[...] = 0 if result.dtype.kind in "biu" else np.nan


def _array(pointers, shape, dtype):
    if 0 in shape:
        return np.empty(shape, dtype)
    size = math.prod(shape) * dtype.itemsize
    memory = (ctypes.c_char * size).from_address(next(pointers))
    return np.frombuffer(memory, dtype).reshape(shape)
