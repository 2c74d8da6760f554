#!/bin/sh
# Formats this project's own files. Needs ruff (requirements.txt).
set -e
cd "$(dirname "$0")/.."
python="${PYTHON:-$(command -v python || command -v python3)}"
"$python" -m ruff check --fix .
"$python" -m ruff format .
