"""Tensors, variables, shape inference and control flow on tinygrad."""

import builtins
import contextlib
import math
import operator
import weakref

import numpy as np
from tinygrad import Device
from tinygrad import Tensor
from tinygrad import dtypes as tinygrad_dtypes

from keras.src import tree
from keras.src.backend.common import KerasVariable
from keras.src.backend.common import dtypes
from keras.src.backend.common import global_state
from keras.src.backend.common import standardize_dtype
from keras.src.backend.common.dtypes import result_type
from keras.src.backend.common.keras_tensor import KerasTensor
from keras.src.backend.common.stateless_scope import StatelessScope
from keras.src.backend.common.stateless_scope import get_stateless_scope
from keras.src.backend.common.stateless_scope import in_stateless_scope
from keras.src.backend.common.symbolic_scope import SymbolicScope
from keras.src.backend.common.symbolic_scope import in_symbolic_scope
from keras.src.backend.config import floatx
from keras.src.backend.tinygrad import complex
from keras.src.backend.tinygrad import engine
from keras.src.backend.tinygrad.engine.gradient import custom_vjp
from keras.src.backend.tinygrad.engine.indexing import gather_rows
from keras.src.backend.tinygrad.engine.indexing import scatter_rows
from keras.src.backend.tinygrad.engine.remat import boundary
from keras.src.backend.tinygrad.engine.remat import rematerialize
from keras.src.backend.tinygrad.engine.scan import run as run_loop
from keras.src.backend.tinygrad.engine.scan_body import trace as trace_loop
from keras.src.backend.tinygrad.engine.tensors import strong
from keras.src.backend.tinygrad.engine.transfer import NUMPY_DTYPES
from keras.src.backend.tinygrad.engine.transfer import from_numpy
from keras.src.backend.tinygrad.engine.transfer import to_numpy
from keras.src.backend.tinygrad.engine.while_loop import run_while

SUPPORTS_SPARSE_TENSORS = False
SUPPORTS_RAGGED_TENSORS = False
SUPPORTS_COMPLEX_DTYPES = True
# tinygrad's launches, allocator and caches are not safe from two threads.
# `engine.lock` guards them; this keeps Keras' callbacks on one thread.
IS_THREAD_SAFE = False

DTYPES_BY_NAME = {
    "float16": tinygrad_dtypes.float16,
    "float32": tinygrad_dtypes.float32,
    "float64": tinygrad_dtypes.float64,
    "bfloat16": tinygrad_dtypes.bfloat16,
    "float8_e4m3fn": tinygrad_dtypes.fp8e4m3,
    "float8_e5m2": tinygrad_dtypes.fp8e5m2,
    "uint8": tinygrad_dtypes.uint8,
    "uint16": tinygrad_dtypes.uint16,
    "uint32": tinygrad_dtypes.uint32,
    "uint64": tinygrad_dtypes.uint64,
    "int8": tinygrad_dtypes.int8,
    "int16": tinygrad_dtypes.int16,
    "int32": tinygrad_dtypes.int32,
    "int64": tinygrad_dtypes.int64,
    "bool": tinygrad_dtypes.bool,
}

# `standardize_dtype` looks dtypes up here first, which saves a patch there.
dtypes.PYTHON_DTYPES_MAP.update({v: k for k, v in DTYPES_BY_NAME.items()})
dtypes.PYTHON_DTYPES_MAP.update(
    {
        tinygrad_dtypes.weakint: "int32",
        tinygrad_dtypes.weakfloat: "float32",
    }
)


def to_tinygrad_dtype(dtype):
    """Returns the tinygrad `DType` for a Keras dtype.

    Args:
        dtype: Keras dtype name, or anything `standardize_dtype` takes.

    Raises:
        ValueError: If tinygrad has no such dtype.
    """
    name = standardize_dtype(dtype)
    if name not in DTYPES_BY_NAME:
        raise ValueError(
            f"Unsupported dtype for the tinygrad backend: '{name}'. Expected "
            f"one of {sorted(DTYPES_BY_NAME)}."
        )
    return DTYPES_BY_NAME[name]


@contextlib.contextmanager
def device_scope(device_name):
    previous_device = global_state.get_global_attribute("tinygrad_device", None)
    device = _parse_device(device_name)
    global_state.set_global_attribute("tinygrad_device", device)
    try:
        yield device
    finally:
        global_state.set_global_attribute("tinygrad_device", previous_device)


def get_device():
    """Returns the tinygrad device of the current scope, canonical."""
    device = global_state.get_global_attribute("tinygrad_device", None)
    return Device.DEFAULT if device is None else device


