"""Loops as single calls in the graph.

On the CPU the call is a kernel, which receives the addresses of the body's
programs in a buffer of words. The words also hold the number of steps and how
far each address advances from step to step: so one kernel serves all loops
whose bodies call programs of the same form.

On other devices the call stands for the launches of all steps, which take its
place when the graph is lowered.
"""

import functools
import itertools
import weakref

from tinygrad import Tensor
from tinygrad import dtypes

from keras.src.backend.tinygrad.engine.handwritten import constant_words
from keras.src.backend.tinygrad.engine.handwritten import kernel
from keras.src.backend.tinygrad.engine.host_call import KERNEL as HOST_CALL
from keras.src.backend.tinygrad.engine.host_call import makes_host_calls
from keras.src.backend.tinygrad.engine.internals import ClangRenderer
from keras.src.backend.tinygrad.engine.internals import CPULLVMRenderer
from keras.src.backend.tinygrad.engine.internals import Device
from keras.src.backend.tinygrad.engine.internals import KernelInfo
from keras.src.backend.tinygrad.engine.internals import Ops
from keras.src.backend.tinygrad.engine.internals import UOp
from keras.src.backend.tinygrad.engine.internals import get_runtime
from keras.src.backend.tinygrad.engine.lowering import Launch
from keras.src.backend.tinygrad.engine.lowering import View
from keras.src.backend.tinygrad.engine.lowering import expansions
from keras.src.backend.tinygrad.engine.recent import Recent
from keras.src.backend.tinygrad.engine.runtime_lock import lock
from keras.src.backend.tinygrad.engine.scan_program import Layout
from keras.src.backend.tinygrad.engine.scan_program import compiled
from keras.src.backend.tinygrad.engine.scan_program import places
from keras.src.backend.tinygrad.engine.scan_program import stored

# tinygrad launches CPU programs with at most this many arguments.
_MAX_ARGUMENTS = 63

_words = Recent(1024)


def launch(body, inputs, length, reverse):
    """Runs a loop, lazily and without a gradient.

    Args:
        body: `Body`.
        inputs: List of `Tensor`s: carries, xs with the loop's axis first,
            and consts.
        length: Number of steps, at least 1.
        reverse: Whether the steps go from the last slice to the first.

    Returns:
        List of the final carries, list of the stacked results, and the
        `CALL` uop of all of them, or `None` where nothing is to be called.

    Raises:
        Unsupported: If the body needs what a plan does not offer.
    """
    # The body is compiled here, while the graph is built.
    with lock:
        return _launch(body.plain(), inputs, length, reverse)


def _launch(body, inputs, length, reverse):
    n, m = len(body.carries), len(body.xs)
    carries, xs, consts = inputs[:n], inputs[n : n + m], inputs[n + m :]
    if not carries and not places(body)[1]:
        ys = [
            xs[i].reshape(length, *uop.shape)
            for (_, i), uop in zip(places(body)[0], body.ys)
        ]
        return [], ys, None
    program = compiled(body)
    device = program.device
    slices = [row.lay_out(t) for row, t in zip(program.x_rows, xs)]
    layout = Layout(program, length, reverse, [start for _, start in slices])
    stacks = [
        row.empty(layout.rows(i)) for i, row in enumerate(program.carry_rows)
    ]
    results = [row.empty(length) for row in program.result_rows]
    arguments = [
        *stacks,
        *results,
        Tensor.empty(program.scratch, dtype=dtypes.uint8, device=device),
        *[stored(t, device) for t in carries],
        *[t for t, _ in slices],
        *[stored(t, device) for t in consts],
    ]
    calls = _calls(program)
    if calls is not None and len(arguments) < _MAX_ARGUMENTS:
        name = _name("scan", program)
        sink = _kernel(n, len(results), m, len(consts), calls, name)
        arguments.append(_layout_words(layout))
    else:
        sink = _marker(body, layout)
    call = sink.call(*[t.uop for t in arguments])
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


def _name(kind, program):
    """Returns what the name of a loop's kernel begins with."""
    host = any(makes_host_calls(one.program) for one, _ in program.launches)
    return f"{kind}_{HOST_CALL}" if host else kind


