#!/bin/sh
# Makes keras/ the pinned Keras release with the patch series applied.
set -e
cd "$(dirname "$0")/.."
. shell/_python.sh
exec "$python" -m keras_tinygrad_patches vendor "$@"
