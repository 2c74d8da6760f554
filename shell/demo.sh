#!/usr/bin/env bash
# Builds the wheel, installs it in a clean environment, and trains a small CNN
# and an MLP there on scikit-learn's digits, with KERAS_BACKEND=tinygrad.
set -Eeuo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec "${PYTHON:-python3}" -m integration_tests.demo.run