def _parse_device(device_name):
    """Opens the tinygrad device of `"gpu:1"`, `"cpu"` or a tinygrad name."""
    if not isinstance(device_name, str):
        raise ValueError(
            "Invalid value for argument `device_name`. "
            "Expected a string like 'gpu:0' or 'cpu'. "
            f"Received: device_name='{device_name}'"
        )
    kind, _, index = device_name.partition(":")
    if kind.lower() == "gpu":
        # "gpu" is whichever accelerator tinygrad runs on.
        kind = Device.DEFAULT.partition(":")[0]
        if kind == "CPU":
            raise ValueError(
                f"There is no GPU for device_name='{device_name}': tinygrad's "
                "default device is the CPU. Set the environment variable "
                "`DEV` (for example `DEV=CUDA`) before importing Keras to "
                "choose another."
            )
    if index and not index.isdecimal():
        raise ValueError(
            "Invalid value for argument `device_name`. Expected "
            "'device_type:device_index' with a numeric index. "
            f"Received: device_name='{device_name}'"
        )
    device = Device.canonicalize(f"{kind.upper()}:{index or 0}")
    try:
        # Nothing but opening it tells whether it is there.
        Device[device]
    except Exception as error:
        present = [name.lower() for name in Device.get_available_devices()]
        raise ValueError(
            f"There is no device for device_name='{device_name}'. Expected one "
            f"that tinygrad can open, as these here: {', '.join(present)}. "
            f"Opening {device} raised {type(error).__name__}: {error}"
        ) from error
    return device


class Variable(KerasVariable):
    def _initialize(self, value):
        value = convert_to_tensor(value, dtype=self._dtype)
        self._value = _own_buffer(value, get_device())
        if isinstance(self._value, Tensor):
            engine.track_state(self)
        else:
            self._parts = [_Part(self, name) for name in ("real", "imag")]

    def _direct_assign(self, value):
        # A new buffer, not a write into the old one: lazy graphs that read
        # the old value have not run yet.
        with engine.lock:
            self._value = _own_buffer(value, self._value.device)

    def _convert_to_tensor(self, value, dtype=None):
        return convert_to_tensor(value, dtype=dtype)

    def __array__(self, dtype=None, copy=None):
        return np.asarray(convert_to_numpy(self.value), dtype)


class _Part:
    """A part of a complex variable, which compiled steps that read it follow.

    Args:
        variable: Complex `Variable`, which keeps its parts alive.
        name: `"real"` or `"imag"`.
    """

    def __init__(self, variable, name):
        self._variable = weakref.ref(variable)
        self._name = name
        engine.track_state(self)

    @property
    def _value(self):
        return getattr(self._variable()._value, self._name)


def _own_buffer(value, device):
    """Returns a realized copy of `value` in a buffer nobody else holds."""
    if 0 in value.shape:
        return value
    return value.to(device).clone(device=device).realize()


class UpdateScope(StatelessScope):
    """A stateless scope that lists the variables updated in it.

    Args:
        collect_losses: Whether layers' losses are kept in the scope.
        outer: Scope whose values and losses this one starts from, if any.
    """

    def __init__(self, collect_losses, outer=None):
        super().__init__(collect_losses=collect_losses)
        self.updated = {}
        if outer is not None:
            self.state_mapping.update(outer.state_mapping)
            self.losses = outer.losses

    def add_update(self, update):
        # No gradient flows through an assignment, as outside a scope: what
        # follows the update of a discriminator, say, is no function of it.
        variable, value = update
        super().add_update((variable, stop_gradient(value)))
        self.updated[id(variable)] = variable

    def get_current_value(self, variable):
        # Keras takes what the scope answers for the value, untouched
        # variables included.
        value = super().get_current_value(variable)
        return variable._value if value is None else value

    def updates(self):
        """Returns the pairs `(variable, new value)`."""
        return [(v, self.get_current_value(v)) for v in self.updated.values()]


def uninitialized_variables():
    """Returns variables made in a stateless scope, not initialized yet."""
    return global_state.get_global_attribute("uninitialized_variables", [])


_NARROW_INTEGERS = tuple(
    map(to_tinygrad_dtype, ("int8", "uint8", "int16", "uint16"))
)


def convert_to_tensor(x, dtype=None, sparse=None, ragged=None):
    if sparse:
        raise ValueError("`sparse=True` is not supported with tinygrad backend")
    if ragged:
        raise ValueError("`ragged=True` is not supported with tinygrad backend")
    if dtype is not None:
        dtype = standardize_dtype(dtype)
    if isinstance(x, Variable):
        x = x.value
    if complex.is_complex(x) or complex.is_complex_dtype(dtype):
        return complex.convert(x, dtype)
    if isinstance(x, Tensor):
        if x.device is not None and x.device != get_device():
            x = x.to(get_device())
        target = to_tinygrad_dtype(dtype or strong(x).dtype)
        if x.dtype != target and not x.is_floating_point():
            # Integers and booleans carry no gradient back.
            x = x.detach()
        if target in _NARROW_INTEGERS and x.is_floating_point():
            x = _saturated(x, target)
        return x.cast(target)
    if isinstance(x, KerasTensor):
        raise ValueError(
            "A symbolic `KerasTensor` has no value to convert to a tensor. "
            "Use Keras layers and `keras.ops` to compute with it. "
            f"Received: x={x}"
        )
    if isinstance(x, (bool, int, float)):
        target = to_tinygrad_dtype(dtype or _python_scalar_dtype(x))
        if tinygrad_dtypes.is_int(target):
            x = int(x)
            _check_in_range(x, x, target)
        return Tensor(x, dtype=target)
    if isinstance(x, (list, tuple)):
        leaves = tree.flatten(x)
        if any(is_tensor(e) or isinstance(e, Variable) for e in leaves):
            return _stack(x, dtype)
        return _from_list(x, leaves, dtype)
    return _from_array(x, np.asarray(x), dtype)


