"""The profile of a compiled train step."""

from integration_tests.benchmarks import profile


def test_lists_the_launches_of_a_step():
    found = profile.rows(profile.train_plan("mlp"), repeats=2)
    names = [name for _, name, _, _ in found]
    # Three products forward, three for the kernels, two for the inputs.
    assert sum("gemm" in name for name in names) == 8
    assert all(seconds > 0 for seconds, *_ in found)
    assert any(operations > 0 for *_, operations in found)
