"""Loops as kernels: a body's plan called once for each step.

The kernel receives the addresses of the body's programs in a buffer of
words, which also holds the number of steps and how far each address advances
from step to step: so one kernel serves all loops whose bodies call programs
of the same form.
"""

import collections
import dataclasses
import functools
import itertools
import weakref

from tinygrad import Tensor
from tinygrad import dtypes

from keras.src.backend.tinygrad.engine.canonical import canonicalize
from keras.src.backend.tinygrad.engine.canonical import superseded_stores
from keras.src.backend.tinygrad.engine.handwritten import constant_words
from keras.src.backend.tinygrad.engine.handwritten import kernel
from keras.src.backend.tinygrad.engine.handwritten import on_cpu
from keras.src.backend.tinygrad.engine.internals import ClangRenderer
from keras.src.backend.tinygrad.engine.internals import CPULLVMRenderer
from keras.src.backend.tinygrad.engine.internals import Device
from keras.src.backend.tinygrad.engine.internals import Ops
from keras.src.backend.tinygrad.engine.internals import UOp
from keras.src.backend.tinygrad.engine.internals import get_runtime
from keras.src.backend.tinygrad.engine.lowering import Unsupported
from keras.src.backend.tinygrad.engine.lowering import lower
from keras.src.backend.tinygrad.engine.lowering import own_buffer
from keras.src.backend.tinygrad.engine.lowering import place_scratch
from keras.src.backend.tinygrad.engine.scan_body import stripped

# A program may load vectors, so each step's slice starts at a multiple.
_ALIGNMENT = 64
# tinygrad launches CPU programs with at most this many arguments.
_MAX_ARGUMENTS = 63
_CAPACITY = 1024

_programs = collections.OrderedDict()
_words = collections.OrderedDict()


def runs_loops(device):
    """Whether a device's loops can be kernels."""
    return device == "CPU" and isinstance(
        Device[device].renderer, (ClangRenderer, CPULLVMRenderer)
    )


def launch(body, inputs, length, reverse):
    """Runs a loop as a kernel, lazily.

    Args:
        body: `Body` whose placeholders are on the CPU.
        inputs: List of `Tensor`s: carries, xs with the loop's axis first,
            and consts.
        length: Number of steps, at least 1.
        reverse: Whether the steps go from the last slice to the first.

    Returns:
        List of the final carries, list of the stacked results, and the
        `CALL` uop of all of them.

    Raises:
        Unsupported: If the body needs what a loop's kernel does not offer.
    """
    n, m = len(body.carries), len(body.xs)
    carries, xs, consts = inputs[:n], inputs[n : n + m], inputs[n + m :]
    places, own = _places(body)
    if not carries and not own:
        ys = [
            xs[i].reshape(length, *uop.shape)
            for (_, i), uop in zip(places, body.ys)
        ]
        return [], ys, None
    program = _program(body)
    layout = _Layout(program, length, reverse)
    stacks = [
        _empty(layout.rows(i), row) for i, row in enumerate(program.carry_rows)
    ]
    results = [_empty(length, row) for row in program.result_rows]
    scratch = Tensor.empty(program.scratch, dtype=dtypes.uint8, device="CPU")
    written = [*stacks, *results, scratch]
    slices = [row.lay_out(t) for row, t in zip(program.x_rows, xs)]
    read = [
        *[on_cpu(t).reshape(-1) for t in carries],
        *[t for t, _ in slices],
        *[on_cpu(t).reshape(-1) for t in consts],
    ]
    words = layout.words([start for _, start in slices])
    call = program.kernel().call(*[t.uop for t in (*written, *read)], words.uop)
    stacks = [Tensor(t.uop.after(call)) for t in stacks]
    results = [Tensor(t.uop.after(call)) for t in results]
    final = [
        row.cut(stack, layout.last(i), layout.last(i) + 1).reshape(uop.shape)
        for i, (row, stack, uop) in enumerate(
            zip(program.carry_rows, stacks, body.new_carries)
        )
    ]
    ys = []
    for (kind, i), uop in zip(program.places, body.ys):
        if kind == "x":
            y = xs[i]
        elif kind == "result":
            y = program.result_rows[i].cut(results[i], 0, length)
        else:
            first = layout.first(kind)
            y = program.carry_rows[i].cut(stacks[i], first, first + length)
        ys.append(y.reshape(length, *uop.shape))
    return final, ys, call


