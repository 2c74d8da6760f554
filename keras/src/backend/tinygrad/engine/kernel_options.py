"""Shapes the loops of the CPU's kernels.

tinygrad's rules for loops are made for GPUs: they unroll, which on a CPU
keeps the C compiler from vectorizing. Here a loop stays a loop, and what is
arranged is that the innermost one steps through memory by ones and has no
sum carried from one turn to the next:

- Elementwise kernels: the dimension that the result is contiguous in comes
  innermost; where an operand is contiguous in another, both are cut into
  small tiles, which are written out where little is computed.
- A small window is written out, and where pairs lie side by side in memory
  some outputs are too.
- A reduction over rows keeps one accumulator for each column, and goes
  through memory once, rather than once for each column.
- A sum along contiguous memory is left to the compiler, which is told that it
  may reorder it. Other reductions along contiguous memory keep a few dozen
  accumulators, which are combined at the end.
- A kernel of much work is cut along its outermost loop into shards, which a
  plan runs side by side. How many depends on the work alone, so that results
  do not depend on the number of threads.

A search by the user (BEAM) takes precedence.
"""

import math

from keras.src.backend.tinygrad.engine.internals import AddrSpace
from keras.src.backend.tinygrad.engine.internals import AxisType
from keras.src.backend.tinygrad.engine.internals import ClangRenderer
from keras.src.backend.tinygrad.engine.internals import GroupOp
from keras.src.backend.tinygrad.engine.internals import Ops
from keras.src.backend.tinygrad.engine.internals import Opt
from keras.src.backend.tinygrad.engine.internals import OptOps
from keras.src.backend.tinygrad.engine.internals import PatternMatcher
from keras.src.backend.tinygrad.engine.internals import UOp
from keras.src.backend.tinygrad.engine.internals import UPat
from keras.src.backend.tinygrad.engine.internals import dtypes
from keras.src.backend.tinygrad.engine.internals import heuristic_module
from keras.src.backend.tinygrad.engine.internals import identity_element

# Accumulators of a reduction along contiguous memory.
LANES = 32
# Accumulators of a reduction over rows: they stay in the first-level cache.
MAX_COLUMNS = 2048
_TILES = (8, 6, 5, 4, 7)
# Elements in a line of the cache, about.
_LINE = 16
# What tinygrad writes out as long polynomials.
_FUNCTIONS = {Ops.EXP2, Ops.LOG2, Ops.SIN, Ops.POW}
# Up to this many terms a reduction is written out.
MAX_UNROLLED = 8
# Estimated seconds of work of a kernel that is cut into shards, and of a shard.
MIN_SHARED = 5e-5
MIN_SHARD = 1e-5
MAX_SHARDS = 32
# Estimated seconds of one operation in a vectorized loop, of one of the
# functions above, and of loading a byte.
_OPERATION, _FUNCTION, _BYTE = 6e-11, 8e-10, 5e-11
# Second number of the loops that the compiler is told to vectorize.
_VECTORIZE = 1_000_003


def install(original):
    """Puts these rules in the place of tinygrad's, for kernels in C.

    Args:
        original: Function of an object and an attribute's name that returns
            what tinygrad itself has there.
    """
    theirs = original(heuristic_module, "hand_coded_optimizations")

    def rules(kernel):
        if isinstance(kernel.ren, ClangRenderer):
            return arrange(kernel)
        return theirs(kernel)

    heuristic_module.hand_coded_optimizations = rules
    ClangRenderer.string_rewrite = _PRAGMA + ClangRenderer.string_rewrite


def arrange(kernel):
    """Chooses the loops of one kernel.

    Args:
        kernel: tinygrad `Scheduler`, over a kernel whose loops are simplified
            and not yet optimized.

    Returns:
        The `Scheduler`, its kernel rewritten.
    """
    end = kernel.ast.src[0]
    store = end.src[0] if end.op is Ops.END else end
    if len(kernel.ast.src) > 1 or store.op is not Ops.STORE:
        return kernel
    if any(u.op in _KEPT for u in store.toposort()):
        return kernel
    reduces = [u for u in store.toposort() if u.op is Ops.REDUCE]
    work = _work(store)
    if not reduces:
        _arrange_elementwise(kernel, end, store)
    elif not any(_has_reduce(u.src[0]) for u in reduces):
        _arrange_reduction(kernel, end, store, reduces, work)
    if work >= MIN_SHARED:
        _cut(kernel, work)
    return kernel


