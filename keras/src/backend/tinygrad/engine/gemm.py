"""Matrix products: BLAS on the CPU, tinygrad's kernels elsewhere.

A product is a kernel that calls BLAS through addresses in a buffer of words
(see `_Word`), which also holds sizes and strides: so one program serves the
products of all shapes. Operands that are transposed, permuted or broadcast
views of a buffer are read where they are.

A large product is cut into shards, by its batch, its rows or its columns,
each with words of its own: one-threaded products that a plan runs side by
side.
"""

import enum
import functools
import itertools
import math
from dataclasses import dataclass

import numpy as np
from tinygrad import Tensor
from tinygrad import dtypes

from keras.src.backend.tinygrad.engine import blas
from keras.src.backend.tinygrad.engine import blas_threads
from keras.src.backend.tinygrad.engine.handwritten import SHARDS
from keras.src.backend.tinygrad.engine.handwritten import are_on_cpu
from keras.src.backend.tinygrad.engine.handwritten import constant_words
from keras.src.backend.tinygrad.engine.handwritten import evenly
from keras.src.backend.tinygrad.engine.handwritten import kernel
from keras.src.backend.tinygrad.engine.handwritten import new_output
from keras.src.backend.tinygrad.engine.handwritten import on_cpu
from keras.src.backend.tinygrad.engine.handwritten import one_threaded
from keras.src.backend.tinygrad.engine.handwritten import shard_count
from keras.src.backend.tinygrad.engine.handwritten import shard_number
from keras.src.backend.tinygrad.engine.internals import UOp
from keras.src.backend.tinygrad.engine.recent import Recent
from keras.src.backend.tinygrad.engine.threads import limit
from keras.src.backend.tinygrad.engine.views import StridedView

# A product has as many threads as have this many multiplications each, some
# tenths of a millisecond; see `blas_threads` for when it does not get them.
MULTIPLICATIONS_PER_THREAD = 10_000_000
# A product of this many multiplications is cut into shards; so many a shard.
MIN_SHARED = 3_000_000
MIN_SHARD = 1_000_000
# Fewest rows or columns of a shard.
MIN_SIDE = 32
BATCH_LOOPS = 3
MAX_DESCRIPTORS = 1024
BLAS_DTYPES = {dtypes.float32: "float32", dtypes.float64: "float64"}

_TRANSPOSE = {False: blas.NO_TRANSPOSE, True: blas.TRANSPOSE}
_descriptors = Recent(MAX_DESCRIPTORS)


class _Word(enum.IntEnum):
    """Positions in a product's descriptor; the loops' strides follow."""

    GEMM = 0
    SET_THREADS = enum.auto()
    THREADS = enum.auto()
    THREADS_AFTER = enum.auto()
    TRANSPOSE_A = enum.auto()
    TRANSPOSE_B = enum.auto()
    M = enum.auto()
    N = enum.auto()
    K = enum.auto()
    LEADING_A = enum.auto()
    LEADING_B = enum.auto()
    LEADING_OUT = enum.auto()
    OFFSET_A = enum.auto()
    OFFSET_B = enum.auto()
    OFFSET_OUT = enum.auto()
    LOOPS = enum.auto()


_WORDS = _Word.LOOPS + 4 * BATCH_LOOPS


