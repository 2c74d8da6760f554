# Sourced by the commands here: sets `python` to the interpreter to run. That
# is $PYTHON, or the active environment's, or that of .venv, or the system's.
if [ -n "${PYTHON:-}" ]; then
    python="$PYTHON"
elif [ -z "${VIRTUAL_ENV:-}" ] && [ -x .venv/bin/python ]; then
    python=.venv/bin/python
else
    python="$(command -v python3 || command -v python)"
fi
unset PYTHON  # tinygrad takes it for the name of a device.
