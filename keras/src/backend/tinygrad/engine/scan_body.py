"""One step of a loop as a graph, and the step of the loop's gradient."""

import dataclasses
import hashlib
import math

from tinygrad import Tensor
from tinygrad import dtypes

from keras.src.backend.tinygrad.engine.canonical import base_buffer
from keras.src.backend.tinygrad.engine.canonical import canonicalize
from keras.src.backend.tinygrad.engine.canonical import is_allocated
from keras.src.backend.tinygrad.engine.canonical import trace_inputs
from keras.src.backend.tinygrad.engine.gemm import Product
from keras.src.backend.tinygrad.engine.gradient import custom_vjp
from keras.src.backend.tinygrad.engine.gradient import gradients
from keras.src.backend.tinygrad.engine.gradient import plain
from keras.src.backend.tinygrad.engine.internals import Ops
from keras.src.backend.tinygrad.engine.internals import UOp
from keras.src.backend.tinygrad.engine.internals import compute_gradient
from keras.src.backend.tinygrad.engine.lowering import Unsupported
from keras.src.backend.tinygrad.engine.tracing import loop_body

_TRANSPARENT = (
    Ops.RESHAPE,
    Ops.CONTIGUOUS,
    Ops.CONTIGUOUS_BACKWARD,
    Ops.DETACH,
)
_SLOW = (Ops.EXP2, Ops.LOG2, Ops.SIN)
_STORED = (Ops.AFTER, Ops.BUFFER, Ops.CONTIGUOUS)
_NARROW = (dtypes.float16, dtypes.bfloat16)


@dataclasses.dataclass(frozen=True)
class Body:
    """One step of a loop, as a graph over placeholders.

    Attributes:
        carries: Placeholders (flat `BUFFER` uops) of what the step before
            left.
        xs: Placeholders of the step's slices.
        consts: Placeholders of what all steps share.
        sources: The uops that `consts` stand for, outside the loop.
        new_carries: Uops of what the step leaves, as many as `carries`.
        ys: Uops of the step's own results.
    """

    carries: tuple
    xs: tuple
    consts: tuple
    sources: tuple
    new_carries: tuple
    ys: tuple

    @property
    def placeholders(self):
        """Tuple of the uops that the body reads, one for each input."""
        return (*self.carries, *self.xs, *self.consts)

    @property
    def outputs(self):
        """Tuple of the uops of the new carries and the step's results."""
        return (*self.new_carries, *self.ys)

    def plain(self):
        """Returns the body without declared gradients."""
        outputs = plain(self.outputs)
        n = len(self.new_carries)
        return dataclasses.replace(
            self, new_carries=tuple(outputs[:n]), ys=tuple(outputs[n:])
        )

    def key(self):
        """Returns a hashable that is equal for bodies that do the same."""
        return (self._form(), self._canonical().key)

    def digest(self, *more):
        """Returns a name for what the body does, the same in any process.

        Args:
            *more: Strings that the name depends on too.
        """
        text = repr((self._form(), *more))
        digest = hashlib.sha256(self._canonical().digest() + text.encode())
        return digest.hexdigest()[:32]

    def _form(self):
        # The graph does not tell the form of placeholders that it lacks.
        kinds = (self.carries, self.xs, self.consts)
        forms = [
            tuple((p.max_numel(), str(p.dtype)) for p in kind) for kind in kinds
        ]
        return (*forms, len(self.ys))

    def _canonical(self):
        params = {
            p: UOp.param(i, p.dtype, p.shape, p.device)
            for i, p in enumerate(self.placeholders)
        }
        roots = UOp.sink(*self.outputs).substitute(params, walk=True).src
        graph = canonicalize(list(roots))
        if graph.var_vals:
            # A compiled body has no place for their values.
            raise Unsupported(f"bound variables in a loop: {graph.var_vals}")
        return graph


def trace(fn, carries, xs, device):
    """Traces the body of a loop.

    Args:
        fn: Function of two lists of `Tensor`s, the carries and the step's
            slices, that returns two lists: the new carries and the results.
        carries: List of pairs (shape, tinygrad dtype), none of size 0.
        xs: List of the same for the slices.
        device: Canonical tinygrad device of the placeholders.

    Returns:
        `Body`. What `fn` uses besides its arguments becomes consts.

    Raises:
        HostReadError: If `fn` reads on the host what depends on its
            arguments.
    """
    places = [
        placeholder(shape, dtype, device) for shape, dtype in (*carries, *xs)
    ]
    arguments = [
        Tensor(p.reshape(shape)) for p, (shape, _) in zip(places, carries + xs)
    ]
    n = len(carries)
    with loop_body(places):
        new_carries, ys = fn(arguments[:n], arguments[n:])
    return close(
        places[:n],
        places[n:],
        [_stored(t.uop, device) for t in new_carries],
        [_stored(t.uop, device) for t in ys],
        device,
    )