def _from_list(x, leaves, dtype):
    """Converts a nested sequence of numbers."""
    array = np.asarray(x)
    whole = array.size and array.dtype.kind in "iu"
    bounds = (int(array.min()), int(array.max())) if whole else (0, 0)
    if dtype is None:
        dtype = result_type(*[getattr(e, "dtype", type(e)) for e in leaves])
        if dtype == "int32" and not -(2**31) <= bounds[0] <= bounds[1] < 2**31:
            dtype = standardize_dtype(array.dtype)
    target = to_tinygrad_dtype(dtype)
    if tinygrad_dtypes.is_int(target):
        _check_in_range(*bounds, target)
    return _from_array(x, array, dtype)


def _check_in_range(least, greatest, dtype):
    """Raises for Python integers that a dtype does not hold.

    Negative ones of unsigned dtypes wrap around, as with torch.
    """
    low = dtype.min or -(1 << (dtype.bitsize - 1))
    if not low <= least <= greatest <= dtype.max:
        raise OverflowError(
            f"{greatest if greatest > dtype.max else least} is out of range "
            f"for dtype {standardize_dtype(dtype)}, which holds integers from "
            f"{dtype.min} to {dtype.max}. Choose another dtype."
        )


def _from_array(x, array, dtype):
    """Converts what NumPy makes of `x`."""
    if array.dtype == object or array.dtype.kind in "USmM":
        raise ValueError(
            "Cannot convert the value to a tensor of the tinygrad backend: "
            f"NumPy sees an array of dtype '{array.dtype}'. Expected numbers "
            f"or booleans in a rectangular shape. Received: x={x}"
        )
    if dtype is None:
        dtype = standardize_dtype(array.dtype)
    array = array.astype(NUMPY_DTYPES[to_tinygrad_dtype(dtype)], copy=False)
    return from_numpy(array, get_device())


def _saturated(x, dtype):
    """Clips numbers to an integer dtype's range, as jax's cast does.

    C leaves undefined what a number out of range becomes. It wraps around, or
    not, as the compiler sees fit, and so would a negative zero point of
    quantized weights.
    """
    x = x.detach()
    # The limits need not be numbers of a narrow dtype.
    x = x if x.dtype.itemsize >= 4 else x.float()
    return x.ne(x).where(0, x.clip(dtype.min, dtype.max))


def _python_scalar_dtype(x):
    if isinstance(x, bool):
        return "bool"
    if isinstance(x, int):
        return "int32" if -(2**31) <= x < 2**31 else "int64"
    return floatx()


def _common_dtype(tensors):
    """Returns the name of the dtype that tensors get together."""
    names = {standardize_dtype(t.dtype) for t in tensors}
    if len(names) == 1:
        # Keras' promotion makes 32 bits of 64, even where all have 64.
        return names.pop()
    if names.isdisjoint(complex.PART_DTYPES):
        return result_type(*names)
    # Keras' promotion knows no complex dtypes.
    double = not names.isdisjoint(("complex128", "float64"))
    return "complex128" if double else "complex64"


def _promote(values):
    """Converts values to tensors of one dtype."""
    values = [convert_to_tensor(v) for v in values]
    dtype = _common_dtype(values)
    return [cast(v, dtype) for v in values]


def _stack(values, dtype):
    """Stacks a nested sequence that holds tensors."""
    values = _promote([convert_to_tensor(v, dtype) for v in values])
    return complex.by_parts(
        lambda x, *xs: x.stack(*xs) if xs else x[None], *values
    )


def convert_to_numpy(x):
    if isinstance(x, Variable):
        x = x.value
    if isinstance(x, complex.ComplexTensor):
        return x.numpy()
    if is_tensor(x):
        return to_numpy(x)
    if isinstance(x, (list, tuple)):
        return np.array([convert_to_numpy(e) for e in x])
    return np.array(x)


def is_tensor(x):
    return isinstance(x, (Tensor, complex.ComplexTensor))


def shape(x):
    x = x if hasattr(x, "shape") else convert_to_tensor(x)
    return tuple(x.shape)


def cast(x, dtype):
    return convert_to_tensor(x, dtype=dtype)


# What stands in for an unknown dimension while shapes are inferred: a result
# dimension that differs between the two is unknown too.
_UNKNOWN_DIMENSIONS = (83, 89)


