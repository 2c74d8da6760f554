"""The fork of Keras: its upstream pin, its patches, and the tool for them.

`python -m keras_tinygrad_patches --help` lists what the tool does. Only the
standard library, git and pip are used, so that it works before anything is
installed, and where `keras` itself does not import.
"""

import sys

if sys.version_info < (3, 11):
    raise SystemExit(
        "Python 3.11 or newer is needed, and this is {}.{}. Name a newer one: "
        "PYTHON=python3.12 sh shell/vendor.sh".format(*sys.version_info[:2])
    )
