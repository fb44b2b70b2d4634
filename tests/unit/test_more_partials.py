"""Moments of higher order and of two variables, bits, and lists: parts merged in any grouping give what all rows at once give."""

from __future__ import annotations

import math
from functools import reduce
from operator import and_, or_, xor
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.operators.more_partials import Bits, CoMoments, HigherMoments, Lists
from headrace.operators.partials import Partial
from tests.examples import examples

numbers = st.lists(st.one_of(st.none(), st.integers(-1000, 1000).map(float)), min_size=1, max_size=12)


def merged(partial: Partial, rows: list[tuple[Any, ...]], cuts: list[int]) -> tuple[Any, ...]:
    """The rows merged in parts that begin at these indices, and the parts merged to one."""
    starts = np.array(sorted({0, *(cut % len(rows) for cut in cuts)}), dtype=np.int64)
    columns = [pa.array(column, kind) for column, kind in zip(zip(*rows, strict=True), partial.types, strict=True)]
    parts = partial.merge(columns, starts)
    assert [part.type for part in parts] == list(partial.types)
    whole = partial.merge(parts, np.zeros(1, dtype=np.int64))
    return tuple(column.to_pylist()[0] for column in whole)


def close(found: tuple[Any, ...], wanted: tuple[Any, ...]) -> bool:
    size = max(1.0, *(abs(w) for w in wanted))
    return all(math.isclose(f, w, rel_tol=1e-9, abs_tol=1e-9 * size) for f, w in zip(found, wanted, strict=True))


@settings(max_examples=examples(100), deadline=None)
@given(numbers, st.lists(st.integers(0, 11)), st.booleans())
def test_higher_moments(values: list[float | None], cuts: list[int], fourth: bool) -> None:
    rows = [(0.0,) * 5 if v is None else (1.0, v, 0.0, 0.0, 0.0) for v in values]
    found = merged(HigherMoments(fourth), [row[: 5 if fourth else 4] for row in rows], cuts)
    there = np.array([v for v in values if v is not None])
    mean = float(there.mean()) if len(there) else 0.0
    wanted = (float(len(there)), mean, *(float(((there - mean) ** power).sum()) for power in (2, 3, 4)))
    assert close(found, wanted[: len(found)])


@settings(max_examples=examples(100), deadline=None)
@given(numbers, st.lists(st.integers(0, 11)), st.booleans())
def test_moments_of_two_variables(values: list[float | None], cuts: list[int], squares: bool) -> None:
    pairs = [None if v is None else (v, (v * 7) % 13) for v in values]
    rows = [(0.0,) * 6 if pair is None else (1.0, *pair, 0.0, 0.0, 0.0) for pair in pairs]
    found = merged(CoMoments(squares), [row[: 6 if squares else 4] for row in rows], cuts)
    there = np.array([pair for pair in pairs if pair is not None]).reshape(-1, 2)
    x, y = (there[:, at] - (there[:, at].mean() if len(there) else 0.0) for at in (0, 1))
    means = (float(there[:, 0].mean()), float(there[:, 1].mean())) if len(there) else (0.0, 0.0)
    wanted = (float(len(there)), *means, float((x * y).sum()), float((x * x).sum()), float((y * y).sum()))
    assert close(found, wanted[: len(found)])


def test_nan_and_infinity_spread_to_all_moments() -> None:
    for bad in (math.nan, math.inf):
        found = merged(HigherMoments(True), [(1.0, 1.0, 0.0, 0.0, 0.0), (1.0, bad, math.nan, math.nan, math.nan)], [1])
        assert found[0] == 2.0
        assert all(math.isnan(each) for each in found[2:])


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.one_of(st.none(), st.integers(-128, 127)), min_size=1, max_size=12), st.lists(st.integers(0, 11)))
@pytest.mark.parametrize(
    ("partial", "step"), [(Bits(pa.int8(), both=True), and_), (Bits(pa.int8()), or_), (Bits(pa.int8(), differ=True), xor)]
)
def test_bits(partial: Bits, step: Any, values: list[int | None], cuts: list[int]) -> None:
    there = [v for v in values if v is not None]
    assert merged(partial, [(v,) for v in values], cuts) == ((reduce(step, there) if there else None),)


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.one_of(st.none(), st.lists(st.binary(max_size=3), max_size=3)), min_size=1, max_size=12), st.lists(st.integers(0, 11)))
def test_lists_follow_one_another(values: list[list[bytes] | None], cuts: list[int]) -> None:
    partial = Lists(pa.binary())
    assert merged(partial, [(v,) for v in values], cuts) == ([each for v in values if v is not None for each in v],)
    assert merged(partial, [partial.neutral(), *((v,) for v in values)], cuts) == merged(partial, [(v,) for v in values], cuts)