def compute_output_spec(fn, *args, **kwargs):
    def run(unknown_dimension):
        def placeholder(x):
            if not isinstance(x, KerasTensor):
                return x
            dims = [unknown_dimension if d is None else d for d in x.shape]
            # Lazy, but with a buffer and a value should `fn` read it.
            return cast(Tensor.ones(*dims), x.dtype).clone(device=get_device())

        return fn(
            *tree.map_structure(placeholder, args),
            **tree.map_structure(placeholder, kwargs),
        )

    def spec(x, other):
        if not is_tensor(x):
            return x
        dims = [a if a == b else None for a, b in zip(x.shape, other.shape)]
        return KerasTensor(dims, standardize_dtype(x.dtype))

    unknown = any(
        isinstance(x, KerasTensor) and None in x.shape
        for x in tree.flatten((args, kwargs))
    )
    with StatelessScope(), SymbolicScope():
        outputs = run(_UNKNOWN_DIMENSIONS[0])
        others = run(_UNKNOWN_DIMENSIONS[1]) if unknown else outputs
    return tree.map_structure(spec, outputs, others)


def cond(pred, true_fn, false_fn):
    if not in_stateless_scope():
        return true_fn() if bool(convert_to_tensor(pred)) else false_fn()
    # The predicate is not known yet: run both and select, results and
    # variable updates alike.
    return _select([convert_to_tensor(pred, "bool")], [true_fn, false_fn], ())


def switch(index, branches, *operands):
    index = convert_to_tensor(index, "int32").clip(0, len(branches) - 1)
    if index.numel() != 1:
        raise TypeError(
            "`switch` expects one index. Received: an index of shape "
            f"{index.shape}"
        )
    if not in_stateless_scope():
        return branches[int(index)](*operands)
    tests = [index == i for i in range(len(branches) - 1)]
    return _select(tests, branches, operands)


def _select(tests, branches, operands):
    """Runs all branches; takes the first whose test holds, else the last."""
    outer = get_stateless_scope()
    results = []
    updates = []
    touched = {}
    for branch in branches:
        with UpdateScope(outer.collect_losses, outer) as scope:
            results.append(branch(*operands))
        updates.append(scope)
        touched.update(scope.updated)

    def pick(*values):
        if all(v is None for v in values):
            return None
        return complex.by_parts(choose, *_promote(values))

    def choose(*values):
        chosen = values[-1]
        for test, value in zip(reversed(tests), reversed(values[:-1])):
            chosen = test.where(value, chosen)
        return chosen

    for variable in touched.values():
        values = []
        for scope in updates:
            value = scope.get_current_value(variable)
            values.append(variable.value if value is None else value)
        outer.add_update((variable, pick(*values)))
    return tree.map_structure(pick, *results, none_is_leaf=True)


def vectorized_map(function, elements):
    return map(function, elements)


def map(f, xs):
    return scan(lambda _, x: ((), f(x)), (), xs)[1]


def scan(f, init, xs=None, length=None, reverse=False, unroll=1):
    if not callable(f):
        raise TypeError(f"A step should be a callable. Received: f={f}")
    if not isinstance(unroll, bool) and (
        not isinstance(unroll, int) or unroll < 1
    ):
        # Upstream's tests look for these words.
        raise ValueError(
            "`unroll` says how many steps are unrolled at once, or whether "
            "all are: it must be an positive integer or boolean. Received: "
            f"unroll={unroll!r}"
        )
    if xs is None and length is None:
        raise ValueError(
            "`scan` has no tensors to scan over and no number of steps. Pass "
            "`xs` or `length`."
        )
    carry, xs = _to_tensors(init), _to_tensors(xs)
    counts = [x.shape[0] for x in _leaves(xs)]
    counts += [] if length is None else [int(length)]
    if len(set(counts)) > 1:
        raise ValueError(
            "`scan` expects all tensors in `xs` to have the same first "
            "dimension, equal to `length` if that is given. Received: first "
            f"dimensions {[x.shape[0] for x in _leaves(xs)]} and "
            f"length={length}"
        )
    if counts[0] == 0:
        return _scan_no_step(f, carry, xs)
    if in_symbolic_scope():
        return _scan_one_step(f, carry, xs, counts[0])
    if unroll is not True and unroll < counts[0]:
        try:
            return _compiled_scan(f, carry, xs, counts[0], reverse)
        except (_NotALoop, engine.HostReadError):
            pass
    return _unrolled_scan(f, carry, xs, counts[0], reverse)


class _NotALoop(Exception):
    """A scan whose steps are not all alike."""


def _to_tensors(structure):
    return tree.map_structure(
        lambda x: None if x is None else convert_to_tensor(x), structure
    )


def _leaves(structure):
    return [x for x in tree.flatten(structure) if x is not None]


def _parts(structure):
    """Returns the leaves with two real tensors in place of each complex one.

    This is what the engine works on. `_pack` puts them together again.
    """
    parts = []
    for x in _leaves(structure):
        split = isinstance(x, complex.ComplexTensor)
        parts += [x.real, x.imag] if split else [x]
    return parts


def _pack(structure, parts):
    """Puts parts in the place of those of a structure, but `None`s."""
    parts = iter(parts)

    def leaf(x):
        if isinstance(x, complex.ComplexTensor):
            return complex.ComplexTensor(next(parts), next(parts))
        return None if x is None else next(parts)

    return tree.map_structure(leaf, structure)