# A kernel with one of these is somebody's own.
_KEPT = (Ops.STAGE, Ops.CALL, Ops.BUFFER, Ops.AFTER, Ops.WMMA)


def _has_reduce(uop):
    return any(u.op is Ops.REDUCE for u in uop.toposort())


def _work(store):
    """Estimates how many seconds a kernel takes."""
    seconds = 0
    for u in store.toposort():
        if u.op is Ops.INDEX:
            cost = _BYTE * u.dtype.itemsize
        elif u.op in _FUNCTIONS:
            cost = _FUNCTION
        elif u.op in GroupOp.ALU and u.dtype is not dtypes.weakint:
            cost = _OPERATION
        elif u.op is Ops.REDUCE:
            u, cost = u.src[0], _OPERATION
        else:
            continue
        sizes = [_size(r) for r in u.ranges]
        if None in sizes:
            return 0
        seconds += cost * math.prod(sizes)
    return seconds


def _cut(kernel, work):
    """Cuts a kernel into shards, if one of its loops allows it."""
    end = kernel.ast.src[0]
    most = min(MAX_SHARDS, int(work / MIN_SHARD))
    best = 1, None
    loops = {r for axis in end.ended_ranges for r in axis.ranges}
    for r in sorted(loops, key=lambda r: r.arg[:-1]):
        if r.arg[-1] in (AxisType.WEAK, AxisType.LOOP):
            shards = _largest_divisor(_size(r), most)
            # An outer loop's shards are further apart in memory.
            if shards >= 2 * best[0]:
                best = shards, r
    shards, axis = best
    if axis is not None:
        kernel.shift_to(axis, shards, AxisType.THREAD, top=True)


def _largest_divisor(size, most):
    candidates = range(min(size or 1, most), 0, -1)
    return next(n for n in candidates if (size or 1) % n == 0)


def _arrange_elementwise(kernel, end, store):
    ranges = sorted(end.ended_ranges, key=lambda r: r.arg)
    target = store.src[0]
    inner = next((r for r in ranges if _stride(target, r) == 1), None)
    if inner is None:
        return
    if inner is not ranges[-1]:
        number = next(kernel.opt_range)
        moved = inner.replace(arg=(number, inner.arg[-1]))
        kernel.ast = kernel.ast.substitute({inner: moved})
        store = store.substitute({inner: moved})
        inner = moved
    across = None
    for load in _loads(store.src[1]):
        if _stride(load, inner) in (0, 1):
            continue
        across = next(
            (r for r in ranges if r is not inner and _stride(load, r) == 1),
            across,
        )
    if across is None:
        return
    if (_stride(target, across) or math.inf) <= _LINE:
        # What is stored fills lines that lie side by side.
        unrolled = _divisor(across, (_LINE, 8, 4)), _divisor(inner, (4,))
    else:
        unrolled = _divisor(across, (8, 4)), _divisor(inner, (8, 4))
    if None not in unrolled and not _is_heavy(store.src[1]):
        # Few operations: vectors are loaded, turned and stored.
        for axis, count in zip((across, inner), unrolled):
            kernel.apply_opt(Opt(OptOps.UPCAST, kernel.rngs.index(axis), count))
            inner = next((r for r in kernel.rngs if r.arg == inner.arg), inner)
        return
    tiles = _divisor(across, _TILES), _divisor(inner, _TILES)
    if None not in tiles:
        for axis, count in zip((across, inner), tiles):
            kernel.shift_to(axis, count, axis.arg[-1])


def _divisor(axis, candidates):
    size = _size(axis)
    if size is None:
        return None
    return next((n for n in candidates if size % n == 0), None)


def _is_heavy(value):
    """Whether the C compiler must vectorize what is computed, in a loop."""
    operations = [u.op for u in value.toposort() if u.op in GroupOp.ALU]
    return len(operations) > 20 or any(op in _FUNCTIONS for op in operations)


