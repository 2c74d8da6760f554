"""Times kernels under this backend's rules, under BEAM=2 and in torch.

Run: python -m integration_tests.benchmarks.kernels [PATTERN]

Each case is run in turn under the rules, under tinygrad's search and, where
it is installed, in torch on the same threads; the least of the repeats
counts. A kernel that takes over 1.5 times the search's time is marked.
"""

import argparse
import math
import re
import sys
import time

import numpy as np
from tinygrad import Context
from tinygrad import Device

from keras.src.backend.tinygrad import engine
from keras.src.backend.tinygrad.engine.transfer import from_numpy

try:
    import torch
except ImportError:
    torch = None

LIMIT = 1.5

# Name: shapes of the inputs, tinygrad's form, torch's form.
CASES = {
    "add": ([(2048, 512)] * 2, lambda a, b: a + b, "a + b"),
    "add_bias": ([(2048, 512), (512,)], lambda a, b: a + b, "a + b"),
    "relu": ([(2048, 512)], lambda a: a.relu(), "torch.relu(a)"),
    "exp": ([(2048, 512)], lambda a: a.exp(), "torch.exp(a)"),
    "tanh": ([(2048, 512)], lambda a: a.tanh(), "torch.tanh(a)"),
    "gelu": (
        [(2048, 512)],
        lambda a: a.gelu(),
        "torch.nn.functional.gelu(a, approximate='tanh')",
    ),
    "small": ([(8, 16)] * 2, lambda a, b: a * b + a, "a * b + a"),
    "sum": ([(2048, 512)], lambda a: a.sum(), "a.sum()"),
    "row_sum": ([(2048, 512)], lambda a: a.sum(1), "a.sum(1)"),
    "row_max": ([(2048, 512)], lambda a: a.max(1), "a.amax(1)"),
    "column_sum": ([(2048, 512)], lambda a: a.sum(0), "a.sum(0)"),
    "column_max": ([(2048, 512)], lambda a: a.max(0), "a.amax(0)"),
    "middle_sum": ([(32, 169, 64)], lambda a: a.sum(1), "a.sum(1)"),
    "outer_sum": ([(32, 169, 64)], lambda a: a.sum((0, 1)), "a.sum((0, 1))"),
    "mean_square": (
        [(2048, 512)],
        lambda a: (a * a).mean(1),
        "(a * a).mean(1)",
    ),
    "softmax": ([(2048, 512)], lambda a: a.softmax(), "a.softmax(-1)"),
    "log_softmax": (
        [(2048, 512)],
        lambda a: a.log_softmax(),
        "a.log_softmax(-1)",
    ),
    "layer_norm": (
        [(2048, 512)],
        lambda a: a.layernorm(),
        "torch.nn.functional.layer_norm(a, (512,))",
    ),
    "transpose": (
        [(1024, 1024)],
        lambda a: a.transpose().contiguous(),
        "a.T.contiguous()",
    ),
    "to_channels_last": (
        [(32, 16, 32, 32)],
        lambda a: a.permute(0, 2, 3, 1).contiguous(),
        "a.permute(0, 2, 3, 1).contiguous()",
    ),
    "pad": (
        [(32, 30, 30, 16)],
        lambda a: a.pad(((0, 0), (1, 1), (1, 1), (0, 0))).contiguous(),
        "torch.nn.functional.pad(a, (0, 0, 1, 1, 1, 1))",
    ),
    "flip": (
        [(2048, 512)],
        lambda a: a.flip(1).contiguous(),
        "a.flip(1)",
    ),
    "concatenate": (
        [(2048, 256)] * 2,
        lambda a, b: a.cat(b, dim=1).contiguous(),
        "torch.cat((a, b), 1)",
    ),
    "max_pool": (
        [(32, 16, 28, 28)],
        lambda a: a.max_pool2d((2, 2)),
        "torch.nn.functional.max_pool2d(a, 2)",
    ),
}


def step_of(name, beam):
    """Compiles a case's kernels; returns a function that runs them once."""
    shapes, build, _ = CASES[name]
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=s).astype("float32") for s in shapes]
    inputs = [from_numpy(a, Device.DEFAULT) for a in arrays]
    with Context(BEAM=beam):
        step = engine.compile_step(lambda _: (build(*inputs), []))
        step(np.zeros(1, "float32"))
    (plan,) = step.plans
    return lambda: sum(seconds for _, seconds, _ in plan.profile(1))


def torch_step(name):
    """Returns a function that times a case in torch once."""
    shapes, _, form = CASES[name]
    rng = np.random.default_rng(0)
    values = [
        torch.tensor(rng.normal(size=s), dtype=torch.float32) for s in shapes
    ]
    # On one thread, as the launches are that are timed here.
    torch.set_num_threads(1)
    scope = dict(zip("ab", values), torch=torch)
    code = compile(form, name, "eval")

    def run():
        start = time.perf_counter()
        eval(code, scope)
        return time.perf_counter() - start

    return run


def measure(name, repeats):
    """Returns the seconds of a case: rules, search, and torch or `None`."""
    runs = [step_of(name, 0), step_of(name, 2)]
    if torch is not None:
        runs.append(torch_step(name))
    least = [math.inf] * len(runs)
    for _ in range(repeats):
        for i, run in enumerate(runs):
            least[i] = min(least[i], run())
    return (*least, None)[:3]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pattern", nargs="?", default="")
    parser.add_argument("--repeats", type=int, default=50)
    arguments = parser.parse_args()
    print(
        f"{'kernel':<18} {'rules':>8} {'BEAM=2':>8} {'ratio':>6} {'torch':>8}"
    )
    over = []
    for name in CASES:
        if not re.search(arguments.pattern, name):
            continue
        rules, search, other = measure(name, arguments.repeats)
        mark = ""
        if rules > LIMIT * search:
            over.append(name)
            mark = f"  over {LIMIT}"
        other = "-" if other is None else f"{other * 1e3:.3f}"
        print(
            f"{name:<18} {rules * 1e3:>8.3f} {search * 1e3:>8.3f} "
            f"{rules / search:>6.2f} {other:>8}{mark}",
            flush=True,
        )
    print(f"milliseconds; over {LIMIT} times the search: {over or 'none'}")
    return int(bool(over))


if __name__ == "__main__":
    sys.exit(main())