def placeholder(shape, dtype, device):
    """Returns a new flat `BUFFER` uop without memory."""
    buffer = UOp.new_buffer(device, math.prod(shape), dtype)
    trace_inputs.add(buffer)
    return buffer


def _stored(uop, device):
    return uop.clone(device=device) if uop.device is None else uop


def close(carries, xs, new_carries, ys, device, outside=None):
    """Makes a `Body` whose graph is over placeholders alone.

    Args:
        carries: List of placeholders.
        xs: List of placeholders.
        new_carries: List of uops over placeholders and anything else.
        ys: List of the same.
        device: Canonical tinygrad device of the placeholders.
        outside: Dict of the placeholders among that anything else, to what
            they stand for.

    Returns:
        `Body`.
    """
    invariants = _invariants((*new_carries, *ys), {*carries, *xs})
    consts = {
        uop: placeholder(uop.shape, uop.dtype, device) for uop in invariants
    }
    inside = {uop: p.reshape(uop.shape) for uop, p in consts.items()}
    roots = UOp.sink(*new_carries, *ys).substitute(inside, walk=True).src
    return Body(
        tuple(carries),
        tuple(xs),
        tuple(consts.values()),
        tuple(uop.substitute(outside or {}, walk=True) for uop in consts),
        roots[: len(new_carries)],
        roots[len(new_carries) :],
    )


def _invariants(roots, inner):
    """Finds the values that all steps share.

    Args:
        roots: The body's results.
        inner: Set of the placeholders that are not shared.

    Returns:
        List of the uops over storage, and not over `inner`, that the rest of
        the graph uses; for one that is repeated, what it repeats.
    """
    varies, stored, found = {}, {}, {}
    sink = UOp.sink(*roots)
    written = written_buffers(sink)
    for uop in sink.toposort(enter_calls=False):
        sources = uop.src
        if uop.op in (Ops.CALL, Ops.FUNCTION):
            sources = sources[1:]
        varies[uop] = uop in inner or any(varies[s] for s in sources)
        stored[uop] = any(stored[s] for s in sources)
        if uop.op is Ops.BUFFER:
            stored[uop] = uop not in written
        if varies[uop] or uop is sink:
            for source in sources:
                if stored[source] and not varies[source]:
                    found[_unexpanded(source)] = None
    return list(found)


def written_buffers(uop):
    """Returns the set of `BUFFER` uops that kernels in a graph write first.

    They have no memory yet, and two copies of the graph need two of them.
    """
    bases = {
        base_buffer(u)
        for u in uop.toposort(enter_calls=False)
        if u.op is Ops.AFTER and not u.is_bound_var
    }
    return {b for b in bases if b is not None and not is_allocated(b)}


def _unexpanded(uop):
    # Not below a last reshape: gradients may be asked for just there.
    found = uop
    while uop.op in (Ops.RESHAPE, Ops.EXPAND):
        if uop.op is Ops.EXPAND:
            found = uop.src[0]
        uop = uop.src[0]
    return found


def split_products(body):
    """Takes the products out of a loop that need not wait for its carries.

    A slice times a matrix that all steps share is a part of one product of
    all slices.

    Args:
        body: `Body`.

    Returns:
        Triple of the `Body` that takes those products as further `xs`; the
        `Body`, without carries, of their left operands; and a list with the
        products as pairs: the `Product`, and the uop outside the loop that
        is its right operand's storage. The latter two may be empty.
    """
    carried = _dependent(body.outputs, set(body.carries))
    sliced = _dependent(body.outputs, set(body.xs))
    found = [
        use
        for use in _products(body)[0]
        if use.left in sliced and use.left not in carried
    ]
    if not found:
        return body, None, []
    device = body.outputs[0].device
    places = {
        use.uop: placeholder(use.uop.shape, use.uop.dtype, device)
        for use in found
    }
    outputs = UOp.sink(*body.outputs).substitute(places, walk=True).src
    n = len(body.carries)
    outside = _outside(body)
    xs = (*body.xs, *places.values())
    return (
        close(body.carries, xs, outputs[:n], outputs[n:], device, outside),
        close((), body.xs, (), [use.left for use in found], device, outside),
        [(use.product, body.sources[use.const]) for use in found],
    )


