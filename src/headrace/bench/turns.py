"""Runs engines in turns: warms up each, then measures one after the other, in several rounds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from statistics import median
from typing import Any, Protocol

from headrace.bench.live import LiveView
from headrace.bench.model import Lane, LaneResult, MeasuredBatch, Verdict
from headrace.bench.process import LaneFailed

IDLE_MS_MAX = 60_000
"""Spark ends Python workers that were idle for this long. After a longer pause the first batch must start new ones."""
BATCHES_AFTER = 5
"""The least number of batches that are measured before a lane is changed, and after."""
SPAN_S_MAX = 20
"""Warm-up is judged in spans of this many seconds, or of two thirds of the measured time if that is less."""
SPANS_MIN, SPANS_MAX = 3, 12
SETTLED = 0.95
"""A span brings no gain if its median batch takes more than this share of that of the fastest span before."""


class Handle(Protocol):
    """What is needed of a lane: a process, or an inline one."""

    lane: Lane

    def next_batch(self, idle: Callable[[], None] = ...) -> MeasuredBatch: ...
    def finish(self, idle: Callable[[], None] = ...) -> tuple[Verdict, list[dict[str, Any]]]: ...
    def change(self) -> None: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def kill(self) -> None: ...
    def cpu_s(self) -> float: ...


def run(
    lanes: Sequence[Lane], open_lane: Callable[[Lane], Handle], seconds: float, turns: int, view: LiveView, warmup: int | None = None
) -> dict[str, LaneResult]:
    """Measure each lane for about ``seconds``, in ``turns`` turns, once it is warm or after a given number of batches.

    The last batch is not cut off, so it may end later.
    """
    results = {lane.name: LaneResult(lane) for lane in lanes}
    handles: dict[str, Handle] = {}
    # With one turn, each lane ends before the next begins, and no lane has to wait in between.
    together = [list(some) for _, some in groupby(lanes, lambda lane: lane.group if turns > 1 else lane.name)]
    try:
        for some in together:
            for lane in some:
                handles[lane.name] = open_lane(lane)
                with _guarded(results[lane.name], handles[lane.name]):
                    _warm_up(handles[lane.name], seconds, view, warmup)
                    if turns > 1:
                        handles[lane.name].pause()
                        results[lane.name].paused_ms = time.time() * 1000
            for turn in range(1, turns + 1):
                for lane in some:
                    _take_turn(handles[lane.name], results[lane.name], turn, turns, seconds, view)
            for lane in some:
                if results[lane.name].failed is None:
                    view.stage(lane.name, "checking the result")
                    _finish(handles[lane.name], results[lane.name], view)
    finally:
        for handle in handles.values():
            handle.kill()
    return results


def _warm_up(handle: Handle, seconds: float, view: LiveView, batches: int | None) -> None:
    lane = handle.lane
    view.stage(lane.name, "filling state and warming up" if lane.preload_batches else "warming up")
    for _ in range(lane.preload_batches):
        view.batch(lane.name, handle.next_batch(view.refresh))
    warm = WarmUp(lane.warmup_batches, min(SPAN_S_MAX, seconds * 2 / 3))
    done = 0
    while not warm.done if batches is None else done < batches:
        batch = handle.next_batch(view.refresh)
        view.batch(lane.name, batch)
        warm.add(batch.duration_ms)
        done += 1


@dataclass
class WarmUp:
    """Decides when a lane is warm: when its batches no longer get faster.

    On two cores the JVM's compilers are busy for one to three minutes. Code that is not compiled yet is several times slower. A
    streaming query runs for days, so its speed after warm-up counts.
    """

    batches_min: int
    span_s: float
    spans: list[list[float]] = field(default_factory=lambda: [[]])
    """The durations of batches, by span; the last span is not complete yet."""

    def add(self, duration_ms: float) -> None:
        self.spans[-1].append(duration_ms)
        if sum(self.spans[-1]) >= self.span_s * 1000:
            self.spans.append([])

    @property
    def done(self) -> bool:
        batches = [duration for span in self.spans for duration in span]
        spans_worth = sum(batches) / 1000 / self.span_s
        if len(batches) < self.batches_min or spans_worth < SPANS_MIN:
            return False
        full = [median(span) for span in self.spans[:-1]]
        if spans_worth >= SPANS_MAX or len(full) < SPANS_MIN:
            # Warm enough. If few spans are complete, batches are so long that the compilers had all the time they need.
            return True
        # Two spans without a gain, because a single one may have been disturbed.
        return min(full[-2:]) > SETTLED * min(full[:-2])


def _take_turn(handle: Handle, result: LaneResult, turn: int, turns: int, seconds: float, view: LiveView) -> None:
    """The turn of one lane in a round."""
    lane = handle.lane
    from_ms, until_ms = 0.0, seconds * 1000 * turn / turns
    if lane.changes_each_turn:
        from_ms, until_ms = result.measured_ms, result.measured_ms + seconds * 1000 / turns
    # A lane with long batches may have used up the time of several turns; it skips those.
    if result.failed is not None or result.measured_ms >= until_ms:
        return
    view.stage(lane.name, f"turn {turn} of {turns}")
    with _guarded(result, handle):
        began_ms = time.time() * 1000
        workers_gone = result.paused_ms is not None and began_ms - result.paused_ms > IDLE_MS_MAX
        if turns > 1:
            handle.resume()
        taken: list[MeasuredBatch] = []
        result.turns.append(taken)
        changes = lane.changes and (lane.changes_each_turn or result.changed_ms is None)
        cpu_began_s, rows = handle.cpu_s(), 0
        while result.measured_ms < until_ms or changes or not _has_changed(result, taken):
            batch = handle.next_batch(view.refresh)
            view.batch(lane.name, batch)
            # A batch that the pause interrupted began earlier; a batch that fills the state has another size.
            counts = batch.start_ms >= began_ms and batch.rows == lane.rows
            if counts and not workers_gone:
                taken.append(batch)
            elif not taken:
                # CPU time is counted from the end of the last batch that does not count.
                cpu_began_s, rows, workers_gone = handle.cpu_s(), 0, workers_gone and not counts
                continue
            rows += batch.rows
            if changes and result.measured_ms >= (from_ms + until_ms) / 2 and len(taken) > BATCHES_AFTER:
                view.stage(lane.name, "changing the running query")
                changes, result.changed_ms = False, time.time() * 1000
                handle.change()
        result.cpu.append((handle.cpu_s() - cpu_began_s, rows))
        if turns > 1:
            handle.pause()
            result.paused_ms = time.time() * 1000


def _has_changed(result: LaneResult, taken: list[MeasuredBatch]) -> bool:
    """True if enough batches after the change of a lane were measured, or it is not changed."""
    if not result.lane.changes:
        return True
    return result.changed_ms is not None and sum(batch.start_ms > result.changed_ms for batch in taken) >= BATCHES_AFTER


def _finish(handle: Handle, result: LaneResult, view: LiveView) -> None:
    try:
        result.verdict, result.headrace = handle.finish(view.refresh)
        view.stage(handle.lane.name, "equal" if result.verdict.equal else "NOT equal")
    except LaneFailed as failed:
        result.unchecked = str(failed)
        view.stage(handle.lane.name, f"not checked: {failed}")
        handle.kill()


@contextmanager
def _guarded(result: LaneResult, handle: Handle) -> Iterator[None]:
    """Handle the failure of a lane. It is a result, not a crash: Spark may run out of memory where others do not."""
    try:
        yield
    except LaneFailed as failed:
        result.failed = str(failed)
        handle.kill()
