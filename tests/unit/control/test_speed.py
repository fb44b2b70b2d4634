"""Every policy decides over a thousand instances in its most expensive case; how long that takes, `headrace bench control` says."""

from __future__ import annotations

import pytest

from benchmarks.control.decisions import cases

CASES = cases(1000)


@pytest.mark.parametrize("name", CASES)
def test_the_case_that_is_measured_is_the_expensive_one(name: str) -> None:
    case = CASES[name]
    assert case.expensive(case.call())