def _scan_no_step(f, carry, xs):
    """Traces a step, without effects, for the shapes of its results."""

    def zeros(dims, like):
        return convert_to_tensor(np.zeros(dims), like.dtype)

    slices = [zeros(x.shape[1:], x) for x in _parts(xs)]
    with StatelessScope():
        _, y = f(carry, _pack(xs, slices))
    y = _to_tensors(y)
    return carry, _pack(y, [zeros((0, *x.shape), x) for x in _parts(y)])


def _scan_one_step(f, carry, xs, count):
    """Gives a scan's results the right shapes, but not their values."""
    carry, y = f(carry, _pack(xs, [x[0] for x in _parts(xs)]))
    y = _to_tensors(y)
    stacked = [x[None].expand(count, *x.shape) for x in _parts(y)]
    return carry, _pack(y, stacked)


def _unrolled_scan(f, carry, xs, count, reverse):
    results = []
    steps = range(count)
    for i in reversed(steps) if reverse else steps:
        carry, result = f(carry, _pack(xs, [x[i] for x in _parts(xs)]))
        results.append(result)
    if reverse:
        results.reverse()
    return carry, tree.map_structure(
        lambda *ys: None if ys[0] is None else _stack(ys, None), *results
    )


def _compiled_scan(f, carry, xs, count, reverse):
    """Runs a scan as one loop whose body is traced once."""
    body, step, carries = _trace_loop(f, carry, xs)
    final, ys = run_loop(body, carries, _parts(xs), count, reverse)
    return step.finish(final), _pack(step.result, ys)


def _trace_loop(f, carry, xs):
    """Traces the body of a loop.

    Variables that the body updates are carried along: theirs is the value of
    the step before, as it is in a plain loop. So are the sums of the losses
    that layers add in it.

    Returns:
        The traced body, its `_Step`, and the list of the first carries.
    """
    slices = _parts(xs)
    if not all(
        is_tensor(x) and 0 not in x.shape for x in _leaves(carry) + slices
    ):
        raise _NotALoop
    variables, totals = [], []
    while True:
        step = _Step(f, carry, xs, variables)
        first = _parts(step.state) + totals
        body = trace_loop(
            step,
            [(t.shape, t.dtype) for t in first],
            [(x.shape[1:], x.dtype) for x in slices],
            get_device(),
        )
        if (
            not step.more_variables
            and step.dtypes
            == [standardize_dtype(t.dtype) for t in _leaves(carry)]
            and len(step.layers) == len(totals)
        ):
            return body, step, first
        variables += step.more_variables
        needed = iter(step.dtypes)
        carry = tree.map_structure(
            lambda x: None if x is None else cast(x, next(needed)), carry
        )
        totals = step.zeros


class _Step:
    """The body of a scan as a function of lists of real tensors.

    Attributes:
        state: The first carry, and the list of the first values of the
            variables that are carried.
        more_variables: List of the variables that the body updated and that
            were not carried.
        dtypes: List of the names of the dtypes that the carries need.
        layers: List of the layers that added a loss, one for each loss.
        zeros: List of what the sums of those losses begin with.
        result: The structure of the body's results.
    """

    def __init__(self, f, carry, xs, variables):
        self._f, self._xs = f, xs
        self._variables = variables
        self.state = carry, [convert_to_tensor(v) for v in variables]

    def __call__(self, carries, slices):
        outer = get_stateless_scope() if in_stateless_scope() else None
        collect = outer is None or outer.collect_losses
        carry, values = _pack(self.state, carries)
        before = _leaves(carry)
        with UpdateScope(collect, outer) as scope:
            scope.losses = []
            for variable, value in zip(self._variables, values):
                scope.state_mapping[id(variable)] = value
            carry, result = self._f(carry, _pack(self._xs, slices))
        self.layers = [_take_loss(x) for x in scope.losses]
        self.zeros = [
            Tensor.zeros(*x.shape, dtype=x.dtype) for x in scope.losses
        ]
        self.more_variables = [
            v
            for v in scope.updated.values()
            if not any(v is known for known in self._variables)
        ]
        self.result = _to_tensors(result)
        after = _leaves(_to_tensors(carry))
        if [t.shape for t in after] != [t.shape for t in before] or not all(
            is_tensor(y) for y in _leaves(self.result)
        ):
            raise _NotALoop
        self.dtypes = [_common_dtype(pair) for pair in zip(before, after)]
        new_carries = [cast(x, old.dtype) for x, old in zip(after, before)]
        new_values = [
            convert_to_tensor(scope.get_current_value(v), v.dtype)
            for v in self._variables
        ]
        new_state = _parts(new_carries + new_values)
        totals = carries[len(new_state) :]
        totals = [total + x for total, x in zip(totals, scope.losses)]
        return new_state + totals, _parts(self.result)

    def finish(self, final):
        """Takes the last values of what was carried.

        Args:
            final: List of real tensors, the values after the last step.

        Returns:
            The structure of the carries. Variables have their new values,
            and layers the sum of the losses that they added.
        """
        carry, values = _pack(self.state, final)
        for variable, value in zip(self._variables, values):
            variable.assign(value)
        for layer, total in zip(self.layers, final[len(_parts(self.state)) :]):
            layer.add_loss(total)
        return carry


