"""Compares backends model by model: table, JSON and chart.

Every (backend, model) runs in a process of its own, with the same weights and
batches; the losses of the first ten steps must agree. A process that takes
longer than its limit is stopped: what it found by then is in the table, and
what it did not is reported as such.

Run: bash shell/bench.sh [--models mlp cnn ...] [--backends tinygrad torch ...]
With --busy-core, another process keeps one core busy meanwhile.
With --write, the table and the chart go into README.
"""

import argparse
import contextlib
import datetime
import json
import os
import pathlib
import platform
import signal
import statistics
import subprocess
import sys
import tempfile

from integration_tests import environments
from integration_tests import readme_section

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODELS = ["mlp", "cnn", "resnet", "lstm", "gru", "bilstm", "transformer"]
KERAS_REQUIREMENTS = [
    "numpy",
    "absl-py",
    "rich",
    "namex",
    "h5py",
    "optree",
    "ml-dtypes",
    "packaging",
]
# What each backend's environment holds; the module to import first, where it is
# stock Keras that the backend is added to. Such a backend runs when asked for.
BACKENDS = {
    "tinygrad": {"requirements": ["tinygrad==0.14.0"]},
    "torch": {"requirements": ["torch==2.13.0"]},
    "jax": {"requirements": ["jax"]},
    "plugin": {
        "requirements": [
            "keras==3.15.1",
            "tinygrad==0.13.0",
            "keras-tinygrad==0.1.0",
        ],
        "stock": "keras_tinygrad",
        "keras_backend": "tinygrad",
        "epochs": 3,
    },
}
EPOCHS = 7
# Keras is found where the environment has it, and only then this repository.
START_STOCK = (
    "import sys, {0}, keras; sys.path.append({1!r}); "
    "from integration_tests.benchmarks import worker; worker.main()"
)
# Keeps a core busy until its parent has ended.
BUSY = "import os, sys\nwhile os.getppid() == int(sys.argv[1]): pass"
FIGURES = [
    ("train_ms", "train step (ms)"),
    ("evaluate_ms", "evaluate step (ms)"),
    ("predict_ms", "predict step (ms)"),
    ("first_step_s", "first step, cold (s)"),
    ("warm_first_step_s", "first step, warm (s)"),
    ("eager_softmax_ms", "eager softmax (ms)"),
    ("peak_mb", "peak memory (MB)"),
]
LOSS_TOLERANCE = 1e-4
# README's table has a column for each of these.
README_FIGURES = {
    "train_ms": "train, ms",
    "evaluate_ms": "evaluate, ms",
    "predict_ms": "predict, ms",
    "first_step_s": "first step, s",
    "warm_first_step_s": "in a second process, s",
    "peak_mb": "peak memory, MB",
}
README_COMMAND = "bash shell/bench.sh --write"
CHART = pathlib.Path(__file__).with_name("train_step.png")


def _environment(backend, folder):
    """Makes a virtual environment with the backend; returns its Python."""
    python = environments.create(folder / backend)
    requirements = BACKENDS[backend]["requirements"] + KERAS_REQUIREMENTS
    if environments.lacks_compiler():
        requirements.append("ziglang")
    environments.install(python, *requirements)
    return python


def _measure(backend, model, python, cache, limit, epochs=None):
    """Runs the worker; returns the figures that it found within the limit.

    Where not all were found, `"error"` says why.
    """
    traits = BACKENDS[backend]
    environ = {
        **os.environ,
        "KERAS_HOME": cache,
        "XDG_CACHE_HOME": cache,
        "KERAS_BACKEND": traits.get("keras_backend", backend),
    }
    if "stock" in traits:
        environ.pop("PYTHONPATH", None)
        start = ["-c", START_STOCK.format(traits["stock"], str(ROOT))]
    else:
        environ["PYTHONPATH"] = str(ROOT)
        start = ["-m", "integration_tests.benchmarks.worker"]
    if epochs is None:
        epochs = traits.get("epochs", EPOCHS)
    command = [str(python), *start, model, "--epochs", str(epochs)]
    error = None
    try:
        result = subprocess.run(
            command,
            cwd=cache,
            env=environ,
            capture_output=True,
            timeout=limit,
        )
        output = result.stdout
        if result.returncode:
            last = result.stderr.decode().strip().splitlines()[-1:]
            error = "".join(last) or f"ended with {result.returncode}"
    except subprocess.TimeoutExpired as stopped:
        output = stopped.stdout or b""
        error = f"stopped after {limit} s"
    figures = {}
    for line in output.decode().splitlines():
        # A line that was cut off has no figure.
        if line.startswith("{") and line.endswith("}"):
            figures.update(json.loads(line))
    if error is not None:
        figures["error"] = error
        if "first_step_s" not in figures and error.startswith("stopped"):
            figures["first_step_over_s"] = limit
    return figures