def _empty(count, row):
    return Tensor.empty(count * row.width, dtype=row.dtype, device="CPU")


@dataclasses.dataclass(frozen=True)
class _Row:
    """How one step's slice of a buffer lies in it.

    Attributes:
        size: Number of elements.
        dtype: tinygrad `DType`.
    """

    size: int
    dtype: object

    @property
    def nbytes(self):
        return self.size * self.dtype.itemsize

    @property
    def width(self):
        """Number of elements from one row to the next."""
        return self.stride // self.dtype.itemsize

    @property
    def stride(self):
        """Number of bytes from one row to the next."""
        return -(-self.nbytes // _ALIGNMENT) * _ALIGNMENT

    def lay_out(self, tensor):
        """Lays a tensor's slices out as rows.

        Args:
            tensor: `Tensor` of shape `(length, ...)`.

        Returns:
            Pair of a flat `Tensor` with storage, and the byte at which the
            first row starts in it.
        """
        found = self._find(stripped(tensor.uop), tensor.shape[0])
        if found is not None:
            return found
        flat = tensor.reshape(tensor.shape[0], self.size)
        if self.width != self.size:
            flat = flat.pad(((0, 0), (0, self.width - self.size)))
        return on_cpu(flat).reshape(-1), 0

    def _find(self, uop, length):
        """Finds rows that another loop left, to read them where they are."""
        first, count = 0, length
        if uop.op is Ops.SHRINK and len(uop.shape) == 2:
            (first, stop), columns = uop.marg
            if (stop - first, columns) != (length, (0, self.size)):
                return None
            count, width = uop.src[0].shape
            if width != self.width:
                return None
            uop = stripped(uop.src[0])
        if (
            uop.op in (Ops.AFTER, Ops.BUFFER)
            and uop.device == "CPU"
            and uop.dtype == self.dtype
            and uop.max_numel() == count * self.width
        ):
            return Tensor(uop).reshape(-1), first * self.stride
        return None

    def cut(self, tensor, start, stop):
        """Returns rows as a tensor of shape `(stop - start, size)`."""
        rows = tensor.reshape(-1, self.width)
        return rows.shrink(((start, stop), (0, self.size)))


class _Program:
    """The compiled body of a loop.

    Attributes:
        places: List with a pair for each result of the body: `("result", i)`
            where it has a buffer, `("before", i)` or `("after", i)` where it
            is carry i before or after the step, `("x", i)` where it is a
            slice.
        stacked: Set of the carries of which all steps' values are kept.
        carry_rows, x_rows, result_rows: Lists of `_Row`s.
        scratch: Bytes that a step uses besides.
        runtimes: List of the loaded programs.
        addresses: List of the addresses of the calls' programs.
    """

    def __init__(self, body):
        self.places, own = _places(body)
        self.stacked = {
            i for kind, i in self.places if kind in ("before", "after")
        }
        spec, outputs = lower_body(body, (*body.new_carries, *own))
        n, m = len(body.carries), len(body.xs)
        rows = [_Row(s.size, s.dtype) for s in spec.slots]
        first = len(body.placeholders)
        self.carry_rows = rows[:n]
        self.x_rows = rows[n : n + m]
        self.result_rows = rows[first + n : first + outputs]
        self._consts = len(body.consts)
        offsets, arenas = place_scratch(spec)
        self.scratch = max(arenas.get("CPU", 0), 1)
        self.addresses, self.runtimes, self._calls = [], [], []
        kinds = [("before", i) for i in range(n)]
        kinds += [("x", j) for j in range(m)]
        kinds += [("const", k) for k in range(self._consts)]
        kinds += [("after", i) for i in range(n)]
        kinds += [("result", i) for i in range(len(self.result_rows))]
        for one in spec.launches:
            args = [
                ("scratch", 0, view.offset + offsets[view.slot])
                if view.slot in offsets
                else (*kinds[view.slot], view.offset)
                for view in one.args
            ]
            self._add(one, args)
        if self.arguments > _MAX_ARGUMENTS:
            raise Unsupported("a loop over so many buffers")

    @property
    def arguments(self):
        """Number of the kernel's arguments."""
        return (
            2 * len(self.carry_rows)
            + len(self.result_rows)
            + len(self.x_rows)
            + self._consts
            + 2
        )

    def _add(self, launch, args):
        if launch.program is None or launch.device != "CPU":
            raise Unsupported("a copy between devices in a loop")
        info = launch.program.arg
        names = [v.expr for v in info.vars]
        if names not in ([], ["core_id"]):
            raise Unsupported("a symbolic value in a loop")
        runtime = get_runtime("CPU", launch.program)
        self.runtimes.append(runtime)
        for core in range(info.global_size[0] if names else 1):
            self.addresses.append(runtime.addr)
            self._calls.append((tuple(args), core if names else None))

    def kernel(self):
        """Returns the `SINK` uop of the loop."""
        return _kernel(
            len(self.carry_rows),
            len(self.result_rows),
            len(self.x_rows),
            self._consts,
            tuple(self._calls),
        )


class _Layout:
    """Where the steps of a loop read and write.

    A carry before step `t` is in row `t` of its buffer, or, if the loop runs
    in reverse, in row `length - t`, and after it in the next one. Where only
    the last value matters there are two rows, which take turns.
    """

    def __init__(self, program, length, reverse):
        self._program, self._length = program, length
        self._reverse = reverse

    def rows(self, carry):
        """Number of rows of a carry's buffer."""
        return self._length + 1 if carry in self._program.stacked else 2

    def last(self, carry):
        """Row of a carry after the last step."""
        if carry not in self._program.stacked:
            return self._length % 2
        return 0 if self._reverse else self._length

    def first(self, kind):
        """First of the rows that hold the carry before, or after, each step."""
        return int((kind == "before") == self._reverse)

    def words(self, starts):
        """Returns the kernel's words, one tensor for equal ones.

        Args:
            starts: List of the bytes at which the xs start.
        """
        program, steps = self._program, self._length
        values = [steps]
        for i, row in enumerate(program.carry_rows):
            if i not in program.stacked:
                values += [0, row.stride, 1, row.nbytes]
            elif self._reverse:
                values += [steps * row.stride, -row.stride, -1, row.nbytes]
            else:
                values += [0, row.stride, -1, row.nbytes]
        starts = [*starts, *[0] * len(program.result_rows)]
        rows = [*program.x_rows, *program.result_rows]
        for start, row in zip(starts, rows):
            if self._reverse:
                values += [start + (steps - 1) * row.stride, -row.stride]
            else:
                values += [start, row.stride]
        values += program.addresses
        key = tuple(value % 2**64 for value in values)
        if key not in _words:
            _words[key] = constant_words(key)
            # A plan may hold the words longer than this table does.
            weakref.finalize(
                _words[key].uop.buffer, list.clear, list(program.runtimes)
            )
            if len(_words) > _CAPACITY:
                _words.popitem(last=False)
        _words.move_to_end(key)
        return _words[key]


@functools.cache
def _kernel(carries, results, xs, consts, calls):
    """Builds the kernel of all loops of one form.

    Args:
        carries, results, xs, consts: Numbers of buffers.
        calls: Tuple with a pair for each call of a step: its arguments, as
            triples (kind, index, byte offset), and the shard, or `None`.

    Returns:
        `SINK` uop. Its parameters are the buffers of the carries, those of
        the results, the scratch memory, the first carries, the xs, the
        consts, and the words.
    """
    slots = itertools.count()

    def pointers(count):
        # Declared as bytes of unknown number: all that is needed is a place.
        return [
            UOp.placeholder((1,), dtypes.uint8, next(slots))
            for _ in range(count)
        ]

    stacks, outputs, (scratch,) = map(pointers, (carries, results, 1))
    first, slices, shared = map(pointers, (carries, xs, consts))
    count = 1 + 4 * carries + 2 * (xs + results) + len(calls)
    words = UOp.placeholder((count,), dtypes.int64, next(slots))

    def carry_at(i, step):
        start, stride, mask = (words[1 + 4 * i + k].load() for k in range(3))
        return start + (step & mask) * stride

    def slice_at(i, step):
        start, stride = (
            words[1 + 4 * carries + 2 * i + k].load() for k in range(2)
        )
        return start + step * stride

    step = UOp.range(words[0].load(), carries, dtype=dtypes.int64)
    places = {
        "before": lambda i: (stacks[i], carry_at(i, step)),
        "after": lambda i: (stacks[i], carry_at(i, step + 1)),
        "x": lambda i: (slices[i], slice_at(i, step)),
        "result": lambda i: (outputs[i], slice_at(xs + i, step)),
        "const": lambda i: (shared[i], 0),
        "scratch": lambda i: (scratch, 0),
    }
    done = []
    for i, (stack, source) in enumerate(zip(stacks, first)):
        byte = UOp.range(words[4 + 4 * i].load(), i, dtype=dtypes.int64)
        start = carry_at(i, UOp.const(0, dtypes.int64))
        copy = stack[start + byte].store(source[byte].load())
        done.append(copy.end(byte))
    for n, (arguments, core) in enumerate(calls):
        pointers_ = []
        for kind, i, offset in arguments:
            base, start = places[kind](i)
            pointers_.append(base[start + offset])
        if core is not None:
            pointers_.append(UOp.const(core, dtypes.int64))
        address = words.after(*done, step)[count - len(calls) + n].load()
        done = [
            address.cast(dtypes.uint64).call(*pointers_, ret_dtype=dtypes.void)
        ]
    return kernel(done[0].end(step), f"scan_{len(calls)}")


def _program(body):
    """Returns the `_Program` of a body, compiled once for equal ones."""
    key = body.key()
    if key not in _programs:
        _programs[key] = _Program(body)
        if len(_programs) > _CAPACITY:
            _programs.popitem(last=False)
    _programs.move_to_end(key)
    return _programs[key]


def _places(body):
    """Finds which results of a body are a carry before or after the step.

    Returns:
        List of the pairs of `_Program.places`, and list of the results that
        need buffers of their own.
    """
    known = {p: ("before", i) for i, p in enumerate(body.carries)}
    known.update({p: ("x", i) for i, p in enumerate(body.xs)})
    for i, uop in enumerate(body.new_carries):
        known.setdefault(stripped(uop), ("after", i))
    places, own = [], []
    for uop in body.ys:
        value = stripped(uop)
        if value not in known:
            known[value] = ("result", len(own))
            own.append(uop)
        places.append(known[value])
    return places, own


def lower_body(body, values):
    """Lowers a body.

    Args:
        body: `Body`.
        values: Tuple of the uops of its graph that are wanted.

    Returns:
        Pair of the `Spec`, whose slots are those of the body's placeholders,
        of the values, and of scratch memory, and the number of values.
    """
    roots, outputs = _stores(values)
    places = {
        p: UOp.new_buffer(p.device, p.max_numel(), p.dtype)
        for p in body.placeholders
    }
    roots = list(UOp.sink(*roots).substitute(places, walk=True).src)
    inputs = list(places.values())
    return lower(canonicalize(roots), roots, inputs, outputs), len(outputs)


def _stores(values):
    """Gives each value a buffer, and lets later ones read earlier ones.

    Returns:
        Pair of lists: the roots of the graph, and the `BUFFER` uops, in the
        order of `values`.
    """
    sink = UOp.sink(*values)
    position = {u: i for i, u in enumerate(sink.toposort(enter_calls=False))}
    superseded = superseded_stores(values)
    stored, roots, buffers = {}, {}, {}
    for i in sorted(range(len(values)), key=lambda i: position[values[i]]):
        value = stripped(values[i]).substitute(stored, walk=True)
        root, buffer = own_buffer(value, superseded)
        if buffer in buffers.values():
            size = value.max_numel()
            buffer = UOp.new_buffer(value.device, size, value.dtype)
            target = buffer.reshape(value.shape)
            root = target.after(target.store(value))
        elif root is not value:
            stored[stripped(values[i])] = root
        roots[i], buffers[i] = root, buffer
    order = range(len(values))
    return [roots[i] for i in order], [buffers[i] for i in order]
