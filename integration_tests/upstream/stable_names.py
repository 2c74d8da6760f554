"""Names each test alike in every process.

scikit-learn's checks have the address of a function in their names: two
processes would not agree on which tests there are, nor two runs.
"""

import re

import pytest

_ADDRESS = re.compile(r" at 0x[0-9a-f]+|at0x[0-9a-f]+")


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc):
    for mark in metafunc.definition.iter_markers("parametrize"):
        if callable(mark.kwargs.get("ids")):
            mark.kwargs["ids"] = _without_addresses(mark.kwargs["ids"])


def _without_addresses(name_of):
    def name(value):
        found = name_of(value)
        return _ADDRESS.sub("", found) if isinstance(found, str) else found

    return name