def _calls(program):
    """Returns what the kernel of a loop calls in each step.

    Returns:
        Tuple with a pair for each call: its arguments, as in
        `Program.launches`, and the shard, or `None`. `None` if the loop
        can't be a kernel.
    """
    if program.device != "CPU" or not isinstance(
        Device["CPU"].renderer, (ClangRenderer, CPULLVMRenderer)
    ):
        return None
    calls = []
    for one, arguments in program.launches:
        if one.program is None or one.device != "CPU":
            return None
        shards, names = _shards(one.program)
        if names not in ([], ["core_id"]):
            return None
        calls += [(arguments, core if names else None) for core in shards]
    return tuple(calls)


def _shards(program):
    names = [v.expr for v in program.arg.vars]
    return range(program.arg.global_size[0] if names else 1), names


def _layout_words(layout):
    """Returns the words of a loop's kernel, one tensor for equal ones."""
    program = layout.program
    values = [layout.length]
    for place, row in zip(layout.carries, program.carry_rows):
        values += [*place, row.nbytes]
    values += itertools.chain(*layout.slices)
    runtimes = [get_runtime("CPU", one.program) for one, _ in program.launches]
    for runtime, (one, _) in zip(runtimes, program.launches):
        values += [runtime.addr] * len(_shards(one.program)[0])
    key = tuple(value % 2**64 for value in values)

    def make():
        words = constant_words(key)
        # A plan may hold the words longer than this table does.
        weakref.finalize(words.uop.buffer, list.clear, runtimes)
        return words

    return _words.get(key, make)


@functools.lru_cache(maxsize=256)
def _kernel(carries, results, xs, consts, calls, name):
    """Builds the kernel of all loops of one form.

    Args:
        carries, results, xs, consts: Numbers of buffers.
        calls: Tuple with a pair for each call of a step: its arguments, as
            triples (kind, index, byte offset), and the shard, or `None`.
        name: First part of the kernel's name.

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
    return kernel(done[0].end(step), f"{name}_{len(calls)}")


def _marker(body, layout):
    """Returns a `SINK` uop that is replaced by the launches of all steps."""
    where = f"{layout.length} {layout.carries} {layout.slices}"
    name = f"{_name('loop', layout.program)}_{body.digest(where)}"
    # Compiled by itself it would be an error.
    marker = UOp(Ops.CUSTOM, dtypes.void, arg=f"#error {name}")
    sink = UOp.sink(marker, arg=KernelInfo(name=name), tag=1)
    if name not in expansions:
        expansions[name] = functools.partial(_expand, layout)
        # Equal uops are one object, which the graphs that have it keep.
        weakref.finalize(sink, expansions.pop, name)
    return sink


def _expand(layout, views):
    """Returns the launches of a loop, over the views that its call got."""
    program = layout.program
    n, m = len(program.carry_rows), len(program.x_rows)
    views = iter(views)

    def take(count):
        return list(itertools.islice(views, count))

    stacks, results = take(n), take(len(program.result_rows))
    (scratch,) = take(1)
    first, slices, consts = take(n), take(m), take(program.consts)
    launches = []
    for i, (stack, source) in enumerate(zip(stacks, first)):
        target = _shifted(stack, layout.carry_at(i, 0), source)
        launches.append(Launch(None, program.device, (target, source)))
    for step in range(layout.length):
        bases = {
            "before": lambda i: (stacks[i], layout.carry_at(i, step)),
            "after": lambda i: (stacks[i], layout.carry_at(i, step + 1)),
            "x": lambda i: (slices[i], layout.slice_at(i, step)),
            "result": lambda i: (results[i], layout.slice_at(m + i, step)),
            "const": lambda i: (consts[i], 0),
            "scratch": lambda i: (scratch, 0),
        }
        for one, arguments in program.launches:
            args = []
            for (kind, i, offset), view in zip(arguments, one.args):
                base, start = bases[kind](i)
                args.append(_shifted(base, start + offset, view))
            launches.append(Launch(one.program, one.device, tuple(args)))
    return launches


def _shifted(base, offset, like):
    return View(base.slot, base.offset + offset, like.size, like.dtype)