def _arrange_reduction(kernel, end, store, reduces, work):
    terms = {r: _size(r) for u in reduces for r in u.src[1:]}
    if None in terms.values():
        return
    loads = {x: None for u in reduces for x in _loads(u.src[0])}
    outputs = [r for r in end.ended_ranges if r.op is Ops.RANGE]
    if math.prod(terms.values()) <= MAX_UNROLLED:
        for _ in terms:
            kernel.apply_opt(Opt(OptOps.UNROLL, 0, 0))
        if not _is_heavy(store.src[1]):
            _write_out_pairs(kernel, store, terms, outputs, loads)
        return
    row, row_score = _most_contiguous(terms, loads)
    column, column_score = _most_contiguous(outputs, loads)
    if row_score > 0 and row_score >= column_score:
        _along_rows(kernel, reduces, row)
    elif column_score > 0:
        others = [r for r in outputs if r is not column]
        others = math.prod(_size(r) or 1 for r in others)
        # Enough blocks for shards, if there is that much work.
        shards = work / MIN_SHARD if work >= MIN_SHARED else 1
        block = _block(column, min(shards, MAX_SHARDS // 4) / others)
        if block is not None:
            _over_rows(kernel, end, store, reduces, column, block)


def _write_out_pairs(kernel, store, terms, outputs, loads):
    """Writes out some outputs whose windows of two lie side by side.

    The C compiler then loads vectors, and parts the pairs in registers.
    """
    if not any(
        size == 2 and all(_stride(load, r) == 1 for load in loads)
        for r, size in terms.items()
    ):
        return
    inner = next(
        (r for r in outputs if all(_stride(load, r) == 2 for load in loads)),
        None,
    )
    if inner is None:
        return
    count = _divisor(inner, (16, 8, 12, 4, 14, 10, 6))
    if count is None:
        return
    kernel.apply_opt(Opt(OptOps.UPCAST, _position(kernel, inner), count))
    if count % 4 and count == _size(inner):
        # Two rows of outputs fill whole vectors.
        row = next(
            (r for r in outputs if _stride(store.src[0], r) == count), None
        )
        if row is not None and _divisor(row, (2,)):
            kernel.apply_opt(Opt(OptOps.UPCAST, _position(kernel, row), 2))


def _position(kernel, axis):
    return next(i for i, r in enumerate(kernel.rngs) if r.arg == axis.arg)


def _most_contiguous(ranges, loads):
    """Returns the range that most loads step through by one, and how many.

    Loads that step through it any other way count against it.
    """
    scores = []
    for r in ranges:
        strides = [_stride(load, r) for load in loads]
        score = strides.count(1) - sum(s not in (0, 1) for s in strides)
        scores.append((score, r))
    score, best = max(scores, default=(0, None), key=lambda x: x[0])
    return best, score


def _along_rows(kernel, reduces, row):
    """Arranges a reduction along contiguous memory."""
    number = next(kernel.opt_range)
    for u in reduces:
        if row not in u.src[1:]:
            continue
        if u.arg[0] is Ops.ADD or not dtypes.is_float(u.dtype):
            marked = row.replace(arg=(number, _VECTORIZE, row.arg[-1]))
            replacement = u.substitute({row: marked})
        elif _size(row) >= 2 * LANES:
            replacement = _in_lanes(kernel, u, row)
        else:
            continue
        kernel.ast = kernel.ast.substitute({u: replacement})


def _in_lanes(kernel, reduce, row):
    """Reduces to a vector, and the vector by halves."""
    op, body = reduce.arg[0], reduce.src[0]
    outer = [r for r in body.ranges if r not in reduce.src[1:]]
    rest = [r for r in reduce.src[1:] if r is not row]
    lanes = UOp.placeholder(
        (LANES,), reduce.dtype, next(kernel.opt_range), AddrSpace.REG
    )

    def combine(state, position, value):
        place = state.index(position)
        return place.store(place.alu(op, value))

    lane = _range(kernel, LANES)
    ready = lanes.after(*outer).index(lane).store(_identity(reduce)).end(lane)
    state = lanes.after(ready, *rest)
    turns, tail = divmod(_size(row), LANES)
    turn, lane = _range(kernel, turns), _range(kernel, LANES)
    value = body.substitute({row: turn * LANES + lane})
    done = combine(state.after(turn), lane, value).end(lane).end(turn)
    if tail:
        lane = _range(kernel, tail)
        value = body.substitute({row: lane + turns * LANES})
        done = combine(state.after(done), lane, value).end(lane)
    state = lanes.after(done.end(*rest) if rest else done)
    half = LANES // 2
    while half:
        lane = _range(kernel, half)
        value = state.index(lane + half)
        state = lanes.after(combine(state, lane, value).end(lane))
        half //= 2
    return state.index(UOp.const(0))


def _over_rows(kernel, end, store, reduces, column, block):
    """Arranges a reduction so that each column has an accumulator."""
    size = _size(column)
    first = _range(kernel, size // block) if block < size else None

    def at(lane):
        return lane if first is None else first * block + lane

    outer = [r for r in end.ended_ranges if r is not column]
    outer += [first] if first is not None else []
    # Reductions over the same rows share one walk through memory.
    walks = {}
    for u in reduces:
        walks.setdefault(u.src[1:], []).append(u)
    results = {}
    for rows, group in walks.items():
        accumulators = [
            UOp.placeholder(
                (block,), u.dtype, next(kernel.opt_range), AddrSpace.REG
            )
            for u in group
        ]
        lane = _range(kernel, block)
        ready = UOp.group(
            *[
                a.after(*outer).index(lane).store(_identity(u))
                for a, u in zip(accumulators, group)
            ]
        ).end(lane)
        lane = _range(kernel, block)
        updates = []
        for a, u in zip(accumulators, group):
            place = a.after(ready, *rows).index(lane)
            value = u.src[0].substitute({column: at(lane)})
            updates.append(place.store(place.alu(u.arg[0], value)))
        done = UOp.group(*updates).end(lane).end(*rows)
        for a, u in zip(accumulators, group):
            results[u] = a.after(done)
    lane = _range(kernel, block)
    value = store.src[1].substitute(
        {u: a.index(lane) for u, a in results.items()}
    )
    stored = store.replace(src=(store.src[0], value)).substitute(
        {column: at(lane)}
    )
    stored = stored.end(lane)
    if outer:
        stored = stored.end(*outer)
    kernel.ast = kernel.ast.replace(src=(stored,))


def _block(column, count):
    """Returns how many columns are worked on at once, in `count` blocks."""
    size = _size(column)
    if size is None:
        return None
    largest = max(16, min(size / max(count, 1), MAX_COLUMNS))
    if size <= largest:
        return size
    # As few as fill a line of the cache, at least.
    divisors = [n for n in range(16, int(largest) + 1) if size % n == 0]
    if not divisors and size <= MAX_COLUMNS:
        return size
    return max(divisors, default=None)


def _range(kernel, size):
    return UOp.range(size, next(kernel.opt_range), AxisType.LOOP)


def _identity(reduce):
    return UOp.const(identity_element(reduce.arg[0], reduce.dtype))


def _size(axis):
    end = axis.src[0]
    return end.val if end.op is Ops.CONST else None


def _loads(uop):
    return [u for u in uop.toposort() if u.op is Ops.INDEX]


def _stride(access, axis):
    """Elements between neighbours along an axis, `None` if they vary."""
    total = 0
    for term in access.src[1].get_idx().split_uop(Ops.ADD):
        if axis not in term.ranges:
            continue
        if term is axis:
            total += 1
        elif term.op is Ops.MUL and axis in term.src:
            factor = term.src[1] if term.src[0] is axis else term.src[0]
            if factor.op is not Ops.CONST:
                return None
            total += factor.val
        else:
            return None
    return total


def _loop(ctx, x):
    if x.arg[1:-1] != (_VECTORIZE,):
        return None
    name, end = ctx[x], ctx[x.src[0]]
    return (
        "#pragma clang loop vectorize(enable)\n"
        f"for ({ctx.render_dtype(x.dtype)} {name} = 0; {name} < {end}; "
        f"{name}++) {{"
    )


_PRAGMA = PatternMatcher([(UPat(Ops.RANGE, name="x"), _loop)])
