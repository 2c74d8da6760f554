"""The rows of the table of ops that take functions, or look at tensors."""

import numpy as np

from integration_tests.ops import function_ops as fns


def add_function_ops(add):
    """Adds the rows.

    Args:
        add: Function of an op's name, its `draw` and the fields of `Op`.
    """
    # Special values would decide how often a loop runs, or what is NaN first.
    loop = dict(dtypes=("float32",), edges=False)
    add("map", _draw_map, complex=True, **loop)
    add("vectorized_map", _draw_vectorized_map, complex=True, **loop)
    add("scan", _draw_scan, complex=True, **loop)
    add("associative_scan", _draw_associative_scan, **loop)
    add("fori_loop", _draw_fori_loop, complex=True, **loop)
    # A step that has it runs uncompiled: the host decides how often.
    add("while_loop", _draw_while_loop, compiled=False, **loop)
    add("cond", _draw_cond, complex=True, **loop)
    add("switch", _draw_switch, complex=True, **loop)
    # They make functions of values.
    add("custom_gradient", _draw_custom_gradient, spec=False, **loop)
    add("vectorize", _draw_vectorize, spec=False, complex=True, **loop)
    add("linalg.jvp", _draw_jvp, rtol=1e-4, **loop)
    add(
        "stop_gradient",
        lambda d: ((d.array(d.shape()),), {}),
        dtypes=("float32", "int32"),
        complex=True,
        gradient=False,
    )

    # What they return is no tensor.
    known = dict(
        dtypes=("float32", "bfloat16", "int32", "bool"),
        complex=True,
        gradient=False,
        spec=False,
        compiled=False,
    )
    for name in ("dtype", "ndim", "shape", "size"):
        add(name, lambda d: ((d.array(d.shape()),), {}), **known)
    add("is_tensor", _draw_thing, **known)
    add("convert_to_numpy", lambda d: ((d.array(d.shape()),), {}), **known)


def _draw_map(d):
    shape = d.shape(1, empty=False)
    fn = d.choice(fns.sines, fns.pair, fns.total_of_two)
    if fn is fns.total_of_two:
        return (fn, (d.array(shape), d.array(shape))), {}
    return (fn, d.array(shape)), {}


def _draw_vectorized_map(d):
    # Not of several results, which the numpy backend stacks.
    xs = d.array(d.shape(1, empty=False))
    return (d.choice(fns.sines, fns.halved_and_one), xs), {}


def _draw_scan(d):
    count, shape = d.integer(1, 5), d.shape(0, 2, empty=False)
    settings = {"reverse": bool(d.integer(0, 1))}
    init, xs = d.array(shape), d.array((count, *shape))
    fn = d.choice(fns.averaging_step, fns.step_without_inputs, fns.step_of_two)
    if fn is fns.step_without_inputs:
        return (fn, init), {"length": count, **settings}
    if fn is fns.step_of_two:
        return (fn, (init, d.array(shape)), (xs, d.array(xs.shape))), settings
    return (fn, init, xs), settings


def _draw_associative_scan(d):
    shape = d.shape(1, empty=False)
    settings = {
        "reverse": bool(d.integer(0, 1)),
        "axis": d.axis(len(shape), none=False),
    }
    fn = d.choice(fns.add, fns.larger, fns.composed)
    if fn is fns.composed:
        return (fn, (d.array(shape, -1.5, 1.5), d.array(shape))), settings
    return (fn, d.array(shape)), settings


def _draw_fori_loop(d):
    lower = d.integer(-2, 2)
    x = d.array(d.shape(empty=False))
    return (lower, lower + d.integer(0, 4), fns.add_counter, x), {}


def _draw_while_loop(d):
    most = {"maximum_iterations": d.choice(None, d.integer(0, 6))}
    x = d.array(d.shape(empty=False), 1.0, 3.0)
    if d.integer(0, 1):
        start = np.asarray(d.integer(0, 5), "int32")
        return (fns.count_is_low, fns.counted, (start, x)), most
    x = np.asarray(x / max(x.size, 1))
    return (fns.sum_is_low, fns.doubled, (x,)), most


def _draw_cond(d):
    shape = d.shape(empty=False)
    pred = d.array((), dtype="bool")
    return (
        pred,
        fns.product,
        fns.difference,
        d.array(shape),
        d.array(shape),
    ), {}


def _draw_switch(d):
    shape = d.shape(empty=False)
    # Beyond the branches, it is the last or the first.
    index = np.asarray(d.integer(-1, 3), "int32")
    branches = [fns.product, fns.difference, fns.add]
    return (index, branches, d.array(shape), d.array(shape)), {}


def _draw_custom_gradient(d):
    return (fns.exponential, d.array(d.shape())), {}


def _draw_vectorize(d):
    shape = d.shape(1, empty=False)
    a, b = d.array(shape), d.array(shape)
    return d.choice(
        ((fns.product, a, b), {}),
        ((fns.halved_and_one, a), {}),
        ((fns.weighted_sum, a), {"signature": "(n)->()"}),
        ((fns.inner_product, a, b), {"signature": "(n),(n)->()"}),
    )


def _draw_jvp(d):
    shape = d.shape(empty=False)
    pairs = tuple(tuple(d.array(shape) for _ in "xy") for _ in "pt")
    fn = d.choice(fns.product, fns.two_results, fns.two_results_and_more)
    return (fn, *pairs), {"has_aux": fn is fns.two_results_and_more}


def _draw_thing(d):
    return (d.choice(d.array(d.shape()), "text", 1.5, [1.0, 2.0], None),), {}
