#!/bin/sh
# Checks the style of this project's own files. Needs ruff (requirements.txt).
set -e
cd "$(dirname "$0")/.."
. shell/_python.sh
"$python" -m ruff check .
"$python" -m ruff format --check .
