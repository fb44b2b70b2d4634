"""The checkpoint's folder goes away in the middle of a batch and comes back: the query waits, and goes on as if nothing had happened."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import headrace as hr

pytestmark = pytest.mark.spark

AWAY_S = 1.0
STRIKE = -1
"""The value of a row that takes the folder away, when a task sees it."""


class Store:
    """A checkpoint's folder that is taken away, and brought back after a while."""

    def __init__(self, work: Path) -> None:
        self.place, self.hidden = work / "checkpoint", work / "hidden"
        self.taken = 0
        self._ended = threading.Event()
        threading.Thread(target=self._bring_back, daemon=True).start()

    def take_away(self) -> None:
        self.place.rename(self.hidden)

    def _bring_back(self) -> None:
        while not self._ended.wait(0.01):
            if self.hidden.exists():
                self.taken += 1
                time.sleep(AWAY_S)
                self.hidden.rename(self.place)

    def end(self) -> None:
        self._ended.set()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = Store(tmp_path)
    yield made
    made.end()


@pytest.mark.parametrize(
    ("moment", "seconds"),
    [
        ("task", "0"),
        ("delivery", "100000"),
        pytest.param("task", "100000", marks=pytest.mark.extra),
        pytest.param("delivery", "0", marks=pytest.mark.extra),
        pytest.param("end", "0", marks=pytest.mark.extra),
        pytest.param("end", "100000", marks=pytest.mark.extra),
    ],
)
def test_the_query_waits_and_goes_on(spark: SparkSession, tmp_path: Path, store: Store, moment: str, seconds: str) -> None:
    source, place, hidden = tmp_path / "in", str(store.place), str(store.hidden)
    source.mkdir()
    rows: list[tuple[int, int]] = []
    got: dict[int, tuple[int, int]] = {}
    armed = [moment]

    def strike(value: int) -> int:
        # In a Python worker; the first attempt at the task takes the folder away.
        if value == STRIKE and not (source.parent / "struck").exists():
            (source.parent / "struck").touch()
            os.rename(place, hidden)
        return value

    def take(totals: DataFrame, version: int) -> None:
        got.update({row.k: (row.n, row.s) for row in totals.collect()})
        if version == 2 and moment == "delivery" and armed:
            # The sink that comes next needs staged files.
            armed.clear()
            store.take_away()

    def take_last(_: DataFrame, version: int) -> None:
        if version == 2 and moment == "end" and armed:
            armed.clear()
            store.take_away()

    seen = F.udf(lambda value: strike(value), "long")

    def feed(more: list[tuple[int, int]]) -> dict[str, Any]:
        rows.extend(more)
        path = tmp_path / "next.parquet"
        pq.write_table(pa.table({"k": [k for k, _ in more], "v": [v for _, v in more]}), path)
        path.rename(source / f"{len(rows):05d}.parquet")
        query.processAllAvailable()
        progress = query.lastProgress
        assert progress is not None
        found: dict[str, Any] = progress["headrace"]
        return found

    read = hr.stream(spark.readStream.schema("k long, v long").option("maxFilesPerTrigger", 1).parquet(str(source)))
    totals = read.select("k", seen("v").alias("v")).groupBy("k").agg(F.count("*").alias("n"), F.sum("v").alias("s"))
    every = read.filter("k >= 0").writeStream.format("parquet").option("path", str(tmp_path / "out"))
    last = totals.writeStream.outputMode("update").foreachBatch(take_last)
    first = totals.writeStream.outputMode("update").foreachBatch(take).option("headrace.checkpointSeconds", seconds)
    query = hr.start(first, every, last, checkpointLocation=place)
    try:
        for at in range(2):
            feed([(k % 7, at + k) for k in range(50)])
        waited = feed([(1, STRIKE if moment == "task" else 5), (2, 6)])["storeWaitMs"]
        waited += feed([(k % 5, k) for k in range(20)])["storeWaitMs"]
        waited += feed([(3, 3)])["storeWaitMs"]
    finally:
        query.stop()
    assert store.taken == 1
    assert waited >= AWAY_S * 500
    counts, sums = Counter(k for k, _ in rows), Counter[int]()
    for k, v in rows:
        sums[k] += v
    assert got == {k: (n, sums[k]) for k, n in counts.items()}
    files = spark.read.parquet(str(tmp_path / "out")).collect()
    assert Counter((row.k, row.v) for row in files) == Counter(rows)
