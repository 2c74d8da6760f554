"""Records what recurrent layers answer on the torch and jax backends.

Of each array its norm and its products with a few fixed directions are kept:
a difference anywhere in it shows in them. Where a backend fails, its error is.

Run: python -m integration_tests.rnn.record [--python PYTHON]

It needs both packages (`pip install torch==2.13.0 jax==0.10.2`); the tests
need `record.json` alone. Run it after a change of `agreement.py` and of the
release of Keras.
"""

import argparse
import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path

from integration_tests import environments

RECORD = Path(__file__).with_name("record.json")
BACKENDS = ("torch", "jax")


def read():
    """Returns the record, a dict."""
    return json.loads(RECORD.read_text())


def _ask(backend, python):
    """Runs all cases on a backend, in a process of its own."""
    result = subprocess.run(
        [python, "-m", "integration_tests.rnn.record", "--answer", backend],
        cwd=environments.REPOSITORY,
        env={**os.environ, "KERAS_BACKEND": backend},
        stdout=subprocess.PIPE,
        check=True,
    )
    return json.loads(result.stdout.splitlines()[-1])


def _answer(backend):
    from integration_tests.rnn import agreement

    def summaries(name):
        try:
            arrays = agreement.answers(name)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return [
            [float(f"{v:.8g}") for v in agreement.summary(array)]
            for array in arrays
        ]

    return {
        "version": importlib.metadata.version(backend),
        "cases": {name: summaries(name) for name in agreement.CASES},
    }


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--python",
        default=sys.executable,
        help="interpreter with torch and jax",
    )
    parser.add_argument("--answer", choices=BACKENDS, help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.answer:
        print(json.dumps(_answer(arguments.answer)))
        return
    found = {name: _ask(name, arguments.python) for name in BACKENDS}
    versions = {name: answer["version"] for name, answer in found.items()}
    lines = [
        f"  {json.dumps(case)}: {{\n"
        + ",\n".join(
            f"   {json.dumps(name)}: {json.dumps(answer['cases'][case])}"
            for name, answer in found.items()
        )
        + "\n  }"
        for case in found[BACKENDS[0]]["cases"]
    ]
    RECORD.write_text(
        f'{{\n "versions": {json.dumps(versions)},\n "cases": {{\n'
        + ",\n".join(lines)
        + "\n }\n}\n"
    )


if __name__ == "__main__":
    main()
