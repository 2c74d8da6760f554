#!/bin/sh
# Formats this project's own files. Needs ruff (requirements.txt).
set -e
cd "$(dirname "$0")/.."
. shell/_python.sh
"$python" -m ruff check --fix .
"$python" -m ruff format .
