"""Window recreation: every row counts once in every window, whenever the change comes and however it ends."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.ids import SLOTS
from headrace.operators.kernel import MAIN, Moment, OutputMode
from headrace.operators.partials import Count
from headrace.operators.windowed import WINDOW, WindowedAggregate
from headrace.operators.windows import TimeWindow
from headrace.runtime.task import Attempt
from headrace.runtime.task_spec import TaskSpec
from headrace.state.durable import FolderStore
from headrace.state.layout import HASH, Layout, Policy
from headrace.state.recreation import carried_over
from headrace.state.routing import Routing
from headrace.state.run import RunRef
from headrace.state.slots import join
from tests.examples import examples

LAYOUT = Layout(keys=(("k", pa.int64()),), values=(("n", pa.int64()),), has_sub=True, policy=Policy.COMBINE)
KEYS = 24
DELAY_US = 3_000

Row = tuple[int, int]
"""A key and its event time in microseconds."""


@dataclass
class Engine:
    """Batches of a windowed count through real instance tasks, without Spark: each row to its tasks, then what falls due."""

    folder: Path
    window: TimeWindow
    mode: OutputMode
    routing: Routing
    refs: tuple[RunRef, ...] = ()
    before: Routing | None = None
    watermark_ms: int = 0
    seen_us: int = 0
    version: int = 0
    attempt: int = 0
    told: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    """By key and start of a window, the counts that were emitted."""
    counted: int = 0

    def __post_init__(self) -> None:
        (self.folder / "runs").mkdir()
        (self.folder / "staged").mkdir()

    @property
    def operator(self) -> WindowedAggregate:
        return WindowedAggregate(LAYOUT, (Count(),), self.window)

    def recreate(self, after: Routing) -> None:
        newest = [ref.sub_max for ref in self.refs if ref.sub_max is not None]
        window = (self.window.size_us, self.window.advance_us, self.window.offset_us)
        if newest and after is not self.routing:
            after = after.recreating(self.routing, max(*newest, self.watermark_ms * 1000), window)
        self.routing = after

    def batch(self, rows: list[Row]) -> None:
        self.version += 1
        over = [each for each in self.routing.recreations if each.end_us <= self.watermark_ms * 1000]
        self.routing = self.routing.without(over)
        earlier = self.before.recreations if self.before else ()
        self.refs = carried_over(self.refs, earlier, self.routing.recreations, self.watermark_ms * 1000)
        self._run([self._of(rows, part) for part in range(len(self.routing.parts))], None)
        self.seen_us = max([self.seen_us, *(ts for _, ts in rows)])
        reached_ms = max(self.watermark_ms, (self.seen_us - DELAY_US) // 1000)
        if reached_ms > self.watermark_ms and self.mode is OutputMode.APPEND:
            self._run([LAYOUT.empty()] * len(self.routing.parts), reached_ms)
        self.watermark_ms = reached_ms
        self.before = self.routing

    def _of(self, rows: list[Row], part: int) -> pa.RecordBatch:
        """The rows that a task gets, by the tables that the plan is made of."""
        to = self.routing.targets()
        keys, panes = (np.array(each, dtype=np.int64) for each in ([k for k, _ in rows], [self._pane(ts) for _, ts in rows]))
        hashed = keys.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        unit = to.units.of_hashes(hashed)
        mine = (to.first[unit] == part) | ((to.also[unit] == part) & (panes < to.until[unit]))
        arrays = [pa.array(each[mine]) for each in (hashed, keys, panes, np.ones(len(keys), dtype=np.int64))]
        return pa.RecordBatch.from_arrays(arrays, schema=LAYOUT.schema)

    def _pane(self, ts: int) -> int:
        base = ts - (ts - self.window.offset_us) % self.window.advance_us
        edge = base + self.window.remainder_us
        return edge if self.window.remainder_us and ts >= edge else base

    def _run(self, rows: list[pa.RecordBatch], until_ms: int | None) -> None:
        spec = TaskSpec(
            store=FolderStore(self.folder),
            query="q",
            operator=self.operator,
            operator_id="op",
            version=self.version,
            writer="e",
            moment=Moment(self.mode, self.watermark_ms),
            refs={MAIN: self.refs},
            routing=self.routing,
            ones=(),
            counts_rows=None,
            sync=False,
            depth_max=2,
            compact_rows=1000,
            compact_factor=2.0,
            passes_on=True,
            until_ms=until_ms,
        )
        found: list[RunRef] = []
        for instance, mine in enumerate(rows):
            self.attempt += 1
            signed = mine.set_column(0, HASH, mine.column(HASH).view(pa.int64()))
            attempt = Attempt(spec, instance, self.attempt)
            attempt.process(iter([signed]))
            results = list(attempt.going_on())
            report = attempt.finish()
            found.extend(report.runs[MAIN])
            self.counted += report.rows
            for batch in results:
                for key, start, n in zip(*(batch.column(name).to_pylist() for name in ("k", WINDOW, "n")), strict=True):
                    self.told.setdefault((key, start), []).append(n)
        live_from = self.window.live_from((until_ms or self.watermark_ms) * 1000)
        self.refs = tuple(ref for ref in join(found) if ref.sub_max is None or ref.sub_max >= live_from)


def expected(rows: list[list[Row]], window: TimeWindow) -> tuple[Counter[tuple[int, int]], int]:
    """All windows with the rows that came in time for them, and the watermark after the last batch."""
    windows: Counter[tuple[int, int]] = Counter()
    watermark_us = seen_us = 0
    for batch in rows:
        for key, ts in batch:
            last = ts - (ts - window.offset_us) % window.advance_us
            # A row is late when all its windows are over; in a window that is over, a row that is not late counts no more.
            starts = [s for s in range(last, ts - window.size_us, -window.advance_us) if s > ts - window.size_us]
            for start in starts:
                if start + window.size_us > watermark_us:
                    windows[key, start] += 1
        seen_us = max([seen_us, *(ts for _, ts in batch)])
        watermark_us = max(watermark_us, (seen_us - DELAY_US) // 1000 * 1000)
    return windows, watermark_us


WINDOWS = [TimeWindow(6000, 2000), TimeWindow(5000, 2000, 1000), TimeWindow(4000, 4000), TimeWindow(10_000, 1000)]


@given(st.integers(0, 10**9), st.sampled_from(WINDOWS), st.sampled_from([OutputMode.APPEND, OutputMode.UPDATE]))
@settings(max_examples=examples(25), deadline=None)
def test_windows_are_those_of_an_undisturbed_run(seed: int, window: TimeWindow, mode: OutputMode) -> None:
    random = Random(seed)
    batches: list[list[Row]] = []
    with TemporaryDirectory() as folder:
        engine = Engine(Path(folder), window, mode, Routing.even(random.randint(1, 3)))
        for at in range(12):
            match random.randint(0, 3):
                case 0:
                    engine.recreate(engine.routing.rescaled(random.randint(1, 4)))
                case 1:
                    lo = random.randrange(SLOTS - 600)
                    engine.recreate(engine.routing.moved([(lo, lo + 600)], random.randrange(engine.routing.instances)))
                case 2 if random.random() < 0.3:
                    # State recreation instead: the window recreation in progress is aborted.
                    engine.routing = engine.routing.rescaled(random.randint(1, 4))
            times = [at * 2000 + 10_000 + random.randint(-4000, 2500) for _ in range(40)]
            batches.append([(random.randrange(KEYS), ts) for ts in times])
            engine.batch(batches[-1])
        windows, watermark_us = expected(batches, window)
        if mode is OutputMode.APPEND:
            closed = {place: [n] for place, n in windows.items() if place[1] + window.size_us <= watermark_us}
            assert engine.told == closed
        else:
            assert {place: found[-1] for place, found in engine.told.items()} == dict(windows)
        assert engine.counted == sum(map(len, batches)), "rows that go to two owners are counted once"


def test_no_state_moves_and_the_end_comes_with_the_window(tmp_path: Path) -> None:
    engine = Engine(tmp_path, TimeWindow(6000, 2000), OutputMode.APPEND, Routing.even(1))
    engine.batch([(key, 10_000) for key in range(KEYS)])
    files = {ref.file for ref in engine.refs}
    engine.recreate(engine.routing.rescaled(2))
    (recreation,) = engine.routing.recreations
    assert (recreation.last_us, recreation.switch_us, recreation.end_us) == (10_000, 12_000, 16_000)
    old, new = engine.routing.parts[2:]
    assert {ref.file for ref in old.own(engine.refs)} == files
    assert new.own(engine.refs) == []
    for ts in (12_500, 14_500, 18_500):
        assert engine.routing.recreations
        engine.batch([(key, ts) for key in range(KEYS)])
    assert engine.watermark_ms * 1000 < recreation.end_us
    engine.batch([(key, 21_500) for key in range(KEYS)])
    engine.batch([])
    assert not engine.routing.recreations
    assert engine.told[3, 10_000] == [3], "12500 and 14500 count for the old owner's last window too"
    assert engine.told[3, 12_000] == [2]
