"""The fork of Keras: its upstream pin, its patches, and the tool for them.

`python -m keras_tinygrad_patches --help` lists what the tool does. Only the
standard library, git and pip are used, so that it works before anything is
installed, and where `keras` itself does not import.
"""
