"""Compares backends model by model: table, JSON and chart.

Every (backend, model) runs in a process of its own, with the same weights and
batches; the losses of the first ten steps must agree.

Run: bash shell/bench.sh [--models mlp cnn ...] [--backends tinygrad torch ...]
With --write, the table and the chart go into README.
"""

import argparse
import datetime
import json
import os
import pathlib
import platform
import subprocess
import sys
import tempfile
import venv

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
# What each backend's environment holds, and whether it runs stock Keras.
BACKENDS = {
    "tinygrad": {"requirements": ["tinygrad==0.14.0"], "stock": False},
    "torch": {"requirements": ["torch==2.13.0"], "stock": False},
    "jax": {"requirements": ["jax"], "stock": False},
    "plugin": {
        "requirements": [
            "keras==3.15.1",
            "tinygrad==0.13.0",
            "keras-tinygrad==0.1.0",
        ],
        "stock": True,
    },
}
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
    python = folder / backend / "bin" / "python"
    if not python.exists():
        venv.create(folder / backend, with_pip=True)
        requirements = BACKENDS[backend]["requirements"] + KERAS_REQUIREMENTS
        subprocess.run(
            [python, "-m", "pip", "install", "--quiet", *requirements],
            check=True,
        )
    return python


def _measure(backend, model, python, cache, timeout):
    """Runs the worker; returns its figures, or `{"error": ...}`."""
    environ = {
        **os.environ,
        "KERAS_HOME": cache,
        "XDG_CACHE_HOME": cache,
        "PYTHONPATH": str(ROOT),
    }
    if BACKENDS[backend]["stock"]:
        # The plug-in hooks into the Keras of its own environment.
        environ["KERAS_BACKEND"] = "tinygrad"
        command = [
            "-c",
            "import sys; sys.path.remove(sys.argv[2]); import keras; "
            "sys.path.append(sys.argv[2]); "
            "from integration_tests.benchmarks import worker; "
            "import json; print(json.dumps(worker.measure(sys.argv[1], 3)))",
            model,
            str(ROOT),
        ]
    else:
        environ["KERAS_BACKEND"] = backend
        command = ["-m", "integration_tests.benchmarks.worker", model]
    try:
        result = subprocess.run(
            [str(python), *command],
            cwd=ROOT if not BACKENDS[backend]["stock"] else cache,
            env=environ,
            capture_output=True,
            text=True,
            timeout=timeout,
        )
    except subprocess.TimeoutExpired:
        return {"error": f"no result after {timeout} s"}
    if result.returncode:
        return {"error": result.stderr.strip().splitlines()[-1:]}
    return json.loads(result.stdout.strip().splitlines()[-1])


def _run(models, backends, pythons, timeout):
    """Measures everything; returns `{model: {backend: figures}}`."""
    results = {}
    for model in models:
        results[model] = {}
        for backend in backends:
            with tempfile.TemporaryDirectory() as cache:
                figures = _measure(
                    backend, model, pythons[backend], cache, timeout
                )
                if "error" not in figures:
                    again = _measure(
                        backend, model, pythons[backend], cache, timeout
                    )
                    figures["warm_first_step_s"] = again["first_step_s"]
            results[model][backend] = figures
            print(f"{model:12} {backend:9}", _summary(figures), flush=True)
    return results


def _summary(figures):
    if "error" in figures:
        return f"error: {figures['error']}"
    return "  ".join(f"{key} {figures[key]:.2f}" for key, _ in FIGURES)


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


def _table(results, reference):
    """Renders a Markdown table with ratios to the reference backend."""
    lines = []
    for key, title in FIGURES:
        backends = list(next(iter(results.values())))
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
                value = by_backend[backend].get(key)
                if value is None:
                    cells.append("-")
                elif base:
                    cells.append(f"{value:.2f} ({value / base:.2f}x)")
                else:
                    cells.append(f"{value:.2f}")
            lines.append(f"| {model} | " + " | ".join(cells) + " |")
    return "\n".join(lines).strip() + "\n"


def readme_table(report):
    """Returns README's table, in Markdown.

    Args:
        report: What `_report` returns.
    """
    results = report["results"]
    backends = list(next(iter(results.values())))
    order = " / ".join(backends)
    lines = [
        f"Each cell is {order}. {report['date']}, {report['machine']}, "
        f"Python {report['python']}, {report['versions']}.",
        "",
        "| model | " + " | ".join(README_FIGURES.values()) + " |",
        "|---|" + "--:|" * len(README_FIGURES),
    ]
    for model, by_backend in results.items():
        cells = [
            " / ".join(_rounded(by_backend[b].get(key)) for b in backends)
            for key in README_FIGURES
        ]
        lines.append(f"| {model} | " + " | ".join(cells) + " |")
    chart = CHART.relative_to(ROOT).as_posix()
    return "\n".join([*lines, "", f"![Training steps by backend]({chart})"])


def _rounded(value):
    if value is None:
        return "-"
    return f"{value:.0f}" if value >= 100 else f"{value:.2g}"


def _report(results, pythons):
    """Returns the results, and what they were measured on."""
    return {
        "date": datetime.date.today().isoformat(),
        "machine": f"{_processor()}, {os.cpu_count()} cores",
        "python": platform.python_version(),
        "versions": ", ".join(_version(b, p) for b, p in pythons.items()),
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
        default=["tinygrad", "torch", "jax"],
        choices=sorted(BACKENDS),
    )
    parser.add_argument("--reference", default="torch")
    parser.add_argument("--timeout", type=int, default=900)
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
    pythons = {
        b: _environment(b, arguments.environments) for b in arguments.backends
    }
    results = _run(
        arguments.models, arguments.backends, pythons, arguments.timeout
    )
    table = _table(results, arguments.reference)
    print("\n" + table)
    arguments.output.mkdir(parents=True, exist_ok=True)
    (arguments.output / "bench.md").write_text(table)
    report = _report(results, pythons)
    (arguments.output / "bench.json").write_text(json.dumps(report, indent=1))
    _chart(results, arguments.output / "bench.png")
    print(f"Written to {arguments.output}")
    if arguments.write:
        readme_section.write(README_COMMAND, readme_table(report))
        _chart(results, CHART)
    found = _disagreements(results)
    for line in found:
        print(f"LOSSES DISAGREE: {line}", file=sys.stderr)
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
