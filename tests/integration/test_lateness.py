"""Which rows are late when batches follow one another without a pause. It is the one place where Spark keeps rows that Headrace drops.

Spark judges a batch's rows by the watermark of two batches ago, since it closes windows a batch after the watermark has passed them.
Headrace closes them in the very batch that moves the watermark, so that nothing waits for another batch. A row for a window that has been
emitted can then only be dropped: to keep it would mean to emit the window again.
"""

from __future__ import annotations

import os
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import headrace as hr

pytestmark = pytest.mark.spark

EPOCH = datetime(2024, 1, 1, tzinfo=UTC)
DELAY_S, SIZE_S = 10, 10
BATCHES = [
    [("a", 5), ("a", 30), ("b", 30)],
    # The watermark is at 20. Spark still goes by 0 and keeps the row at 12.
    [("a", 12), ("b", 25), ("a", 60)],
    # At 50, and Spark goes by 20: late for both, late for Headrace only (twice), in time.
    [("a", 15), ("a", 45), ("b", 41), ("a", 55), ("a", 100)],
    [("a", 58), ("b", 1000)],
    [("b", 2000)],
]
ONLY_SPARK_KEEPS = 4


def kept(batches_behind: int) -> Counter[tuple[str, int]]:
    """Rows per key and window by the rule alone: a row is late if its window ends at or before the watermark of so many batches ago."""
    reached, counts = [0] * batches_behind, Counter[tuple[str, int]]()
    for batch in BATCHES:
        windows = [(k, second // SIZE_S * SIZE_S) for k, second in batch]
        counts.update((k, start) for k, start in windows if start + SIZE_S > reached[-batches_behind])
        reached.append(max(reached[-1], *(second - DELAY_S for _, second in batch)))
    return Counter({key: n for key, n in counts.items() if key[1] + SIZE_S <= reached[-1]})


def source(spark: SparkSession, folder: Path) -> DataFrame:
    folder.mkdir()
    for at, batch in enumerate(BATCHES):
        columns = {"k": [k for k, _ in batch], "ts": [EPOCH + timedelta(seconds=second) for _, second in batch]}
        path = folder / f"{at}.parquet"
        pq.write_table(pa.table(columns, schema=pa.schema([("k", pa.string()), ("ts", pa.timestamp("us", tz="UTC"))])), path)
        os.utime(path, (1_700_000_000 + at,) * 2)
    return spark.readStream.schema("k string, ts timestamp").option("maxFilesPerTrigger", 1).parquet(str(folder))


def counted(stream: Any) -> Any:
    return stream.withWatermark("ts", f"{DELAY_S} seconds").groupBy("k", F.window("ts", f"{SIZE_S} seconds")).count()


def answer(stream: Any, name: str, folder: Path) -> tuple[list[tuple[str, int, int]], Any]:
    writer = stream.writeStream.format("memory").queryName(name).option("checkpointLocation", str(folder))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    rows = stream.sparkSession.table(name).collect()
    starts = [int((r.window.start.replace(tzinfo=UTC) - EPOCH).total_seconds()) for r in rows]
    return [(r.k, start, r["count"]) for r, start in zip(rows, starts, strict=True)], query


def test_rows_that_only_spark_keeps_when_batches_follow_one_another(spark: SparkSession, tmp_path: Path) -> None:
    frame = source(spark, tmp_path / "in")
    theirs, _ = answer(counted(frame), "late_by_spark", tmp_path / "spark")
    ours, query = answer(counted(hr.stream(frame)), "late_by_headrace", tmp_path / "ours")
    for rows, batches_behind in ((theirs, 2), (ours, 1)):
        assert {(k, start): n for k, start, n in rows} == dict(kept(batches_behind))
        assert len({row[:2] for row in rows}) == len(rows), "no window is emitted twice"
    assert (kept(2) - kept(1)).total() == ONLY_SPARK_KEEPS
    assert not kept(1) - kept(2), "Headrace keeps no row that Spark drops"
    dropped = sum(instance["rowsLate"] for each in query.recentProgress for instance in each["headrace"]["instances"])
    assert dropped == sum(map(len, BATCHES)) - kept(1).total() - 1, "all rows but the last one, whose window is open, are accounted for"
