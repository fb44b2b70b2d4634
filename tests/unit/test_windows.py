"""Windows and panes, compared with brute force over every window that could matter."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.operators.windows import TimeWindow


@dataclass(frozen=True)
class Case:
    window: TimeWindow
    times: list[int]

    def starts(self) -> range:
        """All windows near the times, and some more."""
        w = self.window
        reach = w.size_us + 3 * w.advance_us
        lowest = min(self.times) - 2 * reach
        first = lowest - (lowest - w.offset_us) % w.advance_us
        return range(first, max(self.times) + 2 * reach, w.advance_us)

    def holding(self, time: int) -> list[int]:
        return [s for s in self.starts() if s <= time < s + self.window.size_us]

    def panes(self) -> list[int]:
        return [pane_of(self.window, t) for t in self.times]


def pane_of(w: TimeWindow, time: int) -> int:
    """As the compiler computes it in Spark."""
    within = (time - w.offset_us) % w.advance_us
    base = time - within
    return base if w.remainder_us == 0 or within < w.remainder_us else base + w.remainder_us


@st.composite
def cases(draw: st.DrawFn) -> Case:
    advance = draw(st.integers(1, 12))
    size = draw(st.integers(advance, 50))
    offset = draw(st.integers(0, advance - 1))
    times = draw(st.lists(st.integers(-120, 120), min_size=1, max_size=8))
    return Case(TimeWindow(size, advance, offset), times)


@settings(deadline=None)
@given(cases())
def test_a_pane_lies_in_exactly_the_windows_of_its_rows(case: Case) -> None:
    w = case.window
    panes = np.array(case.panes())
    first, last, end = w.first_start(panes), w.last_start(panes), w.last_end(panes)
    for i, time in enumerate(case.times):
        holding = case.holding(time)
        assert case.holding(int(panes[i])) == holding
        assert (first[i], last[i], end[i]) == (holding[0], holding[-1], holding[-1] + w.size_us)


@settings(deadline=None)
@given(cases())
def test_there_are_at_most_two_panes_per_advance(case: Case) -> None:
    w = case.window
    panes = {pane_of(w, t) for t in range(w.offset_us, w.offset_us + w.advance_us)}
    assert len(panes) <= 2
    assert w.one_pane_each == (w.size_us == w.advance_us)


@settings(deadline=None)
@given(cases(), st.integers(-150, 150))
def test_a_pane_is_live_while_one_of_its_windows_is_open(case: Case, watermark: int) -> None:
    live_from = case.window.live_from(watermark)
    for time, pane in zip(case.times, case.panes(), strict=True):
        is_open = any(s + case.window.size_us > watermark for s in case.holding(time))
        assert (pane >= live_from) == is_open


bounds = st.one_of(st.none(), st.integers(-150, 150))


@settings(deadline=None)
@given(cases(), bounds, bounds)
def test_the_windows_that_are_over_between_two_watermarks(case: Case, after: int | None, until: int | None) -> None:
    w = case.window
    wanted = {
        s
        for time in case.times
        for s in case.holding(time)
        if (after is None or s + w.size_us > after) and (until is None or s + w.size_us <= until)
    }
    assert w.starts_over(np.array(case.panes()), after, until).tolist() == sorted(wanted)


@settings(deadline=None)
@given(cases(), st.integers(-150, 150), st.integers(0, 100))
def test_a_run_is_due_whenever_a_window_over_its_panes_is(case: Case, after: int, more: int) -> None:
    w = case.window
    panes = case.panes()
    low, high, until = min(panes), max(panes), after + more
    # The run knows only its least and greatest pane: any pane in between may be there.
    between = {s for t in range(low, high + 1) for s in case.holding(t)}
    assert w.any_over(low, high, after, until) == any(after < s + w.size_us <= until for s in between)


@settings(deadline=None)
@given(st.lists(st.integers(-9, 9), min_size=1), bounds, bounds)
def test_an_instant_is_a_window_of_its_own(times: list[int], after: int | None, until: int | None) -> None:
    w = TimeWindow(size_us=0, advance_us=1)
    wanted = {t for t in times if (after is None or t > after) and (until is None or t <= until)}
    assert w.starts_over(np.array(times), after, until).tolist() == sorted(wanted)
    watermark = 0 if until is None else until
    assert [t >= w.live_from(watermark) for t in times] == [t > watermark for t in times]
