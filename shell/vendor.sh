#!/bin/sh
# Makes keras/ the pinned Keras release with the patch series applied.
set -e
cd "$(dirname "$0")/.."
exec "${PYTHON:-$(command -v python || command -v python3)}" \
    -m keras_tinygrad_patches vendor "$@"