def _take_loss(loss):
    """Finds the layer that added a loss, and makes it forget the loss."""
    context = global_state.get_global_attribute("current_call_ctx")
    layers = context.entry_layer._flatten_layers() if context else []
    for layer in layers:
        if id(loss) in layer._loss_ids:
            layer._loss_ids.remove(id(loss))
            return layer
    # The layers of a body that is called from outside all layers keep the
    # losses of the last step.
    raise _NotALoop


def associative_scan(f, elems, reverse=False, axis=0):
    # Imported at use: the numpy package imports this module.
    from keras.src.backend.tinygrad.numpy.common import canonicalize_axis

    if not callable(f):
        raise TypeError(f"`f` should be a callable. Received: f={f}")
    elems = tree.map_structure(convert_to_tensor, elems)
    leaves = _parts(elems)
    axes = [canonicalize_axis(axis, x.ndim) for x in leaves]
    counts = [x.shape[axis] for x, axis in zip(leaves, axes)]
    if len(set(counts)) > 1:
        raise ValueError(
            "Array inputs to associative_scan must have the same "
            f"first dimension. (saw: {[tuple(x.shape) for x in leaves]})"
        )

    def combine(a, b):
        return _combine_parts(f, elems, a, b)

    def cut(values, start, stop):
        return [
            v.shrink(
                tuple(
                    (start, stop) if d == axis else (0, size)
                    for d, size in enumerate(v.shape)
                )
            )
            for v, axis in zip(values, axes)
        ]

    # Hillis and Steele's scan (Data parallel algorithms, 1986): log2(n)
    # rounds, each combining every element with the one `step` before it.
    values = [x.flip(d) if reverse else x for x, d in zip(leaves, axes)]
    count, step = counts[0], 1
    while step < count:
        merged = combine(cut(values, 0, count - step), cut(values, step, count))
        # Each round is a kernel: masks within masks take long to compile.
        values = [
            head.cat(tail, dim=d).contiguous().contiguous_backward()
            for head, tail, d in zip(cut(values, 0, step), merged, axes)
        ]
        step *= 2
    values = [x.flip(d) if reverse else x for x, d in zip(values, axes)]
    return _pack(elems, values)


def _combine_parts(f, elems, a, b):
    """Combines elements of an associative scan, given by their parts."""
    result = _to_tensors(f(_pack(elems, a), _pack(elems, b)))
    for x, element in zip(_leaves(result), _leaves(elems)):
        if isinstance(x, Tensor) is not isinstance(element, Tensor):
            raise TypeError(
                "`associative_scan` expects `f` to return complex tensors for "
                "complex `elems` and real ones for real `elems`. Cast `elems` "
                "to the dtype of the result. Received: a result of dtype "
                f"{standardize_dtype(x.dtype)} for elems of dtype "
                f"{standardize_dtype(element.dtype)}"
            )
    return _parts(result)


def while_loop(cond, body, loop_vars, maximum_iterations=None):
    is_sequence = isinstance(loop_vars, (tuple, list))
    values = tuple(loop_vars) if is_sequence else (loop_vars,)
    values = _to_tensors(values)
    limit = maximum_iterations
    if limit is not None and limit <= 0:
        more = False
    else:
        more = in_symbolic_scope() or bool(convert_to_tensor(cond(*values)))
    if more:

        def step(values):
            values = body(*values)
            if not isinstance(values, (list, tuple)):
                values = (values,)
            return _to_tensors(tuple(values))

        if in_symbolic_scope():
            values = step(values)
        else:
            values = _repeat(step, cond, values, limit)
    return values if is_sequence else values[0]


def _repeat(step, cond, values, limit):
    """Does a step, and more of them while `cond` holds."""

    def step_and_test(values, _):
        values = step(values)
        return values, convert_to_tensor(cond(*values), "bool").reshape(())

    try:
        body, traced, carries = _trace_loop(step_and_test, values, None)
        return traced.finish(run_while(body, carries, limit))
    except (_NotALoop, engine.HostReadError):
        pass
    count = 0
    while True:
        values = step(values)
        engine.realize(*[x for x in _parts(values) if is_tensor(x)])
        count += 1
        if count == limit or not bool(convert_to_tensor(cond(*values))):
            return values


def fori_loop(lower, upper, body_fun, init_val):
    lower, upper = int(lower), int(upper)
    value = _to_tensors(init_val)
    if upper <= lower:
        return value
    if in_symbolic_scope():
        return body_fun(lower, value)
    steps = Tensor.arange(lower, upper, dtype=tinygrad_dtypes.int32)
    try:
        return _compiled_scan(
            lambda value, i: (body_fun(i, value), None),
            value,
            steps,
            upper - lower,
            False,
        )[0]
    except (_NotALoop, engine.HostReadError):
        for i in range(lower, upper):
            value = body_fun(i, value)
        return value


