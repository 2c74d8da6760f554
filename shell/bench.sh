#!/usr/bin/env bash
# Benchmarks the backends side by side; arguments go to the benchmark.
set -euo pipefail
cd "$(dirname "$0")/.."
. shell/_python.sh
"$python" -m venv --upgrade-deps .venv-bench/driver >/dev/null
.venv-bench/driver/bin/python -m pip install --quiet matplotlib
.venv-bench/driver/bin/python -m keras_tinygrad_patches vendor
exec .venv-bench/driver/bin/python -m integration_tests.benchmarks "$@"