def matmul(a, b):
    """Multiplies matrices, with the semantics of `numpy.matmul`.

    Args:
        a: `Tensor` of shape `(..., m, k)` or `(k,)`.
        b: `Tensor` of shape `(..., k, n)` or `(k,)`, of the same dtype. The
            leading dimensions broadcast against those of `a`.

    Returns:
        `Tensor` of shape `(..., m, n)`, without `m` where `a` has one
        dimension and without `n` where `b` has one; differentiable in both.
        Its dtype is that of the operands, int32 for int8.

    Raises:
        ValueError: If an operand is a scalar, or the shapes do not match.
    """
    if not a.shape or not b.shape:
        raise ValueError(
            "matmul expects operands of at least one dimension. Received: "
            f"shapes {a.shape} and {b.shape}"
        )
    k = a.shape[-1]
    if k != b.shape[-2 if b.ndim > 1 else 0]:
        raise ValueError(
            "matmul expects the last dimension of its first operand to be "
            "the second to last of its second. Received: shapes "
            f"{a.shape} and {b.shape}"
        )
    if a.ndim == 1 or b.ndim == 1:
        a2 = a.reshape(1, k) if a.ndim == 1 else a
        b2 = b.reshape(k, 1) if b.ndim == 1 else b
        out = matmul(a2, b2)
        shape = out.shape[:-2]
        shape += (out.shape[-2],) if a.ndim > 1 else ()
        shape += (out.shape[-1],) if b.ndim > 1 else ()
        return out.reshape(shape)
    _broadcast(a.shape, b.shape)
    dtype = a.dtype
    if dtype == dtypes.int8:
        return _int8_product(a, b)
    on_blas = _uses_blas(a, b)
    if on_blas and dtype in (dtypes.float16, dtypes.bfloat16):
        out = _blas_product(a.cast(dtypes.float32), b.cast(dtypes.float32))
        return out.cast(dtype)
    if on_blas and dtype in BLAS_DTYPES:
        return _blas_product(a, b)
    return a.matmul(b)


def _int8_product(a, b):
    largest_sum = a.shape[-1] * 128 * 128
    if _uses_blas(a, b) and largest_sum <= 2**53:
        # Exact: every partial sum is an integer that the dtype holds.
        wide = dtypes.float32 if largest_sum <= 2**24 else dtypes.float64
        return _blas_product(a.cast(wide), b.cast(wide)).cast(dtypes.int32)
    return a.cast(dtypes.int32).matmul(b.cast(dtypes.int32))


def _uses_blas(a, b):
    m, k, n = a.shape[-2], a.shape[-1], b.shape[-1]
    return (
        are_on_cpu(a, b)
        and 0 not in a.shape + b.shape
        # Dot and outer products fuse with what surrounds them.
        and k > 1
        and max(m, n) > 1
        and blas.find() is not None
    )


def _blas_product(a, b):
    """Multiplies tensors of at least two dimensions."""
    out_shape = (*_broadcast(a.shape, b.shape), a.shape[-2], b.shape[-1])
    left, right = StridedView.of(a), StridedView.of(b)
    if b.ndim == 2:
        # One product of all rows; its gradient for `b` is one product too.
        left = left.reshape((math.prod(a.shape[:-1]), a.shape[-1]))
        if left is None:
            left = StridedView.of(a.contiguous().reshape(-1, a.shape[-1]))
    rank = max(len(left.shape), len(right.shape))
    left = left.reshape((1,) * (rank - len(left.shape)) + left.shape)
    right = right.reshape((1,) * (rank - len(right.shape)) + right.shape)
    batch = _broadcast(left.shape, right.shape)
    m, n = left.shape[-2], right.shape[-1]
    left, right = _Operand.of(left), _Operand.of(right)
    loops = _loops(batch, left.strides, right.strides, m * n)
    if len(loops) > BATCH_LOOPS:
        left, right = left.copied(batch), right.copied(batch)
        loops = _loops(batch, left.strides, right.strides, m * n)
    out = new_output(math.prod(out_shape), a.dtype)
    shards = _shards(left, right, loops)
    call = _kernel(a.dtype, len(shards) > 1).call(
        out.uop,
        _storage(left.view).uop,
        _storage(right.view).uop,
        _descriptor(left, right, shards).uop,
        grad_fxn=Product(left.view, right.view, out_shape),
    )
    return Tensor(out.uop.after(call)).reshape(out_shape)