def scatter(indices, values, shape):
    indices = convert_to_tensor(indices)
    values = convert_to_tensor(values)
    shape = [operator.index(n) for n in shape]
    if min([0, *shape]) < 0:
        raise ValueError(
            "`scatter` expects a shape of no negative sizes. "
            f"Received: shape={shape}"
        )
    zeros = complex.by_parts(
        lambda x: Tensor.zeros(*shape, dtype=x.dtype, device=x.device), values
    )
    return scatter_update(zeros, indices, values, reduction="add")


def scatter_update(inputs, indices, updates, reduction=None):
    if reduction not in (None, "add", "max", "min", "mul"):
        raise ValueError(f"Unsupported reduction: {reduction}")
    inputs = convert_to_tensor(inputs)
    if not isinstance(inputs, Tensor) and reduction not in (None, "add"):
        raise NotImplementedError(
            f"`scatter_update` with reduction='{reduction}' does not support "
            "complex tensors with the tinygrad backend. Update the parts, "
            "`keras.ops.real` and `keras.ops.imag`, or use no reduction or "
            f"'add'. Received: inputs.shape={inputs.shape}, "
            f"inputs.dtype={inputs.dtype}"
        )
    indices = index_tensor(indices)
    updates = convert_to_tensor(updates, dtype=inputs.dtype)
    depth = indices.shape[-1] if indices.ndim else 0
    indexed, rest = inputs.shape[:depth], inputs.shape[depth:]
    if not 0 < depth <= inputs.ndim or updates.shape != (
        *indices.shape[:-1],
        *rest,
    ):
        raise ValueError(
            "`scatter` and `scatter_update` expect `indices` of shape "
            "(..., depth) and updates for each of them. Received: "
            f"inputs.shape={inputs.shape}, indices.shape={indices.shape}, "
            f"updates.shape={updates.shape}"
        )
    row = _ravel_index(indices, indexed).reshape(-1)

    def update(inputs, updates):
        rows = inputs.reshape(math.prod(indexed), *rest)
        updates = updates.reshape(row.shape[0], *rest)
        result = scatter_rows(rows, row, updates, reduction or "update")
        return result.reshape(inputs.shape)

    return complex.by_parts(update, inputs, updates)


def index_tensor(indices):
    """Converts integers to a signed dtype that has the sizes of axes."""
    index = convert_to_tensor(indices)
    if index.is_floating_point():
        return index
    if index.dtype.itemsize < 4:
        return cast(index, "int32")
    wide = index.dtype in tinygrad_dtypes.uints
    return cast(index, "int64") if wide else index


def _ravel_index(indices, dims):
    """Turns `(..., len(dims))` indices into row numbers; negatives wrap."""
    flat = None
    for d, size in enumerate(dims):
        index = indices[..., d]
        index = (index < 0).where(index + size, index)
        flat = index if flat is None else flat * size + index
    return flat


def slice(inputs, start_indices, shape):
    inputs = convert_to_tensor(inputs)
    sizes = [int(s) for s in shape]
    if len(sizes) != inputs.ndim:
        raise ValueError(
            "`slice` expects a size for each axis. "
            f"Received: shape={shape}, inputs.shape={inputs.shape}"
        )
    starts = _static_starts(start_indices)
    if starts is not None:
        _check_inside("slice", starts, sizes, inputs.shape)
        bounds = [(a, a + n) for a, n in zip(starts, sizes)]
        return inputs.shrink(tuple(bounds))
    starts = _clamped_starts(start_indices, inputs.shape, sizes)

    def gather(x):
        for axis, (start, size) in enumerate(zip(starts, sizes)):
            index = start + Tensor.arange(size, dtype=start.dtype)
            x = gather_rows(x.transpose(0, axis), index).transpose(0, axis)
        return x

    return complex.by_parts(gather, inputs)


def slice_update(inputs, start_indices, updates):
    inputs = convert_to_tensor(inputs)
    updates = convert_to_tensor(updates, dtype=inputs.dtype)
    if updates.ndim != inputs.ndim or any(
        n > total for n, total in zip(updates.shape, inputs.shape)
    ):
        raise ValueError(
            "`slice_update` expects updates that fit into the inputs. "
            f"Received: inputs.shape={inputs.shape}, "
            f"updates.shape={updates.shape}"
        )
    starts = _static_starts(start_indices)
    if starts is not None:
        _check_inside("slice_update", starts, updates.shape, inputs.shape)
        padding = tuple(
            (a, total - a - n)
            for a, n, total in zip(starts, updates.shape, inputs.shape)
        )

        def replace(x, new):
            inside = new.const_like(1).cast(tinygrad_dtypes.bool).pad(padding)
            return inside.where(new.pad(padding), x)

        return complex.by_parts(replace, inputs, updates)
    starts = _clamped_starts(start_indices, inputs.shape, updates.shape)
    rows = None
    for start, size, total in zip(starts, updates.shape, inputs.shape):
        index = start + Tensor.arange(size, dtype=start.dtype)
        rows = index if rows is None else rows[..., None] * total + index

    def update(x, new):
        new = new.reshape(-1)
        result = scatter_rows(x.reshape(-1), rows.reshape(-1), new, "update")
        return result.reshape(x.shape)

    return complex.by_parts(update, inputs, updates)


