"""Walks a table of CPU launches in one foreign call.

A row of the table is the address of a kernel, the width of the row, and the
arguments, padded to the width. Between two launches there is no Python, and
the interpreter lock is free from the first to the last.
"""

import ctypes
import functools
import sys

from keras.src.backend.tinygrad.engine import program_cache
from keras.src.backend.tinygrad.engine.internals import ClangRenderer
from keras.src.backend.tinygrad.engine.internals import CPUProgram
from keras.src.backend.tinygrad.engine.internals import Device
from keras.src.backend.tinygrad.engine.internals import TinyELF

# A row is as wide as the first of these that holds its arguments.
WIDTHS = (6, 12, 24, 64, 256)
# What precedes the arguments: the kernel's address and the width.
HEADER = 2

_ROW = """    case {width}:
      ((FN(*)({types}))row[0])({values});
      break;
"""
_SOURCE = """typedef unsigned long long u64;
#define FN {abi}void
{abi}void keras_replay(u64 *row) {{
  while (row[0]) {{
    u64 width = row[1];
    switch (width) {{
{rows}    }}
    row += {header} + width;
  }}
}}
"""


def width_of(count):
    """Returns the width of a row with `count` arguments."""
    return next(width for width in WIDTHS if count <= width)


@functools.cache
def _walker():
    """The compiled walk, or `None` where no C compiler is at hand."""
    device = Device["CPU"]
    if not isinstance(device.renderer, ClangRenderer):
        return None
    abi = "__attribute__((ms_abi)) " if sys.platform == "win32" else ""
    rows = "".join(
        _ROW.format(
            width=width,
            types=", ".join(["u64"] * width),
            values=", ".join(f"row[{HEADER + i}]" for i in range(width)),
        )
        for width in WIDTHS
    )
    source = _SOURCE.format(abi=abi, rows=rows, header=HEADER)
    key = (program_cache.fingerprint("CPU") + source).encode()
    binary = program_cache.load("launcher", key)
    if binary is None:
        binary = device.renderer.compiler.compile(source)
        program_cache.store("launcher", key, binary)
    elf = TinyELF(binary, "keras_replay", device.renderer.target, ())
    program = CPUProgram(device, elf)
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(program.addr)
    return program, function


def walk(table, functions):
    """Runs the launches of a table.

    Args:
        table: ctypes array of `c_uint64`; the row after the last begins
            with zero.
        functions: List of `(ctypes function, position of its row, number of
            arguments)`, for where the table can't be walked in C.
    """
    walker = _walker()
    if walker is not None:
        walker[1](ctypes.addressof(table))
        return
    for function in functions:
        walk_row(table, *function)


def walk_row(table, function, position, count):
    """Runs one launch of a table; see `walk`."""
    first = position + HEADER
    function(*map(ctypes.c_uint64, table[first : first + count]))