def _broadcast(left, right):
    """Returns the batch dimensions of the product of these shapes."""
    try:
        return np.broadcast_shapes(left[:-2], right[:-2])
    except ValueError:
        raise ValueError(
            "matmul expects the leading dimensions of its operands to "
            f"broadcast. Received: shapes {left} and {right}"
        ) from None


def _storage(view):
    flat = view.to_storage(view.tensor)
    return flat if view.is_stored else on_cpu(flat)


@dataclass(frozen=True)
class _Operand:
    """A batch of matrices as BLAS addresses them.

    Attributes:
        view: `StridedView` of shape `(..., rows, columns)`.
        transpose: Whether its columns, rather than its rows, are contiguous.
        leading: Elements from one row (column) to the next.
        strides: Elements from one matrix to the next, by batch dimension.
    """

    view: StridedView
    transpose: bool
    leading: int
    strides: tuple

    @classmethod
    def of(cls, view):
        rows, columns = view.shape[-2:]
        by_row, by_column = view.strides[-2:]
        if (by_column == 1 or columns == 1) and (
            by_row >= columns or rows == 1
        ):
            transpose, leading = False, max(by_row, columns)
        elif (by_row == 1 or rows == 1) and (by_column >= rows or columns == 1):
            transpose, leading = True, max(by_column, rows)
        else:
            copy = StridedView.of(view.tensor.contiguous())
            return cls.of(copy.reshape(view.shape))
        strides = tuple(
            0 if size == 1 else stride
            for size, stride in zip(view.shape, view.strides[:-2])
        )
        return cls(view, transpose, leading, strides)

    def copied(self, batch):
        tensor = self.view.tensor.reshape(self.view.shape)
        tensor = tensor.expand(*batch, *self.view.shape[-2:]).contiguous()
        return _Operand.of(StridedView.of(tensor))


def _loops(batch, left, right, out_size):
    """Merges batch dimensions that both operands step through evenly.

    Returns:
        List of `(size, left stride, right stride, output stride)`.
    """
    loops = []
    out = out_size * math.prod(batch)
    for size, *strides in zip(batch, left, right):
        out //= size
        if size == 1:
            continue
        strides.append(out)
        if loops and all(
            outer == size * inner
            for outer, inner in zip(loops[-1][1:], strides)
        ):
            size *= loops.pop()[0]
        loops.append((size, *strides))
    return loops


@dataclass(frozen=True)
class _Shard:
    """A part of a product: its size, and where it is in the whole.

    Attributes:
        m, n: Numbers of rows and columns.
        loops: Its loops, as from `_loops`.
        a, b, out: Elements before it in the operands and the result.
    """

    m: int
    n: int
    loops: tuple
    a: int = 0
    b: int = 0
    out: int = 0


