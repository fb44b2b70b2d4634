"""Sources without rows: one that is idle holds nobody back, and time in which the query is down is no idle time."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from headrace.runtime import watermark
from tests.integration.timed_events import DELAY_S, END_S, EPOCH, Event, events, source, write


def busy_and_slow(spark: SparkSession, root: Path, name: str) -> Any:
    """A query over two sources, of which one goes by the name of slow."""
    busy, slow = (source(spark, root / each) for each in ("busy", "slow"))
    counts = busy.union(slow).groupBy(F.window("ts", "1 minute")).count()
    writer = counts.writeStream.format("parquet").option("path", str(root / "out")).queryName(name)
    return writer.option("headrace.idleSeconds", 300).option("checkpointLocation", str(root / "ckpt"))


def reached(rows: list[Event]) -> int:
    return int((EPOCH.timestamp() + max(row[1] for row in rows) - DELAY_S) * 1000)


def test_an_idle_source_does_not_hold_the_others_back(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = sorted(events(), key=lambda e: e[1])
    clock = [1000.0]
    monkeypatch.setattr(watermark, "clock_s", lambda: clock[0])
    monkeypatch.setattr(watermark, "IDLE_STEPS", 1)
    write(tmp_path / "busy", "0", rows[:80])
    write(tmp_path / "slow", "0", rows[:1])
    query = busy_and_slow(spark, tmp_path, "idle_source").start()
    seen = []
    try:
        for at, part in enumerate((rows[80:100], rows[100:200], rows[200:])):
            query.processAllAvailable()
            seen.append(query.lastProgress["headrace"]["idleSources"])
            clock[0] += 301
            write(tmp_path / "busy", str(at + 1), part)
        query.processAllAvailable()
        # Its clock starts when it is first missed: before that no source may have had rows, and nobody waited.
        assert seen == [[], [], [1]]
        assert query.lastProgress["headrace"]["watermarkMs"] == reached(rows)
    finally:
        query.stop()


@pytest.mark.extra
def test_time_in_which_a_query_is_down_is_no_idle_time(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two sources, an hour of downtime, and then the rows of one of them come a batch later than the other's: none is lost."""
    rows = sorted(events(), key=lambda e: e[1])
    early, late = [r for r in rows if r[1] < 300], [r for r in rows if r[1] >= 300]
    write(tmp_path / "busy", "0", early[::2])
    write(tmp_path / "slow", "0", early[1::2])
    query = busy_and_slow(spark, tmp_path, "before_downtime").start()
    query.processAllAvailable()
    query.stop()
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + 3600)
    query = busy_and_slow(spark, tmp_path, "after_downtime").start()
    try:
        write(tmp_path / "busy", "1", late[::2])
        query.processAllAvailable()
        write(tmp_path / "slow", "1", late[1::2])
        query.processAllAvailable()
        for name in ("busy", "slow"):
            write(tmp_path / name, "2", [("end", END_S, 0)])
            query.processAllAvailable()
    finally:
        query.stop()
    found = spark.read.parquet(str(tmp_path / "out")).agg(F.sum("count")).first()
    assert found is not None
    assert found[0] == len(rows)
