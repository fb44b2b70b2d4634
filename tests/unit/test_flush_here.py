"""Which flushes the driver runs itself: those with few results, and never with users' code."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.ids import SLOTS, OperatorId, RunSeq, Version, WriterId
from headrace.operators.counted import WAITING as COUNTED_WAITING
from headrace.operators.counted import CountAggregate
from headrace.operators.kernel import MAIN, Moment, OutputMode
from headrace.operators.partials import Count
from headrace.operators.process import Process
from headrace.operators.session import SessionAggregate
from headrace.operators.shape import ProcessorShape, TimerClock
from headrace.operators.windowed import WindowedAggregate
from headrace.operators.windows import TimeWindow
from headrace.runtime.flush_here import close_here, closes_here
from headrace.runtime.task_spec import TaskSpec
from headrace.state.durable import FolderStore
from headrace.state.layout import HASH, SUB, Layout, Policy
from headrace.state.routing import Routing
from headrace.state.run import RunRef, write_run

S = 1_000_000
KEYS = (("k0", pa.int64()),)
VALUES = (("p0", pa.int64()),)


@dataclass
class Spec:
    """What of a task's orders the choice looks at."""

    operator: Any
    refs: dict[str, tuple[RunRef, ...]]
    moment: Moment
    until_ms: int
    driver_reads: bool = True


def spec(operator: Any, rows: int, store: str = MAIN, bytes_each: int = 40, until_s: int = 1000) -> Any:
    """State of the first hundred seconds; the watermark goes from 0 to ``until_s``."""
    ref = RunRef("f.arrow", rows * bytes_each, 0, rows, 1, sub_min=0, sub_max=100 * S)
    return Spec(operator, {store: (ref,)}, Moment(OutputMode.APPEND, 0), until_s * 1000)


def windows(size_s: int, advance_s: int) -> WindowedAggregate:
    layout = Layout(KEYS, VALUES, has_sub=True, policy=Policy.COMBINE)
    return WindowedAggregate(layout, (Count(),), TimeWindow(size_s * S, advance_s * S))


@pytest.mark.parametrize(
    ("what", "here"),
    [
        (spec(windows(60, 60), 300_000), True),
        (spec(windows(60, 1), 300_000), False),
        (spec(windows(60, 1), 10_000), True),
        # Few of the windows fall due.
        (spec(windows(60, 1), 300_000, until_s=2), True),
        (spec(windows(60, 60), 3_000_000), False),
        # Long values.
        (spec(windows(60, 60), 2_000, bytes_each=1 << 20), False),
        (spec(SessionAggregate(Layout(KEYS, VALUES, has_sub=True, policy=Policy.KEEP), (Count(),), S), 300_000), True),
        (spec(CountAggregate(KEYS, VALUES, (Count(),), 1000, 1), 300_000, COUNTED_WAITING), False),
        (spec(CountAggregate(KEYS, VALUES, (Count(),), 2, 1), 300_000, COUNTED_WAITING), True),
    ],
)
def test_what_a_flush_gives_decides(what: Any, here: bool) -> None:
    assert closes_here(what) is here


def test_a_flush_in_the_driver_can_be_done_again(tmp_path: Path) -> None:
    """A step runs again if an executor is lost, and the files of the first attempt are still there."""
    operator = windows(60, 60)
    for folder in ("runs", "staged"):
        (tmp_path / folder).mkdir()
    columns = {HASH: [1, 1 << 60], "k0": [1, 2], SUB: [0, 30 * S], "p0": [3, 4]}
    layout = operator.stores[MAIN].layout
    rows = pa.RecordBatch.from_pydict({name: columns[name] for name in layout.schema.names}, schema=layout.schema)
    ref = write_run(tmp_path / "runs", "r.arrow", rows, layout, seq=RunSeq(1), lo=0, hi=SLOTS, sync=False)
    task = TaskSpec(
        store=FolderStore(tmp_path),
        query="q",
        operator=operator,
        operator_id=OperatorId("aggregate"),
        version=Version(1),
        writer=WriterId("1xabc"),
        moment=Moment(OutputMode.APPEND, 0),
        refs={MAIN: (ref,)},
        routing=Routing.even(2),
        ones=(),
        counts_rows=None,
        sync=False,
        depth_max=4,
        compact_rows=100,
        compact_factor=1.0,
        passes_on=False,
        until_ms=100_000,
    )
    first, again = close_here(task), close_here(task)
    for reports in (first, again):
        assert sum(file.rows for report in reports for file in report.staged) == 2
    assert not {file.file for report in first for file in report.staged} & {file.file for report in again for file in report.staged}


def test_users_code_never_runs_in_the_driver() -> None:
    none = pa.schema([])
    shape = ProcessorShape(pa.schema([("k", pa.int64())]), none, none, none, (), TimerClock.EVENT, None, TimerClock.EVENT, (), "P", "here")
    assert closes_here(spec(Process(hr.KeyProcessor(), shape, True), 1, "timers")) is False


@pytest.mark.parametrize(("size_s", "advance_s"), [(60, 60), (60, 10), (7, 2), (1, 3)])
def test_no_row_is_in_more_windows_than_was_said(size_s: int, advance_s: int) -> None:
    window = TimeWindow(size_s * S, advance_s * S)
    for until_s in (5, 50, 200):
        most = window.count_over(0, 100 * S, 0, until_s * S)
        for pane in range(0, 100, 3):
            assert len(window.starts_between(pane * S, pane * S, 0, until_s * S)) <= most
