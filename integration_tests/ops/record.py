"""Records what the torch and jax backends answer at edges and to bad input.

Run: python -m integration_tests.ops.record [--python PYTHON]

It needs both packages (`pip install torch==2.13.0 jax==0.10.2`); the tests
need `record.json` alone. Run it after a change of `edge_table.py`,
`bad_arguments.py` or the table of ops; with `--all`, after one of the release
of Keras.
"""

import argparse
import builtins
import json
import sys
import zlib
from pathlib import Path

import numpy as np

from integration_tests.ops import bad_arguments
from integration_tests.ops import edge_table
from integration_tests.ops.reference import BackendError
from integration_tests.ops.reference import Reference

RECORD = Path(__file__).with_name("record.json")
BACKENDS = ("torch", "jax")


def digest(args, kwargs):
    """Returns a number that changes with the arguments."""
    parts = []

    def add(value):
        if isinstance(value, np.ndarray):
            parts.append(f"{value.dtype}{value.shape}")
            parts.append(value.tobytes().hex())
        elif isinstance(value, (tuple, list)):
            parts.append("(")
            for v in value:
                add(v)
            parts.append(")")
        elif callable(value):
            parts.append(value.__qualname__)
        else:
            parts.append(repr(value))

    add(args)
    add(sorted(kwargs.items()))
    return zlib.crc32(" ".join(parts).encode())


def read():
    """Returns the record, a dict."""
    return json.loads(RECORD.read_text())


def bad_cases():
    """Returns the bad arguments of each op: `{name: {label: arguments}}`."""
    cases = {}
    for label, name, args, kwargs in bad_arguments.cases():
        cases.setdefault(name, {})[label] = (args, kwargs)
    return cases


def digest_of_bad(cases):
    """Returns a number that changes with the labels of one op's cases."""
    return zlib.crc32(" ".join(cases).encode())


def _edges(references, known):
    for case, name, args, kwargs in edge_table.cases():
        number = digest(args, kwargs)
        if known.get(case, [None])[0] == number:
            yield case, known[case]
            continue
        answers = [r.gradients(name, args, kwargs) for r in references]
        yield case, [number, *map(_plain, answers)]


def _plain(gradients):
    if isinstance(gradients, BackendError):
        return str(gradients).splitlines()[0][:200]
    return [[float(f"{v:.8g}") for v in g.flat] for g in gradients]


def _errors(references, known):
    torch, jax = references
    for name, cases in bad_cases().items():
        number = digest_of_bad(cases)
        if known.get(name, [None])[0] == number:
            yield name, known[name]
            continue
        raised = {}
        for label, call in cases.items():
            error = torch.error(name, *call)
            if error is not None and label == bad_arguments.GOOD:
                # The torch backend cannot do it at all.
                break
            if error is not None:
                others = jax.error(name, *call)
                raised[label] = [_builtin(error), others and _builtin(others)]
        yield name, [number, raised]


def _builtin(error):
    return next(c for c in error.classes if hasattr(builtins, c))


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--python",
        default=sys.executable,
        help="interpreter with torch and jax",
    )
    parser.add_argument(
        "--all", action="store_true", help="ask again what is known"
    )
    arguments = parser.parse_args(argv)
    references = [Reference(name, arguments.python) for name in BACKENDS]
    versions = {
        name: reference.version()
        for name, reference in zip(BACKENDS, references)
    }
    record = read() if RECORD.exists() else {}
    if arguments.all or record.get("versions") != versions:
        record = {}
    record = {
        "versions": versions,
        "edges": dict(_edges(references, record.get("edges", {}))),
        "errors": dict(_errors(references, record.get("errors", {}))),
    }
    for reference in references:
        reference.close()
    RECORD.write_text(_lines(record))


def _lines(record):
    """JSON with one case a line."""
    parts = []
    for name, group in record.items():
        lines = ",\n".join(
            f"  {json.dumps(case)}: {json.dumps(answer)}"
            for case, answer in group.items()
        )
        parts.append(f" {json.dumps(name)}: {{\n{lines}\n }}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


if __name__ == "__main__":
    main()
