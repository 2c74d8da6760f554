"""Builds the wheel, installs it in a clean environment and trains there."""

import sys
import time

from integration_tests import environments

DEMO = environments.REPOSITORY / "build" / "demo"
NEEDED_BY_THE_SCRIPT = ("scikit-learn", "matplotlib")


def main():
    started = time.monotonic()

    def say(step):
        elapsed = time.monotonic() - started
        print(f"\n== [{elapsed:.0f} s] {step}", flush=True)

    if environments.lacks_compiler():
        say("no clang on PATH: the wheel's extra [cpu] brings a compiler")
    say("making a clean environment")
    python = environments.create(DEMO / "environment", fresh=True)
    say("putting the Keras tree together")
    environments.vendor(python)
    say("building the wheel")
    wheel = environments.build_wheel(python)
    say(f"installing {wheel.name}")
    environments.install(
        python, environments.wheel_requirement(wheel), *NEEDED_BY_THE_SCRIPT
    )
    say("training, outside the repository, with KERAS_BACKEND=tinygrad")
    script = environments.REPOSITORY / "integration_tests/demo/digits.py"
    with environments.elsewhere() as folder:
        environments.call(
            [python, script, "--output", DEMO],
            cwd=folder,
            env=environments.outside(
                python, KERAS_BACKEND="tinygrad", KERAS_HOME=folder
            ),
        )
    say("done")


if __name__ == "__main__":
    sys.exit(main())
