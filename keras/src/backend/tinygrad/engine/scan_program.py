"""The body of a loop compiled: launches over places that steps share."""

import dataclasses

from tinygrad import Tensor

from keras.src.backend.tinygrad.engine.canonical import canonicalize
from keras.src.backend.tinygrad.engine.canonical import superseded_stores
from keras.src.backend.tinygrad.engine.internals import Ops
from keras.src.backend.tinygrad.engine.internals import UOp
from keras.src.backend.tinygrad.engine.lowering import lower
from keras.src.backend.tinygrad.engine.lowering import own_buffer
from keras.src.backend.tinygrad.engine.lowering import place_scratch
from keras.src.backend.tinygrad.engine.recent import Recent
from keras.src.backend.tinygrad.engine.scan_body import stripped

# A program may load vectors, so each step's slice starts at a multiple.
_ALIGNMENT = 64

_programs = Recent(1024)


def stored(tensor, device):
    """Returns `tensor`, flat, with storage of its own on a device."""
    if tensor.device is None:
        tensor = tensor.clone(device=device)
    return tensor.to(device).contiguous().reshape(-1)


def compiled(body):
    """Returns the `Program` of a body, compiled once for equal ones."""
    return _programs.get(body.key(), lambda: Program(body))


class Program:
    """The compiled body of a loop.

    Attributes:
        places: List with a pair for each result of the body: `("result", i)`
            where it has a buffer, `("before", i)` or `("after", i)` where it
            is carry i before or after the step, `("x", i)` where it is a
            slice.
        stacked: Set of the carries of which all steps' values are kept.
        carry_rows, x_rows, result_rows: Lists of `Row`s.
        consts: Number of consts.
        scratch: Bytes that a step uses besides.
        launches: List of pairs of a `Launch` and its arguments, as triples:
            `"before"`, `"after"`, `"x"`, `"result"`, `"const"` or
            `"scratch"`, the index, and the byte offset.
        device: Canonical tinygrad device.
    """

    def __init__(self, body):
        self.device = body.outputs[0].device
        self.places, own = places(body)
        self.stacked = {
            i for kind, i in self.places if kind in ("before", "after")
        }
        spec, outputs = lower_body(body, (*body.new_carries, *own))
        n, m = len(body.carries), len(body.xs)
        # The slots of placeholders that the graph lacks are of any size.
        rows = [
            Row(p.max_numel(), p.dtype, p.device) for p in body.placeholders
        ]
        first = len(body.placeholders)
        self.carry_rows = rows[:n]
        self.x_rows = rows[n : n + m]
        self.result_rows = [
            Row(s.size, s.dtype, s.device)
            for s in spec.slots[first + n : first + outputs]
        ]
        self.consts = len(body.consts)
        offsets, arenas = place_scratch(spec)
        self.scratch = max(arenas.get(self.device, 0), 1)
        kinds = [("before", i) for i in range(n)]
        kinds += [("x", j) for j in range(m)]
        kinds += [("const", k) for k in range(self.consts)]
        kinds += [("after", i) for i in range(n)]
        kinds += [("result", i) for i in range(len(self.result_rows))]
        self.launches = [
            (
                launch,
                tuple(
                    ("scratch", 0, view.offset + offsets[view.slot])
                    if view.slot in offsets
                    else (*kinds[view.slot], view.offset)
                    for view in launch.args
                ),
            )
            for launch in spec.launches
        ]


@dataclasses.dataclass(frozen=True)
class Row:
    """How one step's slice of a buffer lies in it.

    Attributes:
        size: Number of elements.
        dtype: tinygrad `DType`.
        device: Canonical tinygrad device.
    """

    size: int
    dtype: object
    device: str

    @property
    def nbytes(self):
        """Size in bytes, without what aligns the next row."""
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
        return stored(flat, self.device), 0

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
            and uop.device == self.device
            and uop.dtype == self.dtype
            and uop.max_numel() == count * self.width
        ):
            return Tensor(uop).reshape(-1), first * self.stride
        return None

    def empty(self, count):
        """Returns a new flat `Tensor` of `count` rows."""
        return Tensor.empty(
            count * self.width, dtype=self.dtype, device=self.device
        )

    def cut(self, tensor, start, stop):
        """Returns rows as a tensor of shape `(stop - start, size)`."""
        rows = tensor.reshape(-1, self.width)
        return rows.shrink(((start, stop), (0, self.size)))


class Layout:
    """Where the steps of a loop read and write.

    A carry before step `t` is in row `t` of its buffer, or, if the loop runs
    in reverse, in row `length - t`, and after it in the next one. Where only
    the last value matters there are two rows, which take turns.

    Attributes:
        program: `Program` of the body.
        length: Number of steps.
        carries: List with a triple for each carry: it is at byte
            `start + (t & mask) * stride` before step `t`.
        slices: List with a pair for each x and then for each result: step
            `t` has it at byte `start + t * stride`.
    """

    def __init__(self, program, length, reverse, starts):
        self.program, self.length = program, length
        self._reverse = reverse
        self.carries = []
        for i, row in enumerate(program.carry_rows):
            if i not in program.stacked:
                self.carries.append((0, row.stride, 1))
            elif reverse:
                self.carries.append((length * row.stride, -row.stride, -1))
            else:
                self.carries.append((0, row.stride, -1))
        rows = [*program.x_rows, *program.result_rows]
        starts = [*starts, *[0] * len(program.result_rows)]
        self.slices = [
            (start + (length - 1) * row.stride, -row.stride)
            if reverse
            else (start, row.stride)
            for start, row in zip(starts, rows)
        ]

    def rows(self, carry):
        """Number of rows of a carry's buffer."""
        return self.length + 1 if carry in self.program.stacked else 2

    def last(self, carry):
        """Row of a carry after the last step."""
        if carry not in self.program.stacked:
            return self.length % 2
        return 0 if self._reverse else self.length

    def first(self, kind):
        """First of the rows that hold a carry before, or after, the steps."""
        return int((kind == "before") == self._reverse)

    def carry_at(self, i, step):
        """Byte at which a carry is before a step."""
        start, stride, mask = self.carries[i]
        return start + (step & mask) * stride

    def slice_at(self, i, step):
        """Byte at which a step has an x, or a result."""
        start, stride = self.slices[i]
        return start + step * stride


def places(body):
    """Finds which results of a body are a carry before or after the step.

    Returns:
        List of the pairs of `Program.places`, and list of the results that
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
    superseded = superseded_stores(values)
    values = [stripped(v) for v in values]
    nodes = UOp.sink(*values).toposort(enter_calls=False)
    position = {u: i for i, u in enumerate(nodes)}
    stored, roots, buffers = {}, {}, {}
    # What is computed first comes first: else what others use of it would be
    # replaced in some of them alone.
    for i in sorted(range(len(values)), key=lambda i: position[values[i]]):
        value = values[i].substitute(stored, walk=True)
        root, buffer = own_buffer(value, superseded)
        if buffer in buffers.values():
            size = value.max_numel()
            buffer = UOp.new_buffer(value.device, size, value.dtype)
            target = buffer.reshape(value.shape)
            root = target.after(target.store(value))
        elif root is not value and value.op is not Ops.BUFFER:
            stored[values[i]] = root
        roots[i], buffers[i] = root, buffer
    order = range(len(values))
    return [roots[i] for i in order], [buffers[i] for i in order]
