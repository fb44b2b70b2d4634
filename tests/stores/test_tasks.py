"""Instance tasks whose store is S3, without Spark: what they report is there, and another executor can go on from it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random

import numpy as np
import pyarrow as pa
import pytest

from benchmarks.store.proxy import Fault, Proxy
from headrace.ids import SLOTS, OperatorId, Version, WriterId
from headrace.operators.aggregate import RunningAggregate
from headrace.operators.kernel import MAIN, Moment, OutputMode, View
from headrace.operators.partials import Count
from headrace.runtime.staged import StagedReader
from headrace.runtime.task import Attempt
from headrace.runtime.task_files import leave_report, reports_left
from headrace.runtime.task_spec import TaskSpec
from headrace.state.durable import DurableStore
from headrace.state.layout import HASH, Layout
from headrace.state.routing import Routing
from headrace.state.run import RunReader, RunRef
from headrace.state.stores import open_store
from headrace.state.working import Working
from tests.stores.conftest import settings_of

LAYOUT = Layout((("k", pa.int64()),), (("p0", pa.int64()),))
OPERATOR = RunningAggregate(LAYOUT, (Count(),))
KEYS = 50


@pytest.fixture
def store(proxy: Proxy, place: str) -> DurableStore:
    random = Random(3)
    proxy.rule = lambda request: Fault(silent=random.random() < 0.05)
    return open_store(place, settings_of(proxy.port))


def spec(store: DurableStore, version: int, refs: tuple[RunRef, ...], passes_on: bool = False) -> TaskSpec:
    return TaskSpec(
        store=store,
        query="q",
        operator=OPERATOR,
        operator_id=OperatorId("op"),
        version=Version(version),
        writer=WriterId("1x1a2b3c4d"),
        moment=Moment(OutputMode.UPDATE, 0),
        refs={MAIN: refs},
        routing=Routing.even(2),
        ones=(),
        counts_rows=None,
        sync=True,
        depth_max=1,
        compact_rows=10_000,
        compact_factor=10.0,
        passes_on=passes_on,
        cache_bytes=1,
    )


def batch(keys: list[int], instance: int) -> pa.RecordBatch:
    hashed = np.array(keys, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mine = (hashed >> np.uint64(63)) == instance
    columns = {
        HASH: pa.array(hashed[mine]).view(pa.int64()),
        "k": pa.array(np.array(keys)[mine]),
        "p0": pa.array(np.ones(mine.sum(), np.int64)),
    }
    return pa.RecordBatch.from_arrays([columns[name] for name in LAYOUT.schema.names], names=LAYOUT.schema.names)


def test_what_tasks_report_is_in_the_store(store: DurableStore, tmp_path: Path) -> None:
    """Each version runs on an executor of its own. Compaction merges what a version has just written, which is staged all the same."""
    random, expected, refs, number = Random(1), Counter[int](), tuple[RunRef, ...](), 0
    for version in range(6):
        keys = [random.randrange(KEYS) for _ in range(200)]
        expected.update(keys)
        found: list[RunRef] = []
        told: dict[int, int] = {}
        for instance in range(2):
            number += 1
            attempt = Attempt(spec(store, version, refs), instance, number, Working(tmp_path / f"executor{version}-{instance}"))
            attempt.process(iter([batch(keys, instance)]))
            report = attempt.finish()
            found += report.runs[MAIN]
            for file in report.staged:
                assert store.size(f"{file.folder}/{file.file}") == file.bytes
                for rows in StagedReader(store, (), ("k", "p0"), str(tmp_path / "nothing")).read(file):
                    told |= dict(zip(rows.column("k").to_pylist(), rows.column("p0").to_pylist(), strict=True))
        assert told == {key: expected[key] for key in set(keys)}
        assert all(store.size(f"runs/{ref.file}") == ref.bytes for ref in found)
        refs = tuple(found)
    reader = RunReader(store.below("runs"), LAYOUT, Working(tmp_path / "reader"))
    state = View(reader, list(refs), ((0, SLOTS),)).scan(OPERATOR.store)
    read = {key: n for rows in state for key, n in zip(rows.column("k").to_pylist(), rows.column("p0").to_pylist(), strict=True)}
    assert read == dict(expected)


def test_reports_of_several_attempts(store: DurableStore, proxy: Proxy, tmp_path: Path) -> None:
    """No list is needed to find them, and the last attempt of an instance counts."""
    work = spec(store, 3, (), passes_on=True)
    proxy.lag_s = 60.0
    for number in (7, 4, 9, 5):
        leave_report(work, Attempt(work, number % 2, number, Working(tmp_path)).names, f"report {number}")
    assert sorted(reports_left(work)) == ["report 4", "report 9"]
    assert reports_left(work) == []
