#!/bin/sh
# Replays the patch series onto another Keras release:
#   shell/rebase.sh VERSION | --keras-git DIR TAG  [--check]
#   shell/rebase.sh --continue | --abort
set -e
cd "$(dirname "$0")/.."
python="${PYTHON:-$(command -v python || command -v python3)}"
unset PYTHON  # tinygrad takes it for the name of a device.
exec "$python" -m keras_tinygrad_patches rebase "$@"