def _outside(body):
    """Maps the placeholders of a body's consts to what they stand for."""
    return {p: s.reshape(p.shape) for p, s in zip(body.consts, body.sources)}


def _dependent(roots, inner):
    """Returns the set of the uops in a graph that are over `inner`."""
    found = set(inner)
    for uop in UOp.sink(*roots).toposort(enter_calls=False):
        if any(s in found for s in uop.src):
            found.add(uop)
    return found


@dataclasses.dataclass(frozen=True)
class Use:
    """A product of a step with a matrix that all steps share.

    Attributes:
        uop: The `AFTER` uop of the result.
        product: `Product`.
        left: Uop of the left operand.
        const: Index of the const that stores the right operand.
    """

    uop: UOp
    product: Product
    left: UOp
    const: int


def _products(body):
    """Finds the products with consts in a body's graph.

    Returns:
        List of `Use`s, and set of the indices of the consts that are used
        otherwise too.
    """
    index = {p: k for k, p in enumerate(body.consts)}
    sink = UOp.sink(*body.outputs)
    uses, elsewhere = [], set()
    for uop in sink.toposort(enter_calls=False):
        if uop.op is Ops.RESHAPE:
            continue
        sources = [_reshaped(s) for s in uop.src]
        product = uop.arg.grad_fxn if uop.op is Ops.CALL and uop.arg else None
        if (
            isinstance(product, Product)
            and len(product.right.tensor.shape) == 2
            and sources[3] in index
        ):
            left, _ = product.operands(uop)
            uses.append((uop, product, left.uop, index[sources[3]]))
            sources[3] = None
        elsewhere.update(index[s] for s in sources if s in index)
    results = {
        u.src[1]: u
        for u in sink.toposort(enter_calls=False)
        if u.op is Ops.AFTER
    }
    return [Use(results[call], *rest) for call, *rest in uses], elsewhere


def _reshaped(uop):
    while uop.op is Ops.RESHAPE:
        uop = uop.src[0]
    return uop


@dataclasses.dataclass(frozen=True)
class BackwardStep:
    """The step of a loop's gradient, over the loop's placeholders and more.

    Attributes:
        carried: Indices of the carries whose cotangents it carries.
        arriving: Indices of the outputs whose cotangents it takes.
        summed: Indices of the consts whose gradients it sums up.
        sliced: Indices of the xs whose gradients it yields.
        products: The `Use`s of consts whose gradients are formed from all
            steps' operands at the end.
        reductions: The `Reduction`s that are gradients of consts, also formed
            at the end.
        carries: Placeholders, for `carried` and then `summed`.
        xs: Placeholders, for `arriving`.
        new_carries: Uops, as many as `carries`.
        ys: Uops, for `sliced` and then the cotangents of `products`.
    """

    carried: tuple
    arriving: tuple
    summed: tuple
    sliced: tuple
    products: tuple
    reductions: tuple
    carries: tuple
    xs: tuple
    new_carries: tuple
    ys: tuple


@dataclasses.dataclass(frozen=True)
class Reduction:
    """A const's gradient as a sum over leading axes of a step's result.

    Attributes:
        const: Index of the const.
        result: Index of the step's result.
        shape: Shape that is summed over.
        axes: Number of its axes that are summed over.
    """

    const: int
    result: int
    shape: tuple
    axes: int


