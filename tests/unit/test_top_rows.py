"""The first rows by an order, against plain Python: any split into parts gives what all rows at once give."""

from __future__ import annotations

import math
from functools import cmp_to_key
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.operators.description import describe_partial, partial_from
from headrace.operators.top_rows import TopRows
from tests.examples import examples

Row = dict[str, Any]
ELEMENT = pa.struct([("o0", pa.float64()), ("o1", pa.large_string()), ("c0", pa.int64()), ("c1", pa.list_(pa.int32()))])
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "o0": st.none() | st.sampled_from([0.0, -0.0, 1.5, -2.0, math.nan, math.inf]),
            "o1": st.none() | st.sampled_from(["", "a", "b"]),
            "c0": st.integers(0, 3),
            "c1": st.just([1]),
        }
    ),
    max_size=12,
)


def compared(a: Any, b: Any, descending: bool, nulls_first: bool) -> int:
    if a is None or b is None:
        return 0 if a is b else (-1 if (a is None) == nulls_first else 1)
    if isinstance(a, float):
        a, b = ((math.isnan(each), 0.0 if math.isnan(each) else each + 0.0) for each in (a, b))
    found = (a > b) - (a < b)
    return -found if descending else found


def order(top: TopRows, a: Row, b: Row) -> int:
    for at in range(2):
        found = compared(a[f"o{at}"], b[f"o{at}"], bool(top.descending >> at & 1), bool(top.nulls_first >> at & 1))
        if found:
            return found
    return 0


def wanted(top: TopRows, rows: list[Row]) -> list[Any]:
    ordered = sorted(rows, key=cmp_to_key(lambda a, b: order(top, a, b) or compared(a["c0"], b["c0"], False, True)))
    numbers: list[int] = []
    for at, row in enumerate(ordered):
        same = at > 0 and order(top, ordered[at - 1], row) == 0
        if not top.ties:
            numbers.append(at + 1)
        elif same:
            numbers.append(numbers[-1])
        else:
            numbers.append((numbers[-1] + 1 if numbers else 1) if top.dense else at + 1)
    return [shown(row) for row, number in zip(ordered, numbers, strict=True) if number <= top.limit]


def shown(row: Row) -> Any:
    number = row["o0"]
    return ("NaN" if isinstance(number, float) and math.isnan(number) else None if number is None else number + 0.0), row["o1"], row["c0"]


@pytest.mark.parametrize(("ties", "dense"), [(False, False), (True, False), (True, True)])
@settings(max_examples=examples(60), deadline=None)
@given(rows=ROWS, cut=st.integers(0, 12), flags=st.tuples(st.integers(0, 3), st.integers(0, 3)), limit=st.integers(0, 4))
def test_the_first_rows_are_kept(ties: bool, dense: bool, rows: list[Row], cut: int, flags: tuple[int, int], limit: int) -> None:
    top = TopRows(ELEMENT, 2, *flags, limit, ties, dense)
    parts = pa.array([rows[:cut], rows[cut:], rows[:2]], pa.list_(ELEMENT))
    first = top.merge([parts], np.array([0, 1, 2]))[0]
    merged = top.merge([first], np.array([0, 2]))[0].to_pylist()
    assert [shown(row) for row in merged[0]] == wanted(top, rows)
    assert [shown(row) for row in merged[1]] == wanted(top, rows[:2])


def test_it_can_be_read_without_the_program() -> None:
    top = TopRows(ELEMENT, 2, 1, 2, 3, ties=True, dense=False)
    assert partial_from(describe_partial(top)) == top
