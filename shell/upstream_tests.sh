#!/usr/bin/env bash
# Runs Keras' own test suite, unchanged, on the tinygrad backend.
#   shell/upstream_tests.sh [--with-test-patches] [--keras-git DIR] [PYTEST ARGS]
set -Eeuo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec "${PYTHON:-python3}" -m integration_tests.upstream.run "$@"
