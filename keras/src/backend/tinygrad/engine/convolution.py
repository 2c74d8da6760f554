"""Convolutions: patches times a matrix product, in blocks, on the CPU.

A convolution is linear in its input and in its kernel. So there are three
products, of which each gives one of input, kernel and output from the other
two, and the gradients of each are the others.

The patches of one block of outputs at a time are laid out as the rows of a
matrix, small enough for the cache, and multiplied by BLAS. Sizes are in a
buffer of words: one program serves all shapes.

A large convolution is cut into shards, which a plan runs side by side: each
has a part of the outputs, words of its own, and its own storage for patches.
"""

import enum
import functools
import math
from dataclasses import dataclass

from tinygrad import Tensor
from tinygrad import dtypes

from keras.src.backend.tinygrad.engine import blas
from keras.src.backend.tinygrad.engine import blas_threads
from keras.src.backend.tinygrad.engine.gemm import BLAS_DTYPES
from keras.src.backend.tinygrad.engine.gemm import MIN_SHARD
from keras.src.backend.tinygrad.engine.gemm import MIN_SHARED
from keras.src.backend.tinygrad.engine.gemm import MULTIPLICATIONS_PER_THREAD
from keras.src.backend.tinygrad.engine.gemm import call_gemm
from keras.src.backend.tinygrad.engine.gemm import call_set_threads
from keras.src.backend.tinygrad.engine.gemm import matmul
from keras.src.backend.tinygrad.engine.handwritten import SHARDS
from keras.src.backend.tinygrad.engine.handwritten import are_on_cpu
from keras.src.backend.tinygrad.engine.handwritten import constant_words
from keras.src.backend.tinygrad.engine.handwritten import evenly
from keras.src.backend.tinygrad.engine.handwritten import kernel as made
from keras.src.backend.tinygrad.engine.handwritten import new_output
from keras.src.backend.tinygrad.engine.handwritten import on_cpu
from keras.src.backend.tinygrad.engine.handwritten import one_threaded
from keras.src.backend.tinygrad.engine.handwritten import shard_count
from keras.src.backend.tinygrad.engine.handwritten import shard_number
from keras.src.backend.tinygrad.engine.internals import AddrSpace
from keras.src.backend.tinygrad.engine.internals import Ops
from keras.src.backend.tinygrad.engine.internals import UOp
from keras.src.backend.tinygrad.engine.threads import limit

# Size of the patches of one block; a product that reads few rows at a time gets
# along with a quarter, which stays in a core's own cache.
BLOCK_BYTES = 1 << 19
# Runs of a patch up to this length are copied by loops of constant length in
# large convolutions, which are worth a program of their own.
MAX_CONSTANT_RUN = 100
# Channels that a depthwise kernel works on at once.
LANES = 32


def convolution(x, kernel, strides, padding, dilation, groups):
    """Slides a kernel over the spatial dimensions of its input.

    Args:
        x: `Tensor` of shape `(batch, *spatial, channels)`, with one to three
            spatial dimensions.
        kernel: `Tensor` of shape `(*window, channels // groups, filters)`
            and the dtype of `x`.
        strides: Tuple of ints, one for each spatial dimension.
        padding: List of `(low, high)` zeros around each spatial dimension.
        dilation: Tuple of ints, one for each spatial dimension.
        groups: Number of groups of channels, each with its own filters.

    Returns:
        `Tensor` of shape `(batch, *outputs, filters)`, differentiable in `x`
        and `kernel`.

    Raises:
        ValueError: If shapes and groups do not fit together.
    """
    *window, depth, filters = kernel.shape
    rank = len(window)
    if x.ndim != rank + 2 or x.shape[-1] != depth * groups or filters % groups:
        raise ValueError(
            "A convolution expects an input (batch, *spatial, channels), a "
            "kernel (*window, channels // groups, filters) and filters that "
            f"are a multiple of groups. Received: input {x.shape}, kernel "
            f"{kernel.shape}, groups={groups}"
        )
    x = x.pad(((0, 0), *padding, (0, 0)))
    pointwise = math.prod(window) == groups == 1
    if pointwise and all(s == 1 for s in strides):
        return matmul(x, kernel.reshape(depth, filters))
    if not _uses_blas(x, kernel):
        return _by_tinygrad(x, kernel, strides, dilation, groups)
    if x.dtype not in BLAS_DTYPES:
        wide = [t.cast(dtypes.float32) for t in (x, kernel)]
        shape = _Shape.of(*wide, strides, dilation, groups)
        return _forward(shape, *wide).cast(x.dtype)
    return _forward(_Shape.of(x, kernel, strides, dilation, groups), x, kernel)