def _shards(left, right, loops):
    """Cuts a product into parts that are worth a thread's while.

    Args:
        left, right: `_Operand`s.
        loops: List, from `_loops`.

    Returns:
        List of `_Shard`s, at most `handwritten.SHARDS`.
    """
    (m, k), n = left.view.shape[-2:], right.view.shape[-1]
    whole = _Shard(m, n, tuple(loops))
    work = m * n * k * math.prod(size for size, *_ in loops)
    if work < MIN_SHARED or not one_threaded():
        return [whole]
    most = shard_count(work / MIN_SHARD)
    if loops and (loops[0][0] >= 2 * most or loops[0][0] % most == 0):
        (size, *strides), *inner = loops
        return [
            _Shard(
                m,
                n,
                ((last - first, *strides), *inner),
                *[first * stride for stride in strides],
            )
            for first, last in evenly(size, most)
        ]
    # BLAS lays out the other operand anew in each part.
    most = shard_count(work / MIN_SHARD, each=1)
    if m >= n:
        step = 1 if left.transpose else left.leading
        return [
            _Shard(last - first, n, whole.loops, first * step, 0, first * n)
            for first, last in evenly(m, min(most, m // MIN_SIDE))
        ]
    step = right.leading if right.transpose else 1
    return [
        _Shard(m, last - first, whole.loops, 0, first * step, first)
        for first, last in evenly(n, min(most, n // MIN_SIDE))
    ]


def _descriptor(left, right, shards):
    """Returns the words of a product, one tensor for equal products."""
    library = blas.find()
    dtype = left.view.tensor.dtype
    m, k = left.view.shape[-2:]
    n = right.view.shape[-1]
    threads = 1
    if not one_threaded():
        work = m * n * k // MULTIPLICATIONS_PER_THREAD
        threads = min(library.threads, limit(), max(1, work))
    key = []
    for shard in shards:
        words = {
            _Word.GEMM: library.gemm[BLAS_DTYPES[dtype]],
            _Word.SET_THREADS: library.set_threads or 0,
            _Word.THREADS: threads,
            _Word.THREADS_AFTER: library.threads,
            _Word.TRANSPOSE_A: _TRANSPOSE[left.transpose],
            _Word.TRANSPOSE_B: _TRANSPOSE[right.transpose],
            _Word.M: shard.m,
            _Word.N: shard.n,
            _Word.K: k,
            _Word.LEADING_A: left.leading,
            _Word.LEADING_B: right.leading,
            _Word.LEADING_OUT: n,
            _Word.OFFSET_A: shard.a,
            _Word.OFFSET_B: shard.b,
            _Word.OFFSET_OUT: shard.out,
        }
        padding = [(1, 0, 0, 0)] * (BATCH_LOOPS - len(shard.loops))
        key += [words[word] for word in _Word if word in words]
        key += itertools.chain(*shard.loops, *padding)
    if len(shards) > 1:
        # A loop without turns for those that there are too few parts for.
        nothing = [0] * _WORDS
        key += nothing * (SHARDS - len(shards))
    key = tuple(key)

    def make():
        words = constant_words(key)
        blas_threads.register(words, _Word.THREADS, threads)
        return words

    return _descriptors.get(key, make)


def call_gemm(function, transposes, sizes, a, b, out, beta=0.0):
    """Builds a call of BLAS: `out = op(a) @ op(b) + beta * out`.

    Args:
        function: int64 `UOp`, the address of `cblas_?gemm`.
        transposes: Pair of int64 `UOp`s, of BLAS' constants.
        sizes: `(m, n, k)`, int64 `UOp`s.
        a, b, out: Pairs of a pointer, an `INDEX` uop, and an int64 `UOp`, the
            number of elements from one row to the next.
        beta: Float or `UOp`.

    Returns:
        `CALL` uop.
    """
    dtype = out[0].dtype
    integer = dtypes.int64 if blas.find().wide else dtypes.int32
    if not isinstance(beta, UOp):
        beta = UOp.const(beta, dtype)
    return function.cast(dtypes.uint64).call(
        UOp.const(blas.ROW_MAJOR, dtypes.int32),
        *[t.cast(dtypes.int32) for t in transposes],
        *[size.cast(integer) for size in sizes],
        *(UOp.const(1.0, dtype), a[0], a[1].cast(integer)),
        *(b[0], b[1].cast(integer), beta),
        *(out[0], out[1].cast(integer)),
        ret_dtype=dtypes.void,
    )


def call_set_threads(words, function, count):
    """Builds a call that sets BLAS' number of threads.

    Args:
        words: `UOp` of an int64 buffer.
        function: Position of the function's address in it.
        count: Position of the number of threads in it.

    Returns:
        `CALL` uop.
    """
    return (
        words[function]
        .load()
        .cast(dtypes.uint64)
        .call(words[count].load().cast(dtypes.int32), ret_dtype=dtypes.void)
    )


@functools.cache
def _kernel(dtype, shared):
    """Builds the kernel of all products of one dtype, whole or in shards."""
    library = blas.find()
    out, a, b = [UOp.placeholder((1,), dtype, slot) for slot in range(3)]
    count = SHARDS if shared else 1
    words = UOp.placeholder((count * _WORDS,), dtypes.int64, 3)
    start = shard_number() * _WORDS if shared else 0

    def word(position):
        return words[start + position].load()

    sets_threads = library.set_threads and not shared
    if sets_threads:
        words = words.after(
            call_set_threads(words, _Word.SET_THREADS, _Word.THREADS)
        )
    ranges = []
    at_a, at_b = word(_Word.OFFSET_A), word(_Word.OFFSET_B)
    at_out = word(_Word.OFFSET_OUT)
    for i in range(BATCH_LOOPS):
        first = _Word.LOOPS + 4 * i
        step = UOp.range(word(first), i, dtype=dtypes.int64)
        at_a = at_a + step * word(first + 1)
        at_b = at_b + step * word(first + 2)
        at_out = at_out + step * word(first + 3)
        ranges.insert(0, step)
    done = call_gemm(
        word(_Word.GEMM),
        (word(_Word.TRANSPOSE_A), word(_Word.TRANSPOSE_B)),
        (word(_Word.M), word(_Word.N), word(_Word.K)),
        (a[at_a], word(_Word.LEADING_A)),
        (b[at_b], word(_Word.LEADING_B)),
        (out[at_out], word(_Word.LEADING_OUT)),
    ).end(*ranges)
    if sets_threads:
        done = call_set_threads(
            words.after(done), _Word.SET_THREADS, _Word.THREADS_AFTER
        )
    kind = "shared_gemm" if shared else "gemm"
    return kernel(done, f"{kind}_{BLAS_DTYPES[dtype]}", _operations)


def _operations(words):
    total = 0
    for start in range(0, len(words), _WORDS):
        part = words[start : start + _WORDS]
        sizes = [part[w] for w in (_Word.M, _Word.N, _Word.K)]
        total += 2 * math.prod([*sizes, *part[_Word.LOOPS :: 4]])
    return total


@dataclass(frozen=True)
class Product:
    """What a product's `CALL` uop computes, and its gradient.

    Attributes:
        left, right: `StridedView`s of the operands over the call's second
            and third argument.
        shape: Shape of the result.
    """

    left: StridedView
    right: StridedView
    shape: tuple

    def operands(self, call):
        """Returns the two operands of a call, as `Tensor`s."""
        return (
            self.left.from_storage(Tensor(call.src[2])),
            self.right.from_storage(Tensor(call.src[3])),
        )

    def right_gradient(self, a, cotangent):
        """Returns the gradient of the call's third argument.

        Args:
            a: `Tensor`, the left operand. Where the right one is a matrix,
                it may have the operands of many products stacked in front.
            cotangent: `Tensor`, of the result or of as many results.
        """
        if len(self.right.tensor.shape) == 2:
            rows = a.reshape(-1, a.shape[-1])
            to_b = matmul(rows.transpose(), cotangent.reshape(len(rows), -1))
        else:
            to_b = matmul(a.transpose(-1, -2), cotangent)
            to_b = _summed_to(to_b, self.right.tensor.shape)
        return self.right.to_storage(to_b)

    def __call__(self, cotangent, call):
        a, b = self.operands(call)
        g = Tensor(cotangent).reshape(self.shape)
        if b.ndim == 2:
            # The left operand may have been copied as rows.
            g = g.reshape(*a.shape[:-1], b.shape[1])
        to_a = _summed_to(matmul(g, b.transpose(-1, -2)), a.shape)
        return (
            None,
            self.left.to_storage(to_a).uop,
            self.right_gradient(a, g).uop,
            None,
        )


def _summed_to(tensor, shape):
    extra = tensor.ndim - len(shape)
    axes = tuple(range(extra)) + tuple(
        i + extra
        for i, (size, wanted) in enumerate(zip(tensor.shape[extra:], shape))
        if size != wanted
    )
    return tensor.sum(axes, keepdim=True).reshape(shape) if axes else tensor
