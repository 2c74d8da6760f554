"""Finds the BLAS that NumPy brings, and its entry points.

NumPy's wheels carry OpenBLAS, conda and the distributions link OpenBLAS,
MKL, BLIS or the reference BLAS, macOS has Accelerate. They differ in the
names of the same functions and in the width of their integers.
"""

import ctypes
import functools
import glob
import os
import sys
from dataclasses import dataclass

import numpy as np

# What marks the file of a BLAS library, in the order of preference.
LIBRARY_NAMES = (
    "openblas",
    "mkl_rt",
    "accelerate",
    "flexiblas",
    "blis",
    "cblas",
    "blas",
)
# (symbol of cblas_sgemm, whether its integers have 64 bits).
SYMBOLS = (
    ("scipy_cblas_{}gemm64_", True),
    ("cblas_{}gemm64_", True),
    ("cblas_{}gemm$NEWLAPACK$ILP64", True),
    ("cblas_{}gemm_64", True),
    ("scipy_cblas_{}gemm", False),
    ("cblas_{}gemm$NEWLAPACK", False),
    ("cblas_{}gemm", False),
)
THREAD_SYMBOLS = (
    ("scipy_openblas_{}_num_threads64_", "set", "get"),
    ("openblas_{}_num_threads64_", "set", "get"),
    ("scipy_openblas_{}_num_threads", "set", "get"),
    ("openblas_{}_num_threads", "set", "get"),
    ("MKL_{}_Threads", "Set_Num", "Get_Max"),
)
CONFIG_SYMBOLS = (
    "scipy_openblas_get_config64_",
    "openblas_get_config64_",
    "scipy_openblas_get_config",
    "openblas_get_config",
)
ROW_MAJOR = 101
NO_TRANSPOSE = 111
TRANSPOSE = 112


@dataclass(frozen=True)
class Blas:
    """A BLAS library in this process.

    Attributes:
        path: File of the library.
        config: What the library says of itself, or its file name.
        wide: Whether its integers have 64 bits.
        gemm: Address of `cblas_?gemm` by dtype name.
        set_threads: Address of the function that sets the number of threads,
            of one C int, or `None`.
        threads: Number of threads that it uses if left alone.
    """

    path: str
    config: str
    wide: bool
    gemm: dict
    set_threads: int | None
    threads: int


@functools.cache
def find():
    """Returns the `Blas` of this process, or `None` if there is none."""
    for path in _candidates():
        try:
            library = ctypes.CDLL(path)
        except OSError:
            continue
        blas = _inspect(path, library)
        if blas is not None and _multiplies(library, blas):
            return blas
    return None


def describe():
    """Returns one line about the BLAS in use, for the environment report."""
    blas = find()
    if blas is None:
        return (
            "none found; products run on tinygrad's own kernels, about ten "
            "times slower. NumPy's wheels bring one: `pip install "
            "--force-reinstall numpy`."
        )
    bits = 64 if blas.wide else 32
    return f"{blas.config} ({bits}-bit integers, {blas.threads} threads)"


def _candidates():
    found = list(_beside_numpy()) + list(_loaded())
    ranked = []
    for rank, name in enumerate(LIBRARY_NAMES):
        ranked += [
            path for path in found if name in os.path.basename(path).lower()
        ]
        if name == "accelerate" and sys.platform == "darwin":
            ranked.append(
                "/System/Library/Frameworks/Accelerate.framework/Accelerate"
            )
    return dict.fromkeys(ranked)


def _beside_numpy():
    """Yields libraries in the folders where wheels keep what they link."""
    package = os.path.dirname(np.__file__)
    for pattern in ("../numpy.libs/*", ".dylibs/*", "../../../lib*"):
        yield from sorted(glob.glob(os.path.join(package, pattern)))


def _loaded():
    """Yields the files of the libraries that NumPy has loaded."""
    if sys.platform == "darwin":
        process = ctypes.CDLL(None)
        process._dyld_get_image_name.restype = ctypes.c_char_p
        for i in range(process._dyld_image_count()):
            yield process._dyld_get_image_name(i).decode()
    elif os.path.exists("/proc/self/maps"):
        with open("/proc/self/maps") as maps:
            for line in maps:
                fields = line.split(maxsplit=5)
                if len(fields) == 6 and fields[5].startswith("/"):
                    yield fields[5].rstrip("\n")


def _address(library, name):
    try:
        return ctypes.cast(getattr(library, name), ctypes.c_void_p).value
    except AttributeError:
        return None


def _inspect(path, library):
    config = os.path.basename(path)
    for name in CONFIG_SYMBOLS:
        if _address(library, name):
            function = getattr(library, name)
            function.restype = ctypes.c_char_p
            config = function().decode()
            break
    for pattern, wide in SYMBOLS:
        gemm = {
            dtype: _address(library, pattern.format(letter))
            for dtype, letter in (("float32", "s"), ("float64", "d"))
        }
        if all(gemm.values()):
            break
    else:
        return None
    set_threads, threads = None, os.cpu_count() or 1
    for pattern, setter, getter in THREAD_SYMBOLS:
        set_threads = _address(library, pattern.format(setter))
        if set_threads and _address(library, pattern.format(getter)):
            threads = getattr(library, pattern.format(getter))()
            break
    # An OpenBLAS can be built with wide integers and plain names.
    wide = wide or "USE64BITINT" in config
    return Blas(path, config, wide, gemm, set_threads, threads)


def _multiplies(library, blas):
    """Tries a small product: a wrong guess at the interface must not stay."""
    a = np.arange(6, dtype=np.float64).reshape(2, 3)
    b = np.arange(12, dtype=np.float64).reshape(3, 4)
    out = np.zeros((2, 4))
    integer = ctypes.c_int64 if blas.wide else ctypes.c_int32
    pointer = ctypes.c_void_p
    function = ctypes.CFUNCTYPE(
        None,
        *[ctypes.c_int32] * 3,
        *[integer] * 3,
        *[ctypes.c_double, pointer, integer],
        *[pointer, integer, ctypes.c_double],
        *[pointer, integer],
    )(blas.gemm["float64"])
    function(
        *(ROW_MAJOR, NO_TRANSPOSE, NO_TRANSPOSE),
        *(2, 4, 3),
        *(1.0, a.ctypes.data, 3),
        *(b.ctypes.data, 4, 0.0),
        *(out.ctypes.data, 4),
    )
    return np.array_equal(out, a @ b)
