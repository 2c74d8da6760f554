"""Skips a test that needs an optional package which is not installed.

Upstream's tests compare with other frameworks and import them as they go,
because upstream's continuous integration installs them all.
"""

import importlib.util
import re

import pytest

OPTIONAL_PACKAGES = (
    "ai_edge_litert",
    "grain",
    "jax",
    "matplotlib",
    "onnx",
    "onnxruntime",
    "openvino",
    "orbax",
    "pandas",
    "PIL",
    "pydot",
    "requests",
    "sklearn",
    "tensorboard",
    "tensorflow",
    "tf2onnx",
    "torch",
)

# What `keras.src.utils.module_utils.LazyModule` says.
LAZY_MODULE_MESSAGE = re.compile(r"This requires the (\S+) module")
PYTHON_MESSAGE = re.compile(r"No module named '([^']+)'")


def absent_package(error):
    """Returns the optional package whose absence `error` is about, or `None`.

    An import inside the tinygrad backend is never excused: the backend must
    not need another framework.
    """
    # pytest wraps what a module raises on import.
    if isinstance(error, pytest.Collector.CollectError):
        error = error.__cause__
    while isinstance(error, ImportError):
        match = LAZY_MODULE_MESSAGE.search(str(error)) or PYTHON_MESSAGE.search(
            str(error)
        )
        package = match.group(1).split(".")[0] if match else None
        if (
            package in OPTIONAL_PACKAGES
            and importlib.util.find_spec(package) is None
            and not _raised_in_our_backend(error)
        ):
            return package
        error = error.__cause__ or error.__context__
    return None


def _raised_in_our_backend(error):
    step = error.__traceback__
    while step is not None:
        path = step.tb_frame.f_code.co_filename.replace("\\", "/")
        if "/keras/src/backend/tinygrad/" in path:
            return True
        step = step.tb_next
    return False


def _excuse(report, error, path):
    package = absent_package(error)
    if package is not None:
        report.outcome = "skipped"
        report.longrepr = (
            str(path),
            0,
            f"Skipped: needs {package}, which is not installed",
        )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.failed and call.excinfo is not None:
        _excuse(report, call.excinfo.value, item.path)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    report = yield
    if report.failed and report.call.excinfo is not None:
        _excuse(report, report.call.excinfo.value, collector.path)
    return report
