"""The comparison of the testing kit: every way in which rows can differ is noticed and named, and nothing else is."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.testing.compare import LINES_MAX, assert_same_rows, compared

ROWS = [("ada", 1, 0.1), ("bob", 2, 0.2), ("cy", None, math.nan)]
COLUMNS = ["name", "n", "share"]


def told(found: list[Any], wanted: list[Any] = ROWS, **more: Any) -> str:
    with pytest.raises(AssertionError) as caught:
        assert_same_rows(found, wanted, columns=COLUMNS, **more)
    return str(caught.value)


def test_order_and_rounding_make_no_difference() -> None:
    assert_same_rows([ROWS[2], ("bob", 2, 0.1 + 0.1), ("ada", 1, 0.30000000000000004 - 0.2)], ROWS)
    nested = [({"a": 0.3}, [1, None, (0.3, "x")])]
    assert_same_rows([({"a": 0.1 + 0.2}, [1, None, (0.1 + 0.2, "x")])], nested)


def test_a_lost_row_is_missing() -> None:
    assert told(ROWS[1:]) == "the rows differ (2 rows, 3 wanted):\n  missing     name='ada', n=1, share=0.1"


def test_a_row_too_many_is_doubled() -> None:
    assert "doubled     name='bob', n=2, share=0.2: 2 times, wanted 1" in told([*ROWS, ROWS[1]])
    assert "doubled     name='bob', n=2, share=0.2" in told([*ROWS, ("bob", 2, 0.1 + 0.1)]), "rounded otherwise, and still the same row"
    assert "missing     name='bob', n=2, share=0.2: 1 time, wanted 2" in told(ROWS, [*ROWS, ROWS[1]])


def test_a_wrong_value_is_shown_beside_the_right_one() -> None:
    assert told([("ada", 1, 0.1), ("bob", 3, 0.2), ROWS[2]]).endswith("wrong       name='bob', n=3, share=0.2: wanted n=2")
    swapped = [("ada", 2, 0.2), ("bob", 1, 0.1), ROWS[2]]
    lines = told(swapped, keys=["name"]).splitlines()[1:]
    assert [line.split(":")[1] for line in lines] == [" wanted n=1, share=0.1", " wanted n=2, share=0.2"]


def test_a_row_that_nobody_wants_is_unexpected() -> None:
    assert "unexpected  name='eve', n=1, share=0.1" in told([*ROWS, ("eve", 1, 0.1)])


@pytest.mark.parametrize(
    ("one", "other"), [(1, 2), (0.1, 0.1001), (True, 1), (None, 0), ("1", 1), ([1, 2], [2, 1]), ({"a": 1}, {"a": 2}), (math.nan, 0.0)]
)
def test_values_that_differ(one: Any, other: Any) -> None:
    for found, wanted in ((one, other), (other, one)):
        with pytest.raises(AssertionError):
            assert_same_rows([("k", found)], [("k", wanted)])


def test_a_long_difference_is_told_in_a_few_lines() -> None:
    lines = told([(f"x{at}", at, 0.0) for at in range(1000)], [(f"y{at}", at, 0.0) for at in range(1000)]).splitlines()
    assert len(lines) == LINES_MAX + 2
    assert lines[-1] == f"  and {2000 - LINES_MAX} more"


values = st.one_of(st.none(), st.booleans(), st.integers(-3, 3), st.sampled_from([0.1, 0.5, math.nan]), st.sampled_from(["a", "b"]))
tables = st.lists(st.tuples(st.sampled_from(["a", "b", "c"]), values, values), min_size=1, max_size=12)


@given(tables, st.randoms())
def test_any_rows_equal_themselves_and_nothing_that_lost_or_doubled_a_row(rows: list[Any], chance: random.Random) -> None:
    mixed = chance.sample(rows, len(rows))
    assert not compared(mixed, rows)
    without = compared(mixed[1:], rows)
    assert (len(without.missing), len(without.wrong), len(without.unexpected), len(without.doubled)) == (1, 0, 0, 0)
    doubled = compared([*mixed, mixed[0]], rows)
    assert (len(doubled.missing), len(doubled.wrong), len(doubled.unexpected), len(doubled.doubled)) == (0, 0, 0, 1)
