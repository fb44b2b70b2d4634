"""Joins with bounds that differ by side, or without bounds, and semi-joins: batch by batch over real runs, against brute force."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.operators.join import StreamJoin
from tests.examples import examples
from tests.unit.test_join_kernels import LESS, MS, Row, histories, in_time, pairing, play, seen

KEEPS = st.one_of(st.none(), st.integers(-4, 9))
"""How much later than a row its last partner may come, in milliseconds; None is no bound. The end of each history passes all bounds."""


def _pairs(rows: list[Row], keep: tuple[int | None, int | None], condition: bool) -> list[tuple[Row, Row]]:
    """All pairs of a left and a right row with one key, within the bounds."""

    def near(a: Row, b: Row) -> bool:
        later = b[2] - a[2]
        return (keep[0] is None or later <= keep[0]) and (keep[1] is None or -later <= keep[1])

    left, right = ([row for row in rows if row[0] == side] for side in (0, 1))
    return [(a, b) for a in left for b in right if a[1] == b[1] and near(a, b) and (not condition or a[3] < b[3])]


def _us(keep: tuple[int | None, int | None]) -> tuple[int | None, int | None]:
    return (None if keep[0] is None else keep[0] * MS), (None if keep[1] is None else keep[1] * MS)


@settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(histories(), st.tuples(KEEPS, KEEPS), st.tuples(st.booleans(), st.booleans()), st.booleans(), st.sampled_from([0, 1, 64]))
def test_bounds_may_differ_by_side(
    history: list[tuple[list[Row], int]],
    keep: tuple[int | None, int | None],
    outer: tuple[bool, bool],
    condition: bool,
    hash_bits: int,
) -> None:
    rows = in_time(history)
    pairs = _pairs(rows, keep, condition)
    wanted: Counter[tuple[Any, ...]] = Counter((a[2] * MS, a[3], b[2] * MS, b[3]) for a, b in pairs)
    # A row that is kept for ever may still get a partner, so it is never emitted alone.
    if outer[0] and keep[0] is not None:
        wanted.update((a[2] * MS, a[3], None, None) for a in rows if a[0] == 0 and not any(a is x for x, _ in pairs))
    if outer[1] and keep[1] is not None:
        wanted.update((None, None, b[2] * MS, b[3]) for b in rows if b[0] == 1 and not any(b is x for _, x in pairs))
    operator = StreamJoin(pairing(LESS if condition else None), _us(keep), outer)
    assert seen(play(operator, history, hash_bits)) == wanted


@settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(histories(), st.tuples(KEEPS, KEEPS), st.booleans(), st.sampled_from([0, 1, 64]))
def test_a_semi_join_emits_each_row_with_its_first_partner(
    history: list[tuple[list[Row], int]], keep: tuple[int | None, int | None], condition: bool, hash_bits: int
) -> None:
    pairs = _pairs(in_time(history), keep, condition)
    wanted = Counter({(a[2] * MS, a[3]) for a, _ in pairs})
    operator = StreamJoin(pairing(LESS if condition else None), _us(keep), semi=True)
    assert Counter((row["lt"], row["l0"]) for row in play(operator, history, hash_bits)) == wanted


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(histories(), st.sampled_from([(True, False), (False, True), (False, False)]))
def test_rows_of_a_side_without_a_watermark_are_never_late(history: list[tuple[list[Row], int]], timed: tuple[bool, bool]) -> None:
    punctual = in_time(history)
    rows = [row for batch, _ in history for row in batch if not timed[row[0]] or any(row is each for each in punctual)]
    operator = StreamJoin(pairing(), (None, None), timed=timed)
    wanted = Counter((a[2] * MS, a[3], b[2] * MS, b[3]) for a, b in _pairs(rows, (None, None), condition=False))
    assert seen(play(operator, history)) == wanted