def _run(models, backends, pythons, limit):
    """Measures everything; returns `{model: {backend: figures}}`."""
    results = {}
    for model in models:
        results[model] = {}
        for backend in backends:
            subject = backend, model, pythons[backend]
            with tempfile.TemporaryDirectory() as cache:
                figures = _measure(*subject, cache, limit)
                if "first_step_s" in figures:
                    again = _measure(*subject, cache, limit, epochs=0)
                    if "first_step_s" in again:
                        figures["warm_first_step_s"] = again["first_step_s"]
                    elif "error" not in figures:
                        figures["error"] = f"second process: {again['error']}"
            results[model][backend] = figures
            print(f"{model:12} {backend:9}", _summary(figures), flush=True)
    return results


@contextlib.contextmanager
def _busy_core():
    """Has another process compute without end."""
    process = subprocess.Popen(
        [sys.executable, "-c", BUSY, str(os.getpid())],
        stdin=subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _summary(figures):
    found = [f"{k} {figures[k]:.2f}" for k, _ in FIGURES if k in figures]
    if "error" in figures:
        found.append(f"({figures['error']})")
    return "  ".join(found)


def _disagreements(results):
    """Lists the models whose first losses differ between backends."""
    found = []
    for model, by_backend in results.items():
        losses = {
            b: f["losses"] for b, f in by_backend.items() if "losses" in f
        }
        names = sorted(losses)
        for name in names[1:]:
            worst = max(
                abs(a - b) for a, b in zip(losses[names[0]], losses[name])
            )
            if not worst <= LOSS_TOLERANCE:
                found.append(f"{model}: {names[0]} and {name} differ {worst}")
    return found


def _table(results, reference, busy):
    """Renders a Markdown table with ratios to the reference backend."""
    lines = ["One core was kept busy by another process."] if busy else []
    backends = list(next(iter(results.values())))
    for key, title in FIGURES:
        lines += [
            "",
            f"**{title}** (ratio to {reference})",
            "",
            "| model | " + " | ".join(backends) + " |",
            "|---|" + "---:|" * len(backends),
        ]
        for model, by_backend in results.items():
            base = by_backend.get(reference, {}).get(key)
            cells = []
            for backend in backends:
                cell = _cell(by_backend[backend], key, "{:.2f}".format)
                if base and key in by_backend[backend]:
                    cell += f" ({by_backend[backend][key] / base:.2f}x)"
                cells.append(cell)
            lines.append(f"| {model} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, *_incomplete(results)]).strip() + "\n"


def readme_table(report):
    """Returns README's table, in Markdown.

    Args:
        report: What `_report` returns.
    """
    results = report["results"]
    backends = list(next(iter(results.values())))
    order = " / ".join(backends)
    chart = CHART.relative_to(ROOT).as_posix()
    lines = [
        f"Each cell is {order}. {report['date']}, {report['machine']}, "
        f"Python {report['python']}, {report['versions']}.",
        "",
        "| model | " + " | ".join(README_FIGURES.values()) + " |",
        "|---|" + "--:|" * len(README_FIGURES),
    ]
    for model, by_backend in results.items():
        cells = [
            " / ".join(_cell(by_backend[b], key, _rounded) for b in backends)
            for key in README_FIGURES
        ]
        lines.append(f"| {model} | " + " | ".join(cells) + " |")
    lines += ["", _eager_line(results, backends), *_incomplete(results)]
    return "\n".join([*lines, "", f"![Training steps by backend]({chart})"])


def _eager_line(results, backends):
    key = "eager_softmax_ms"
    found = {
        backend: [
            r[backend][key] for r in results.values() if key in r[backend]
        ]
        for backend in backends
    }
    cells = [
        _rounded(statistics.median(found[b])) if found[b] else "-"
        for b in backends
    ]
    return (
        "A softmax of 8x16 numbers, eagerly, and its result as a NumPy array: "
        f"{' / '.join(cells)} ms."
    )


def _incomplete(results):
    """Lists what was not measured, and why."""
    found = [
        f"- {model}, {backend}: {figures['error']}."
        for model, by_backend in results.items()
        for backend, figures in by_backend.items()
        if "error" in figures
    ]
    return ["", "Not measured in full:", "", *found] if found else []


def _cell(figures, key, form):
    if key in figures:
        return form(figures[key])
    if key == "first_step_s" and "first_step_over_s" in figures:
        return f"over {figures['first_step_over_s']}"
    return "-"


def _rounded(value):
    return f"{value:.0f}" if value >= 100 else f"{value:.2g}"


def _report(results, pythons, busy):
    """Returns the results, and what they were measured on."""
    return {
        "date": datetime.date.today().isoformat(),
        "machine": f"{_processor()}, {os.cpu_count()} cores",
        "python": platform.python_version(),
        "versions": ", ".join(_version(b, p) for b, p in pythons.items()),
        "busy_core": busy,
        "results": results,
    }


def _processor():
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = (x.split(":")[1].strip() for x in lines if x[:10] == "model name")
    return next(names, platform.machine())


def _version(backend, python):
    distribution = "keras-tinygrad" if backend == "plugin" else backend
    ask = "import importlib.metadata as m, sys; print(m.version(sys.argv[1]))"
    version = subprocess.run(
        [python, "-c", ask, distribution],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    return f"{distribution} {version}"


def _chart(results, path):
    """Draws the training step of each model and backend on a log axis."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    models = list(results)
    backends = list(next(iter(results.values())))
    figure, axes = plt.subplots(figsize=(9, 4))
    width = 0.8 / len(backends)
    for i, backend in enumerate(backends):
        values = [results[m][backend].get("train_ms", 0) for m in models]
        axes.bar(
            [x + i * width for x in range(len(models))],
            values,
            width,
            label=backend,
        )
    axes.set_xticks([x + 0.4 - width / 2 for x in range(len(models))], models)
    axes.set_yscale("log")
    axes.set_ylabel("training step (ms)")
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=MODELS, choices=MODELS)
    parser.add_argument(
        "--backends",
        nargs="+",
        default=[b for b in BACKENDS if "stock" not in BACKENDS[b]],
        choices=list(BACKENDS),
    )
    parser.add_argument("--reference", default="torch")
    parser.add_argument(
        "--limit",
        type=int,
        default=300,
        metavar="SECONDS",
        help="stop a model's process after that long (300)",
    )
    parser.add_argument(
        "--busy-core",
        action="store_true",
        help="keep one core busy with another process meanwhile",
    )
    parser.add_argument(
        "--environments",
        type=pathlib.Path,
        default=ROOT / ".venv-bench",
        help="folder of one virtual environment a backend",
    )
    parser.add_argument(
        "--output", type=pathlib.Path, default=ROOT / "build" / "bench"
    )
    parser.add_argument(
        "--write", action="store_true", help="write README's table and chart"
    )
    arguments = parser.parse_args()
    # The process that measures ends with this one.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    busy = arguments.busy_core
    if busy and arguments.write:
        parser.error("README's table is of idle cores: --write or --busy-core")
    pythons = {
        b: _environment(b, arguments.environments) for b in arguments.backends
    }
    with _busy_core() if busy else contextlib.nullcontext():
        results = _run(
            arguments.models, arguments.backends, pythons, arguments.limit
        )
    table = _table(results, arguments.reference, busy)
    print("\n" + table)
    arguments.output.mkdir(parents=True, exist_ok=True)
    (arguments.output / "bench.md").write_text(table)
    report = _report(results, pythons, busy)
    (arguments.output / "bench.json").write_text(json.dumps(report, indent=1))
    _chart(results, arguments.output / "bench.png")
    print(f"Written to {arguments.output}")
    if arguments.write:
        readme_section.write(README_COMMAND, readme_table(report))
        _chart(results, CHART)
    found = [f"losses disagree: {x}" for x in _disagreements(results)]
    # What somebody else's backend cannot do is a result, no failure.
    found += [
        f"{model}, {backend}: {figures['error']}"
        for model, by_backend in results.items()
        for backend, figures in by_backend.items()
        if "error" in figures and "stock" not in BACKENDS[backend]
    ]
    for line in found:
        print(f"FAILED: {line}", file=sys.stderr)
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
