"""The profile of a compiled train step."""

from integration_tests.benchmarks import profile


def test_lists_the_launches_of_a_step():
    found = profile.rows(profile.train_plan("mlp"), repeats=2)
    names = [name for _, name, _, _ in found]
    # Three products forward, three for the kernels, two for the inputs.
    assert sum("gemm" in name for name in names) == 8
    assert all(seconds > 0 for seconds, *_ in found)
    # Batch 128 through layers of 784, 256, 128 and 10 units, three times, less
    # the first layer's product for its input.
    products = 3 * (784 * 256 + 256 * 128 + 128 * 10) - 784 * 256
    operations = [n for _, name, _, n in found if "gemm" in name]
    assert sum(operations) == 2 * 128 * products
    assert any(n for _, name, _, n in found if n and "gemm" not in name)


def test_counts_the_operations_of_a_convolution():
    found = profile.rows(profile.train_plan("cnn"), repeats=1)
    counts = {name: n for _, name, _, n in found if "convolution" in name}
    outputs = 64 * 11 * 11 * 64
    of_second = [n for n in counts.values() if n == 2 * outputs * 9 * 32]
    assert of_second
