#!/bin/sh
# Makes keras/ the pinned Keras release with the patch series applied.
set -e
cd "$(dirname "$0")/.."
python="${PYTHON:-$(command -v python || command -v python3)}"
unset PYTHON  # tinygrad takes it for the name of a device.
exec "$python" -m keras_tinygrad_patches vendor "$@"