def differentiate(body, arrives):
    """Differentiates one step of a loop.

    Args:
        body: `Body`.
        arrives: List that says for each output of the body whether the
            loop's result of that index has a cotangent.

    Returns:
        `BackwardStep`.
    """
    n = len(body.carries)
    carried = [i for i, p in enumerate(body.carries) if is_float(p)]
    arriving = [i for i in range(n, len(arrives)) if arrives[i]]
    roots = {i: body.outputs[i] for i in (*carried, *arriving)}
    places = {
        i: placeholder(u.shape, u.dtype, u.device) for i, u in roots.items()
    }
    found = cotangents_of(
        body,
        list(roots.values()),
        [places[i].reshape(u.shape) for i, u in roots.items()],
    )
    uses, elsewhere = _products(body)
    products = [
        use for use in uses if use.const not in elsewhere and use.uop in found
    ]
    sliced = [j for j, p in enumerate(body.xs) if p in found]
    wanted = [body.xs[j] for j in sliced] + [use.uop for use in products]
    results = [_stored(found[u], u.device) for u in wanted]
    apart = {use.const for use in products}
    rest = [
        k
        for k, p in enumerate(body.consts)
        if p in found and k not in apart and _has_leaf(body.sources[k])
    ]
    reductions = [_reduction(k, found[body.consts[k]], results) for k in rest]
    reductions = [r for r in reductions if r is not None]
    apart = {r.const for r in reductions}
    summed = [k for k in rest if k not in apart]
    sums = [_sum_placeholder(body.consts[k]) for k in summed]
    new_carries = [
        _stored(found.get(p, p.const_like(0)), p.device)
        for p in (body.carries[i] for i in carried)
    ]
    new_carries += [
        total + found[body.consts[k]].cast(total.dtype)
        for k, total in zip(summed, sums)
    ]
    return BackwardStep(
        tuple(carried),
        tuple(arriving),
        tuple(summed),
        tuple(sliced),
        tuple(products),
        tuple(reductions),
        (*[places[i] for i in carried], *sums),
        tuple(places[i] for i in arriving),
        tuple(new_carries),
        tuple(results),
    )


def _reduction(const, uop, results):
    """Returns the `Reduction` of a result that a gradient is, or `None`."""
    indices = {stripped(u): i for i, u in reversed(list(enumerate(results)))}
    uop, axes = stripped(uop), 0
    if uop not in indices and uop.op is Ops.REDUCE:
        operation, axes = uop.arg
        uop = uop.src[0] if operation is Ops.ADD else uop
    if stripped(uop) not in indices:
        return None
    return Reduction(const, indices[stripped(uop)], uop.shape, axes)


def stripped(uop):
    """Returns what a uop has the value of, in the same order."""
    while uop.op in _TRANSPARENT and uop.arg is None:
        uop = uop.src[0]
    return uop


def cotangents_of(body, roots, cotangents):
    """Differentiates parts of a body's graph.

    Args:
        body: `Body`.
        roots: List of uops of its graph.
        cotangents: List of as many uops.

    Returns:
        Dict of the floating placeholders and products on the way to `roots`,
        to the uops of their cotangents.
    """
    targets = [p for p in body.placeholders if is_float(p)]
    found = compute_gradient(
        UOp.maketuple(*roots), UOp.maketuple(*cotangents), set(targets)
    )
    # Declared gradients may still speak of what the consts stand for.
    inside = {s: p.reshape(s.shape) for s, p in zip(body.sources, body.consts)}
    targets += [use.uop for use in _products(body)[0]]
    targets = [u for u in targets if u in found]
    values = UOp.sink(*[found[u].cast(u.dtype) for u in targets])
    values = _store_padded(values.substitute(inside, walk=True))
    return dict(zip(targets, values.src))


def _store_padded(sink):
    """Has what is padded computed before, if that costs much.

    The gradient of a split is a sum of padded parts: in one kernel, each of
    its elements would compute all parts, to take one of them.
    """
    nodes = sink.toposort(enter_calls=False)
    parts = {uop.src[0] for uop in nodes if uop.op is Ops.PAD}
    stored = {}
    for uop in nodes:
        if uop in parts and _is_slow(uop):
            stored[uop] = uop.substitute(stored, walk=True).contiguous()
    return sink.substitute(stored, walk=True)


def _is_slow(uop):
    """Whether a kernel that uses a value computes a slow function for it."""
    visited, stack = set(), [uop]
    while stack:
        uop = stack.pop()
        if uop.op in _SLOW:
            return True
        if uop not in visited and uop.op not in _STORED:
            visited.add(uop)
            stack += uop.src
    return False


def differentiated_as(outputs, inputs, function):
    """Declares that values have the gradient of a function's results.

    Args:
        outputs: List of floating `Tensor`s with a device.
        inputs: List of `Tensor`s; they may depend on each other.
        function: Function of as many `Tensor`s, that returns a list of
            `Tensor`s: given `inputs`, the values of `outputs`.

    Returns:
        List of `Tensor`s with the values of `outputs`.
    """

    def vjp(cotangents):
        device = outputs[0].device
        places = [placeholder(t.shape, t.dtype, device) for t in inputs]
        parts = [Tensor(p.reshape(t.shape)) for p, t in zip(places, inputs)]
        total = sum(
            (y * g).sum()
            for y, g in zip(function(*parts), cotangents)
            if g is not None
        )
        values = {p: t.reshape(-1).uop for p, t in zip(places, inputs)}
        return [
            None if g is None else Tensor(g.uop.substitute(values, walk=True))
            for g in gradients(total, parts)
        ]

    return custom_vjp(outputs, inputs, vjp)