def _uses_blas(x, kernel):
    return (
        are_on_cpu(x, kernel)
        and 0 not in x.shape + kernel.shape
        and dtypes.is_float(x.dtype)
        and blas.find() is not None
    )


def _by_tinygrad(x, kernel, strides, dilation, groups):
    last = x.ndim - 1
    out = x.permute(0, last, *range(1, last)).conv2d(
        kernel.permute(last, last - 1, *range(last - 1)),
        groups=groups,
        stride=strides,
        dilation=dilation,
        dtype=x.dtype,
    )
    return out.permute(0, *range(2, out.ndim), 1)


@dataclass(frozen=True)
class _Shape:
    """Sizes of a convolution without padding.

    Tuples have one int for each of three spatial dimensions, of which the
    first are of size 1 where the convolution has fewer.

    Attributes:
        batch, channels, filters, groups: Ints.
        spatial, window, strides, dilation, outputs: Tuples of ints.
        x_shape, kernel_shape, out_shape: Shapes of the tensors.
    """

    batch: int
    channels: int
    filters: int
    groups: int
    spatial: tuple
    window: tuple
    strides: tuple
    dilation: tuple
    outputs: tuple
    x_shape: tuple
    kernel_shape: tuple
    out_shape: tuple

    @classmethod
    def of(cls, x, kernel, strides, dilation, groups):
        batch, *spatial, channels = x.shape
        *window, _, filters = kernel.shape
        outputs = [
            (n - (w - 1) * d - 1) // s + 1
            for n, w, s, d in zip(spatial, window, strides, dilation)
        ]
        ones = (1,) * (3 - len(spatial))
        return cls(
            batch=batch,
            channels=channels,
            filters=filters,
            groups=groups,
            spatial=(*ones, *spatial),
            window=(*ones, *window),
            strides=(*ones, *strides),
            dilation=(*ones, *dilation),
            outputs=(*ones, *outputs),
            x_shape=x.shape,
            kernel_shape=kernel.shape,
            out_shape=(batch, *outputs, filters),
        )

    @property
    def is_depthwise(self):
        return self.groups > 1 and self.groups == self.channels

    @property
    def columns(self):
        """Length of one row of patches: the terms of one output."""
        return math.prod(self.window) * self.channels // self.groups

    @property
    def lines(self):
        """Number of runs of outputs along the last spatial dimension."""
        return self.batch * self.outputs[0] * self.outputs[1]

    @property
    def taps_and_run(self):
        """Taps of the window, and elements that each takes from the input.

        A run is contiguous in the input and in a patch.
        """
        taps, run = list(self.window), self.channels // self.groups
        if self.groups == 1 and (self.dilation[2] == 1 or taps[2] == 1):
            # The taps along the last dimension are next to each other.
            run *= taps[2]
            taps[2] = 1
        return taps, run

    def constant_run(self, name):
        """Length of a run where a kernel is made for it, or `None`.

        Args:
            name: Name of the kernel.
        """
        _, run = self.taps_and_run
        copies = name != "to_input" and not self.is_thin
        return run if copies and run <= MAX_CONSTANT_RUN else None

    @property
    def is_thin(self):
        """Whether runs of neighbouring outputs are longer than a patch's."""
        _, run = self.taps_and_run
        return self.channels * self.strides[2] == 1 or run < 4

    @property
    def multiplications(self):
        return math.prod(self.out_shape) * self.columns

    def block_lines(self, name, itemsize, lines):
        """Number of lines, of so many, whose patches fit a block.

        Args:
            name: Name of the kernel.
            itemsize: Bytes of an element.
            lines: Int.
        """
        size = self.outputs[2] * self.columns * itemsize
        fitting = BLOCK_BYTES // 4 if name == "forward" else BLOCK_BYTES
        return min(lines, max(1, fitting // size))

    def parts(self, name):
        """Returns `(first, last)` line of each part that a shard computes.

        Args:
            name: Name of the kernel.
        """
        if self.is_depthwise or self.multiplications < MIN_SHARED:
            return [(0, self.lines)]
        if not one_threaded():
            return [(0, self.lines)]
        most = shard_count(self.multiplications / MIN_SHARD)
        # The windows of an image's lines overlap where they are added up.
        unit = self.lines // self.batch if name == "to_input" else 1
        return [
            (first * unit, last * unit)
            for first, last in evenly(self.lines // unit, most)
        ]


def _forward(shape, x, kernel):
    """Returns the output of an input and a kernel."""

    def gradients(x, kernel, g):
        return _to_input(shape, g, kernel), _to_kernel(shape, x, g)

    return _product("forward", shape, x, kernel, shape.out_shape, gradients)


def _to_input(shape, out, kernel):
    """Returns the input whose product with it is `out . forward(., kernel)`."""

    if shape.is_depthwise and shape.filters == shape.channels:
        if all(stride == 1 for stride in shape.strides):
            return _mirrored(shape, out, kernel)

    def gradients(out, kernel, g):
        return _forward(shape, g, kernel), _to_kernel(shape, g, out)

    return _product("to_input", shape, out, kernel, shape.x_shape, gradients)


def _mirrored(shape, out, kernel):
    """Slides the mirrored kernel over the output, for strides of one."""
    rank = out.ndim - 2
    reach = [(w - 1) * d for w, d in zip(shape.window, shape.dilation)][-rank:]
    padded = out.pad(((0, 0), *[(n, n) for n in reach], (0, 0)))
    kernel = kernel.flip(tuple(range(rank)))
    back = _Shape.of(
        padded, kernel, (1,) * rank, shape.dilation[-rank:], shape.groups
    )
    return _forward(back, padded, kernel)


def _to_kernel(shape, x, out):
    """Returns the kernel whose product with it is `out . forward(x, .)`."""

    def gradients(x, out, g):
        return _to_input(shape, out, g), _forward(shape, x, g)

    return _product("to_kernel", shape, x, out, shape.kernel_shape, gradients)


def _product(name, shape, left, right, out_shape, gradients):
    """Builds one of the three products.

    Args:
        name: Name of its kernel.
        shape: `_Shape`.
        left, right: Its operands.
        out_shape: Shape of the result.
        gradients: Function of the operands and the cotangent that returns
            the cotangents of the operands.

    Returns:
        `Tensor` of shape `out_shape`.
    """

    def gradient_of_call(cotangent, call):
        operands = [
            Tensor(source).reshape(t.shape)
            for source, t in zip(call.src[2:4], (left, right))
        ]
        grads = gradients(*operands, Tensor(cotangent).reshape(out_shape))
        padding = (None,) * (len(call.src) - 4)
        return (None, *[g.reshape(-1).uop for g in grads], *padding)

    dtype = left.dtype
    parts = shape.parts(name)
    # Each shard has a kernel of its own, and they are added up.
    copies = len(parts) if name == "to_kernel" else 1
    size = copies * math.prod(out_shape)
    out = new_output(size, dtype)
    arguments = [out, on_cpu(left).reshape(-1), on_cpu(right).reshape(-1)]
    if not shape.is_depthwise:
        size = len(parts) * _block_size(name, shape, dtype, parts)
        arguments.append(new_output(size, dtype))
    arguments.append(_words(name, shape, dtype, tuple(parts)))
    if shape.is_depthwise:
        kernel = _depthwise_kernel(name, dtype)
    else:
        shared = len(parts) > 1
        run = shape.constant_run(name) if shared else None
        kernel = _kernel(name, dtype, shape.is_thin, shared, run)
    call = kernel.call(*[t.uop for t in arguments], grad_fxn=gradient_of_call)
    out = Tensor(out.uop.after(call)).reshape(copies, *out_shape)
    return out.reshape(out_shape) if copies == 1 else out.sum(0)


def _block_size(name, shape, dtype, parts):
    """Elements of the storage that each part has for patches."""
    lines = max(last - first for first, last in parts)
    lines = shape.block_lines(name, dtype.itemsize, lines)
    return lines * shape.outputs[2] * shape.columns


class _Word(enum.IntEnum):
    """Positions in the words of a convolution's kernels.

    Steps are from one tap of the window, or from one window, to the next, in
    elements.
    """

    GEMM = 0
    SET_THREADS = enum.auto()
    THREADS = enum.auto()
    THREADS_AFTER = enum.auto()
    LINES = enum.auto()
    FIRST_LINE = enum.auto()
    ZEROS_START = enum.auto()
    ZEROS = enum.auto()
    PATCHES_START = enum.auto()
    RESULT_START = enum.auto()
    BLOCKS = enum.auto()
    BLOCK_LINES = enum.auto()
    BLOCK_ROWS = enum.auto()
    LAST_BLOCKS = enum.auto()
    LAST_START = enum.auto()
    LAST_LINES = enum.auto()
    LAST_ROWS = enum.auto()
    IMAGE_LINES = enum.auto()
    OUTPUT_SIZE = enum.auto()
    GROUPS = enum.auto()
    CHANNELS = enum.auto()
    LANE_BLOCKS = enum.auto()
    REST_START = enum.auto()
    REST = enum.auto()
    FILTERS = enum.auto()
    GROUP_CHANNELS = enum.auto()
    GROUP_FILTERS = enum.auto()
    COLUMNS = enum.auto()
    RUN = enum.auto()
    INPUT_SIZE = enum.auto()
    KERNEL_SIZE = enum.auto()
    SPATIAL_0 = enum.auto()
    SPATIAL_1 = enum.auto()
    SPATIAL_2 = enum.auto()
    OUTPUTS_0 = enum.auto()
    OUTPUTS_1 = enum.auto()
    OUTPUTS_2 = enum.auto()
    STRIDE_0 = enum.auto()
    STRIDE_1 = enum.auto()
    WINDOW_STEP = enum.auto()
    TAPS_0 = enum.auto()
    TAPS_1 = enum.auto()
    TAPS_2 = enum.auto()
    STEP_0 = enum.auto()
    STEP_1 = enum.auto()
    STEP_2 = enum.auto()


@functools.lru_cache(maxsize=1024)
def _words(name, shape, dtype, parts):
    """Returns the words of a convolution, those of its parts in order."""
    block = _block_size(name, shape, dtype, parts)
    values, threads = [], 1
    for number, part in enumerate(parts):
        words = _part_words(name, shape, dtype, *part)
        words[_Word.PATCHES_START] = number * block
        words[_Word.RESULT_START] = number * words[_Word.KERNEL_SIZE]
        values += [words[word] for word in _Word]
        threads = words[_Word.THREADS]
    if len(parts) > 1:
        # Loops without turns for shards that there are no parts for.
        values += [0] * len(_Word) * (SHARDS - len(parts))
    tensor = constant_words(values)
    blas_threads.register(tensor, _Word.THREADS, threads)
    return tensor


def _part_words(name, shape, dtype, first, last):
    library = blas.find()
    count = last - first
    lines = shape.block_lines(name, dtype.itemsize, count)
    _, height, width = shape.spatial
    group_channels = shape.channels // shape.groups
    taps, run = shape.taps_and_run
    steps = (height * width, width, 1)
    steps = [s * d * shape.channels for s, d in zip(steps, shape.dilation)]
    threads = 1
    if not one_threaded():
        threads = shape.multiplications // MULTIPLICATIONS_PER_THREAD
        threads = min(library.threads, limit(), max(1, threads))
    image_lines = shape.lines // shape.batch
    image_size = math.prod(shape.x_shape) // shape.batch
    words = {
        _Word.GEMM: library.gemm[BLAS_DTYPES[dtype]],
        _Word.SET_THREADS: library.set_threads or 0,
        _Word.THREADS: threads,
        _Word.THREADS_AFTER: library.threads,
        _Word.LINES: count,
        _Word.FIRST_LINE: first,
        _Word.ZEROS_START: first // image_lines * image_size,
        _Word.ZEROS: count // image_lines * image_size,
        _Word.BLOCKS: count // lines,
        _Word.BLOCK_LINES: lines,
        _Word.BLOCK_ROWS: lines * shape.outputs[2],
        _Word.LAST_BLOCKS: int(count % lines > 0),
        _Word.LAST_START: first + count // lines * lines,
        _Word.LAST_LINES: count % lines,
        _Word.LAST_ROWS: count % lines * shape.outputs[2],
        _Word.IMAGE_LINES: image_lines,
        _Word.OUTPUT_SIZE: math.prod(shape.out_shape),
        _Word.GROUPS: shape.groups,
        _Word.CHANNELS: shape.channels,
        _Word.LANE_BLOCKS: shape.channels // LANES,
        _Word.REST_START: shape.channels // LANES * LANES,
        _Word.REST: shape.channels % LANES,
        _Word.FILTERS: shape.filters,
        _Word.GROUP_CHANNELS: group_channels,
        _Word.GROUP_FILTERS: shape.filters // shape.groups,
        _Word.COLUMNS: shape.columns,
        _Word.RUN: run,
        _Word.INPUT_SIZE: math.prod(shape.x_shape),
        _Word.KERNEL_SIZE: math.prod(shape.kernel_shape),
    }
    words.update(zip(_spatial(_Word.SPATIAL_0), shape.spatial))
    words.update(zip(_spatial(_Word.OUTPUTS_0), shape.outputs))
    words.update(
        {
            _Word.STRIDE_0: shape.strides[0],
            _Word.STRIDE_1: shape.strides[1],
            _Word.WINDOW_STEP: shape.strides[2] * shape.channels,
        }
    )
    words.update(zip(_spatial(_Word.TAPS_0), taps))
    words.update(zip(_spatial(_Word.STEP_0), steps))
    return words


def _spatial(first):
    return [_Word(first + i) for i in range(3)]


class _Sizes:
    """Loads a kernel's words by name, from a `UOp` of them."""

    def __init__(self, words, start=0, run=None):
        self.words, self.start = words, start
        if run is not None:
            self.RUN = UOp.const(run, dtypes.int64)

    def __getattr__(self, name):
        return self.words[self.start + _Word[name]].load()

    def spatial(self, name):
        return [getattr(self, f"{name}_{i}") for i in range(3)]


class _Loops:
    """Makes loops, each inside those made before."""

    def __init__(self):
        self.count = 0

    def __call__(self, size):
        self.count += 1
        return UOp.range(size, self.count - 1, dtype=dtypes.int64)


def _closed(done, *loops):
    """Ends loops, the innermost last."""
    for loop in reversed(loops):
        done = done.end(loop)
    return done


def _line_start(sizes, line):
    """Element of the input where the windows of a line of outputs start."""
    depths, height, width = sizes.spatial("SPATIAL")
    # No sign to mind: the division of C will do.
    image = line.alu(Ops.CDIV, sizes.IMAGE_LINES)
    line = line.alu(Ops.CMOD, sizes.IMAGE_LINES)
    z = line.alu(Ops.CDIV, sizes.OUTPUTS_1) * sizes.STRIDE_0
    y = line.alu(Ops.CMOD, sizes.OUTPUTS_1) * sizes.STRIDE_1
    return ((image * depths + z) * height + y) * width * sizes.CHANNELS


def _zeroed(buffer, size, loop, start=0):
    step = loop(size)
    zero = UOp.const(0.0, buffer.dtype)
    return buffer.after(buffer[start + step].store(zero).end(step))


class _Block:
    """One block of lines of outputs, in one group of channels.

    Patches are rows of a matrix, or, where they are thin, its columns.

    Attributes:
        rows: Number of outputs.
        outputs: Element of the output where the block starts.
        filters: First filter of the group.
    """

    def __init__(self, sizes, loop, patches, thin, first, lines, rows, group):
        self.sizes = sizes
        self.thin = thin
        self.patches = patches
        self.rows = rows
        self.filters = group * sizes.GROUP_FILTERS
        start = first * sizes.OUTPUTS_2 * sizes.FILTERS
        self.outputs = start + self.filters
        self._loop, self._first, self._lines = loop, first, lines
        self._channels = group * sizes.GROUP_CHANNELS

    def each_element(self, function):
        """Loops over places in the patches and, with them, in the input."""
        sizes, loop = self.sizes, self._loop
        line = loop(self._lines)
        column = None if self.thin else loop(sizes.OUTPUTS_2)
        taps = [loop(taps) for taps in sizes.spatial("TAPS")]
        element = loop(sizes.RUN)
        loops = [line, column, *taps, element]
        if self.thin:
            column = loop(sizes.OUTPUTS_2)
            loops = [line, *taps, element, column]
        source = _line_start(sizes, self._first + line) + self._channels
        source = source + column * sizes.WINDOW_STEP
        row = line * sizes.OUTPUTS_2 + column
        place = UOp.const(0, dtypes.int64) if self.thin else row
        for tap, count, step in zip(
            taps, sizes.spatial("TAPS"), sizes.spatial("STEP")
        ):
            place = place * count + tap
            source = source + tap * step
        place = place * sizes.RUN + element
        if self.thin:
            place = place * self.rows + row
        return _closed(function(place, source + element), *loops)

    def laid_out(self, image):
        """Stores the patches of `image`, as an operand of a product."""
        done = self.each_element(
            lambda to, at: self.patches[self.storage + to].store(
                image[at].load()
            )
        )
        return self.patches.after(done)[self.storage], self.leading

    @property
    def storage(self):
        """Element of the storage where the patches start."""
        return self.sizes.PATCHES_START

    @property
    def leading(self):
        return self.rows if self.thin else self.sizes.COLUMNS


def _transposes(left, right):
    names = {False: blas.NO_TRANSPOSE, True: blas.TRANSPOSE}
    return [UOp.const(names[t], dtypes.int64) for t in (left, right)]


def _forward_block(block, out, x, kernel, is_first):
    sizes = block.sizes
    return call_gemm(
        sizes.GEMM,
        _transposes(block.thin, False),
        (block.rows, sizes.GROUP_FILTERS, sizes.COLUMNS),
        block.laid_out(x),
        (kernel[block.filters], sizes.FILTERS),
        (out[block.outputs], sizes.FILTERS),
    )


def _to_kernel_block(block, out, x, cotangent, is_first):
    sizes = block.sizes
    zero, one = [UOp.const(value, out.dtype) for value in (0.0, 1.0)]
    return call_gemm(
        sizes.GEMM,
        _transposes(not block.thin, False),
        (sizes.COLUMNS, sizes.GROUP_FILTERS, block.rows),
        block.laid_out(x),
        (cotangent[block.outputs], sizes.FILTERS),
        (out[sizes.RESULT_START + block.filters], sizes.FILTERS),
        beta=is_first.where(zero, one),
    )


def _to_input_block(block, out, cotangent, kernel, is_first):
    sizes = block.sizes
    sides = [
        (block.rows, cotangent[block.outputs]),
        (sizes.COLUMNS, kernel[block.filters]),
    ]
    (m, a), (n, b) = reversed(sides) if block.thin else sides
    multiplied = call_gemm(
        sizes.GEMM,
        _transposes(False, True),
        (m, n, sizes.GROUP_FILTERS),
        (a, sizes.FILTERS),
        (b, sizes.FILTERS),
        (block.patches[block.storage], block.leading),
    )
    patches = block.patches.after(multiplied)
    return block.each_element(
        lambda at, to: out[to].store(
            out[to].load() + patches[block.storage + at].load()
        )
    )


@functools.cache
def _kernel(name, dtype, thin, shared, run):
    """Builds a kernel of patches and a matrix product, whole or in shards.

    Its arguments are the result, the operands, the storage of a block of
    patches, and the words. Shards have their storage, and the results of the
    product that gives the kernel, one after another.
    """
    out, left, right, patches = [
        UOp.placeholder((1,), dtype, slot) for slot in range(4)
    ]
    count = SHARDS if shared else 1
    words = UOp.placeholder((count * len(_Word),), dtypes.int64, 4)
    start = shard_number() * len(_Word) if shared else 0
    threads = blas.find().set_threads is not None and not shared
    if threads:
        words = words.after(
            call_set_threads(words, _Word.SET_THREADS, _Word.THREADS)
        )
    sizes, loop = _Sizes(words, start, run), _Loops()
    if name == "to_input":
        out = _zeroed(out, sizes.ZEROS, loop, sizes.ZEROS_START)
    build = {
        "forward": _forward_block,
        "to_input": _to_input_block,
        "to_kernel": _to_kernel_block,
    }[name]
    # tinygrad has no loop whose end depends on another's turn, so the last
    # block, which may have fewer lines, comes separately.
    block, group = loop(sizes.BLOCKS), loop(sizes.GROUPS)
    first = sizes.FIRST_LINE + block * sizes.BLOCK_LINES
    lines, rows = sizes.BLOCK_LINES, sizes.BLOCK_ROWS
    part = _Block(sizes, loop, patches, thin, first, lines, rows, group)
    done = _closed(build(part, out, left, right, block < 1), block, group)
    # What tinygrad computes once it may put inside a loop that is over by
    # then, so the words are read anew.
    words, out, patches = [u.after(done) for u in (words, out, patches)]
    sizes = _Sizes(words, start, run)
    block, group = loop(sizes.LAST_BLOCKS), loop(sizes.GROUPS)
    first = sizes.LAST_START + block
    lines, rows = sizes.LAST_LINES, sizes.LAST_ROWS
    part = _Block(sizes, loop, patches, thin, first, lines, rows, group)
    never = UOp.const(False, dtypes.bool)
    done = _closed(build(part, out, left, right, never), block, group)
    if threads:
        done = call_set_threads(
            words.after(done), _Word.SET_THREADS, _Word.THREADS_AFTER
        )
    kind = "thin_convolution" if thin else "convolution"
    kind = f"shared_{kind}" if shared else kind
    kind += f"_{name}" if run is None else f"_{name}_{run}"
    return made(done, f"{kind}_{BLAS_DTYPES[dtype]}", _operations)


def _operations(words):
    factors = (_Word.LINES, _Word.OUTPUTS_2, _Word.FILTERS, _Word.COLUMNS)
    return 2 * sum(
        math.prod(words[start + w] for w in factors)
        for start in range(0, len(words), len(_Word))
    )


@functools.cache
def _depthwise_kernel(name, dtype):
    """Builds a kernel that multiplies each channel with its own filters.

    Its arguments are the result, the operands, and the words. Where a channel
    has several filters they are next to each other.
    """
    out, left, right = [UOp.placeholder((1,), dtype, slot) for slot in range(3)]
    words = UOp.placeholder((len(_Word),), dtypes.int64, 3)
    sizes, loop = _Sizes(words), _Loops()
    size = {
        "forward": sizes.OUTPUT_SIZE,
        "to_input": sizes.INPUT_SIZE,
        "to_kernel": sizes.KERNEL_SIZE,
    }[name]
    out = _zeroed(out, size, loop)
    build = _depthwise_in_lanes
    if name == "to_input":
        build = _depthwise_in_order
    block = loop(sizes.LANE_BLOCKS)
    done = build(name, sizes, loop, out, left, right, block * LANES, LANES)
    done = _closed(done, block)
    # The words are read anew, as in the other kernels.
    words, out = words.after(done), out.after(done)
    sizes = _Sizes(words)
    done = _depthwise_in_order(
        name, sizes, loop, out, left, right, sizes.REST_START, sizes.REST
    )
    return made(done, f"depthwise_{name}_{BLAS_DTYPES[dtype]}", _operations)


def _depthwise_places(sizes, line, column, taps, multiple, channel):
    """Returns the elements of input, kernel and output that go together."""
    source = _line_start(sizes, line) + column * sizes.WINDOW_STEP
    tap_number = UOp.const(0, dtypes.int64)
    for tap, step, count in zip(
        taps, sizes.spatial("STEP"), sizes.spatial("TAPS")
    ):
        source = source + tap * step
        tap_number = tap_number * count + tap
    filters = channel * sizes.GROUP_FILTERS + multiple
    row = line * sizes.OUTPUTS_2 + column
    return {
        "input": source + channel,
        "kernel": tap_number * sizes.FILTERS + filters,
        "output": row * sizes.FILTERS + filters,
    }


# What each product takes from which places, and where it puts it.
_ROLES = {
    "forward": ("output", "input", "kernel"),
    "to_input": ("input", "output", "kernel"),
    "to_kernel": ("kernel", "input", "output"),
}


def _depthwise_in_order(name, sizes, loop, out, left, right, first, count):
    """Adds each product to its place in the result."""
    line, column = loop(sizes.LINES), loop(sizes.OUTPUTS_2)
    taps = [loop(taps) for taps in sizes.spatial("TAPS")]
    multiple, lane = loop(sizes.GROUP_FILTERS), loop(count)
    at = _depthwise_places(sizes, line, column, taps, multiple, first + lane)
    to, a, b = [at[role] for role in _ROLES[name]]
    product = left[a].load() * right[b].load()
    done = out[to].store(out[to].load() + product)
    return _closed(done, line, column, *taps, multiple, lane)


def _depthwise_in_lanes(name, sizes, loop, out, left, right, first, count):
    """Sums the terms of `LANES` results before they are added to theirs."""
    line = loop(sizes.LINES)
    column, taps = None, None
    if name == "forward":
        column = loop(sizes.OUTPUTS_2)
        outer = [line, column]
    else:
        taps = [loop(taps) for taps in sizes.spatial("TAPS")]
        outer = [line, *taps]
    multiple = loop(sizes.GROUP_FILTERS)
    outer.append(multiple)
    sums = UOp.placeholder((count,), out.dtype, 100, AddrSpace.REG)
    lane = loop(count)
    zero = UOp.const(0.0, out.dtype)
    ready = sums.after(*outer)[lane].store(zero).end(lane)
    if name == "forward":
        taps = [loop(taps) for taps in sizes.spatial("TAPS")]
        inner = taps
    else:
        column = loop(sizes.OUTPUTS_2)
        inner = [column]
    lane = loop(count)
    at = _depthwise_places(sizes, line, column, taps, multiple, first + lane)
    to, a, b = [at[role] for role in _ROLES[name]]
    place = sums.after(ready, *inner)[lane]
    product = left[a].load() * right[b].load()
    summed = place.store(place.load() + product)
    sums = sums.after(_closed(summed, *inner, lane))
    lane = loop(count)
    start = [UOp.const(0, dtypes.int64)] * 3
    taps, column = (start, column) if name == "forward" else (taps, start[0])
    at = _depthwise_places(sizes, line, column, taps, multiple, first + lane)
    place = out[at[_ROLES[name][0]]]
    added = place.store(place.load() + sums[lane].load())
    return _closed(added, *outer, lane)
