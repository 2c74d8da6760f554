#!/usr/bin/env bash
# Sets up what the tests need, and runs lint, this repository's own tests, and
# a slice of Keras' own suite.
set -Eeuo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec "${PYTHON:-python3}" -m integration_tests.run