def is_float(uop):
    """Whether a uop's dtype is of floats, which have gradients."""
    return dtypes.is_float(uop.dtype)


def _has_leaf(uop):
    """Whether a value has a gradient for anything stored.

    A dropout mask, say, has none: it comes from random bits.
    """
    leaves, written, visited, stack = set(), set(), set(), [uop]
    while stack:
        uop = stack.pop()
        if uop in visited:
            continue
        visited.add(uop)
        if uop.op in (Ops.BUFFER, Ops.PARAM):
            leaves.add(uop)
        elif uop.op is Ops.AFTER:
            written.add(base_buffer(uop))
            stack += uop.src[1:]
        else:
            first = uop.op in (Ops.CALL, Ops.FUNCTION, Ops.STORE)
            stack += [
                s
                for s in uop.src[first:]
                if is_float(s) or s.dtype is dtypes.void
            ]
    return not leaves <= written


def _sum_placeholder(uop):
    dtype = dtypes.float32 if uop.dtype in _NARROW else uop.dtype
    return placeholder(uop.shape, dtype, uop.device)


def split(body, step):
    """Decides what a loop saves for its gradient, and what that computes.

    Saved are the carries, and the results of products and other kernels, as
    far as the gradient uses them; elementwise work is done again.

    Args:
        body: `Body`.
        step: Its `BackwardStep`.

    Returns:
        `Saves`.
    """
    roots = (*step.new_carries, *step.ys)
    forward = UOp.sink(*body.outputs).toposort(enter_calls=False)
    costly = _costly(roots, forward)
    device = body.outputs[0].device
    places = {u: placeholder(u.shape, u.dtype, device) for u in costly}
    roots = UOp.sink(*roots).substitute(
        {u: p.reshape(u.shape) for u, p in places.items()}, walk=True
    )
    used = roots.toposort(enter_calls=False)
    xs = [j for j, p in enumerate(body.xs) if p in used]
    carries = [p for p in body.carries if p in used]
    n = len(step.new_carries)
    backward = close(
        step.carries,
        (
            *step.xs,
            *[body.xs[j] for j in xs],
            *[places[u] for u in costly],
            *carries,
        ),
        roots.src[:n],
        roots.src[n:],
        device,
        _outside(body),
    )
    saved = dict.fromkeys([*costly, *carries])
    saved.update(dict.fromkeys(use.left for use in step.products))
    saved = list(saved)
    return Saves(
        dataclasses.replace(body, ys=(*body.ys, *saved)),
        backward,
        tuple(xs),
        len(costly) + len(carries),
        tuple(saved.index(use.left) for use in step.products),
    )


@dataclasses.dataclass(frozen=True)
class Saves:
    """How a loop and its gradient share the work.

    Attributes:
        forward: `Body` of the loop that yields, after its own `ys`, what it
            saves.
        backward: `Body` of the gradient. Its `xs` are the step's, then some
            of the loop's, and then what was saved.
        xs: Indices of those `xs` of the loop.
        count: How many of the saved values are `xs` of `backward`.
        lefts: Indices of the saved values that are left operands of the
            step's products.
    """

    forward: Body
    backward: Body
    xs: tuple
    count: int
    lefts: tuple


def _costly(roots, forward):
    """Finds what of the `forward` graph is better saved than done again."""
    found, visited, stack = {}, set(), list(roots)
    while stack:
        uop = stack.pop()
        if uop in visited:
            continue
        visited.add(uop)
        if uop in forward and _is_costly(uop):
            found[uop] = None
        else:
            stack += uop.src[uop.op in (Ops.CALL, Ops.FUNCTION) :]
    return list(found)


def _is_costly(uop):
    if uop.op is Ops.AFTER:
        return uop.src[1].op is Ops.CALL
    if uop.op is Ops.GETTUPLE:
        return any(u.op is Ops.REDUCE for u in uop.src[0].src[0].toposort())
    return uop.op is Ops.REDUCE
