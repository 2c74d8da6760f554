"""The C compiler: clang, zig where there is none, one error without both."""

import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from keras.src.backend.tinygrad.engine import compiler
from keras.src.backend.tinygrad.engine.transfer import from_numpy
from keras.src.backend.tinygrad.engine.transfer import to_numpy

SCRIPT = textwrap.dedent(
    """
    import numpy as np
    from keras import ops
    from keras.src.backend.tinygrad.engine import compiler

    x = np.random.default_rng(0).normal(size=(7, 9)).astype("float32")
    got = ops.convert_to_numpy(ops.sum(ops.exp(ops.convert_to_tensor(x)), 0))
    np.testing.assert_allclose(got, np.exp(x).sum(0), rtol=1e-5)
    half = ops.cast(ops.convert_to_tensor(x), "bfloat16") + 1
    print(ops.convert_to_numpy(ops.cast(half, "float32"))[0, 0])
    print(compiler.find().name, compiler.describe())
    """
)


def run(tmp_path, script=SCRIPT, **variables):
    environment = {
        **os.environ,
        "KERAS_BACKEND": "tinygrad",
        "KERAS_TINYGRAD_CACHE": "off",
        "CACHEDB": str(tmp_path / "cache.db"),
        "CCACHE": "0",
        **variables,
    }
    return subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        env=environment,
    )


@pytest.fixture
def bare_path(tmp_path):
    """A PATH with no compiler on it."""
    folder = tmp_path / "bin"
    folder.mkdir()
    return str(folder)


def test_zig_takes_the_place_of_clang(tmp_path, bare_path):
    pytest.importorskip("ziglang")
    result = run(tmp_path, PATH=bare_path, CC="")
    assert result.returncode == 0, result.stderr
    assert "zig cc" in result.stdout


def test_clang_and_zig_agree(tmp_path, bare_path):
    pytest.importorskip("ziglang")
    if compiler.find().name != "clang":
        pytest.skip("clang is not installed")
    with_clang = run(tmp_path).stdout.split()
    with_zig = run(tmp_path, PATH=bare_path, CC="").stdout.split()
    assert with_clang[1] == "clang" and with_zig[1] == "zig"
    assert with_clang[0] == with_zig[0]


def test_a_compiler_in_cc_that_is_not_clang_is_left_alone(tmp_path):
    result = run(tmp_path, CC=sys.executable)
    assert result.returncode == 0, result.stderr


def test_no_compiler_is_one_clear_error(tmp_path, bare_path):
    hide = "import sys; sys.modules['ziglang'] = None\n"
    result = run(tmp_path, hide + SCRIPT, PATH=bare_path, CC="")
    assert result.returncode != 0
    assert result.stderr.strip().split("\n")[-1] == (
        "RuntimeError: " + compiler.REMEDY
    )


def test_importing_needs_no_compiler(tmp_path, bare_path):
    script = (
        "import sys; sys.modules['ziglang'] = None\n"
        "from keras import ops\n"
        "x = ops.convert_to_tensor([1.0, 2.0])\n"
        "print((x + 1).shape)"
    )
    result = run(tmp_path, script, PATH=bare_path, CC="", DEV="PYTHON")
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "(2,)"


def test_zig_leaves_no_files_behind(tmp_path, bare_path):
    pytest.importorskip("ziglang")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    result = run(tmp_path, PATH=bare_path, CC="", TMPDIR=str(scratch))
    assert result.returncode == 0, result.stderr
    assert not list(scratch.glob("keras-tinygrad-zig-*"))


def test_a_failure_shows_the_source_and_the_reason():
    kernel = type("Kernel", (), {"arch": "x86_64", "args": []})()
    with pytest.raises(compiler.CompileError, match="not_a_type"):
        compiler._compile(kernel, "not_a_type f(void) { return 0; }")


@pytest.mark.parametrize(
    "value", [0.0, -0.0, 1.0, -1.3, 3.39e38, 1e-40, np.inf, -np.inf, np.nan]
)
def test_bfloat16_constants(value):
    x = from_numpy(np.zeros(3, "bfloat16"), "CPU")
    got = to_numpy((x * 0 + value).contiguous())
    want = np.full(3, value).astype("bfloat16")
    np.testing.assert_array_equal(got.astype("f4"), want.astype("f4"))


def test_bfloat16_casts_round_within_a_kernel():
    x = np.random.default_rng(0).normal(size=64).astype("float32")
    t = from_numpy(x, "CPU")
    got = to_numpy(t.bfloat16().float())
    np.testing.assert_array_equal(got, x.astype("bfloat16").astype("float32"))


def test_no_process_compiles_without_these_patches():
    from tinygrad.engine.worker import get_worker_pool

    assert get_worker_pool() is None


def test_a_product_is_rounded_before_it_is_added_to_another():
    rng = np.random.default_rng(0)
    x, y = (rng.normal(size=999).astype("float32") for _ in range(2))
    a, b, c, d = (from_numpy(z, "CPU") for z in (x, y, x, y))
    np.testing.assert_array_equal(to_numpy(a * b - c * d), 0)
    np.testing.assert_array_equal(to_numpy(a * b + a), x * y + x)


def test_strided_float16_keeps_its_order():
    # clang 14 mixes such elements up in vectors of 512 bits.
    x = np.arange(25).reshape(5, 5).astype("float16")
    skipped = from_numpy(np.stack([x, x + 100, x], -1), "CPU")[:, :, 1]
    got = to_numpy((skipped + 1) * 0.5)
    np.testing.assert_array_equal(got, (x + 101) / 2)
