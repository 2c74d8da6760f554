"""README's table of ops is the one that its command writes."""

import re

from integration_tests.ops import support


def test_table_is_of_these_functions_and_ops():
    """If not: `python -m integration_tests.ops.support --write`."""
    header, _, *lines, _ = support.written()
    assert tuple(header) == support.COLUMNS
    assert [line[:3] for line in lines] == [
        [f"`{module}`", str(functions), str(len(names))]
        for module, functions, names in support.rows()
    ]
    for line in lines:
        assert all(re.fullmatch(r"\d+( of \d+)?", c) for c in line[3:])


def test_counts_are_of_ops_that_passed_all(tmp_path):
    report = tmp_path / "report.xml"
    report.write_text(
        """<testsuites><testsuite>
        <testcase classname="integration_tests.ops.ops_test"
                  name="test_values[exp-float32]"/>
        <testcase classname="integration_tests.ops.ops_test"
                  name="test_values[exp-float16]"><failure/></testcase>
        <testcase classname="integration_tests.ops.ops_test"
                  name="test_views[linalg.det-float32]"/>
        <testcase classname="integration_tests.rnn.a_test"
                  name="test_values[log-float32]"/>
        </testsuite></testsuites>"""
    )
    results = support.Results(report)
    tests = support.CHECKS["values"]
    assert results.count(tests, ["exp", "linalg.det", "log"]) == (1, 2)


def test_every_op_of_the_table_is_counted_once():
    counted = sum((names for _, _, names in support.rows()), [])
    assert sorted(counted) == sorted(support.table_names())
