#!/bin/sh
# Replays the patch series onto another Keras release:
#   shell/rebase.sh VERSION | --keras-git DIR TAG  [--check]
#   shell/rebase.sh --continue | --abort
set -e
cd "$(dirname "$0")/.."
. shell/_python.sh
exec "$python" -m keras_tinygrad_patches rebase "$@"