def _static_starts(start_indices):
    """Returns the start indices as ints, or `None` where one is a tensor."""
    if is_tensor(start_indices) or isinstance(start_indices, Variable):
        return None
    if any(is_tensor(s) or isinstance(s, Variable) for s in start_indices):
        return None
    return [int(s) for s in start_indices]


def _check_inside(name, starts, sizes, dims):
    if len(starts) != len(dims) or not all(
        0 <= start <= start + size <= total
        for start, size, total in zip(starts, sizes, dims)
    ):
        raise ValueError(
            f"`{name}` expects slices that lie inside the inputs. Received: "
            f"start_indices={starts}, slices of shape {tuple(sizes)}, inputs "
            f"of shape {tuple(dims)}"
        )


def _clamped_starts(start_indices, dims, sizes):
    """Returns one scalar start for each axis, so that slices lie inside."""
    starts = convert_to_tensor(start_indices, "int32")
    return [
        starts[axis].clip(0, total - size)
        for axis, (total, size) in enumerate(zip(dims, sizes))
    ]


def stop_gradient(variable):
    return convert_to_tensor(variable).detach()


def unstack(x, num=None, axis=0):
    # Imported at use: the numpy package imports this module.
    from keras.src.backend.tinygrad.numpy.common import canonicalize_axis

    x = convert_to_tensor(x)
    axis = canonicalize_axis(axis, x.ndim)
    if num is not None and num != x.shape[axis]:
        raise ValueError(
            f"`num` must be the size of axis {axis}, which is "
            f"{x.shape[axis]}. Received: num={num}"
        )
    before = (builtins.slice(None),) * axis
    return [x[(*before, i)] for i in range(x.shape[axis])]


def random_seed_dtype():
    return "uint32"


def remat(f):
    """Makes the gradient of a function compute its values again.

    Args:
        f: Function or operation.

    Returns:
        A function with the values of `f`. What `f` computes from its tensor
        arguments is not kept for the gradient but computed from them once
        more; what it computes from variables alone is kept.
    """

    def rematerialized(*args, **kwargs):
        leaves = _parts((args, kwargs))
        inputs = [x for x in leaves if _is_plain(x)]
        boundaries = [boundary(x) for x in inputs]
        replacements = iter(boundaries)
        args, kwargs = _pack(
            (args, kwargs),
            [next(replacements) if _is_plain(x) else x for x in leaves],
        )
        outputs = f(*args, **kwargs)
        results = _parts(outputs)
        chosen = [
            i
            for i, x in enumerate(results)
            if _is_plain(x) and x.is_floating_point()
        ]
        if not inputs or not chosen or in_symbolic_scope():
            return outputs
        values = rematerialize([results[i] for i in chosen], inputs, boundaries)
        for i, value in zip(chosen, values):
            results[i] = value
        return _pack(outputs, results)

    return rematerialized


def _is_plain(x):
    return is_tensor(x) and x.device is not None and 0 not in x.shape


class custom_gradient:
    """Decorator for a function that returns its result and its gradient.

    Args:
        fun: Function that returns `(outputs, grad_fn)`; `grad_fn(*args,
            upstream=...)` gives the gradient for each argument, `None` where
            there is none. That of a complex number has the derivatives by
            its real and imaginary part for parts, as with torch.
    """

    def __init__(self, fun):
        self.fun = fun

    def __call__(self, *args, **kwargs):
        args = [convert_to_tensor(a) if _is_array(a) else a for a in args]
        outputs, grad_fn = self.fun(*args, **kwargs)
        outputs = tree.map_structure(convert_to_tensor, outputs)
        results = _parts(outputs)
        floating = [i for i, x in enumerate(results) if x.is_floating_point()]
        inputs = [
            i
            for i, a in enumerate(args)
            if is_tensor(a) and _parts(a)[0].is_floating_point()
        ]

        def vjp(cotangents):
            upstream = [x.const_like(0) for x in results]
            for i, cotangent in zip(floating, cotangents):
                if cotangent is not None:
                    upstream[i] = cotangent
            grads = grad_fn(*args, upstream=_pack(outputs, upstream))
            if not isinstance(grads, (list, tuple)):
                grads = (grads,)
            found = []
            for i in inputs:
                if grads[i] is None:
                    found += [None] * len(_parts(args[i]))
                else:
                    found += _parts(_convert_like(grads[i], args[i]))
            return found

        declared = custom_vjp(
            [results[i] for i in floating],
            _parts([args[i] for i in inputs]),
            vjp,
        )
        # Not in `results`, which `vjp` holds.
        returned = list(results)
        for i, result in zip(floating, declared):
            returned[i] = result
        return _pack(outputs, returned)


def _convert_like(x, like):
    """Converts to a tensor that is complex if another is, and only then."""
    x = convert_to_tensor(x)
    if isinstance(x, Tensor) is isinstance(like, Tensor):
        return x
    return cast(x, like.dtype)


def _is_array(x):
    return is_tensor(x) or isinstance(x, (Variable, np.ndarray))
