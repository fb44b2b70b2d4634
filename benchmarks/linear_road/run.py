"""One run of Linear Road: the past as fast as it can be read, then the present at its own speed; every answer with its time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import headrace as hr
from benchmarks.linear_road import segments
from benchmarks.linear_road.paced import Pace, Prepared
from benchmarks.linear_road.road import history
from examples.linear_road import INPUT, answers

KINDS = ("toll", "accident", "balance", "daily", "travel")
ANSWERS = "kind int, Time int, a int, b int, c long"
LIMITS_S = {"toll": 5, "accident": 5, "balance": 5, "daily": 10, "travel": 30}

_SHAPES = {
    "toll": ("VID", "LAV", "Toll"),
    "accident": ("VID", "AccSeg", "-1"),
    "balance": ("QID", "-1", "Bal"),
    "daily": ("QID", "-1", "Bal"),
    "travel": ("QID", "TravelTime", "Toll"),
}


@dataclass
class Answered:
    """A batch's answers, and when they were there."""

    at: float
    rows: pa.Table


@dataclass
class Outcome:
    xways: int
    began: float = 0.0
    """The clock when the first second of the present came."""
    past_rows: int = 0
    past_s: float = 0.0
    answered: list[Answered] = field(default_factory=list)
    batches: list[dict[str, Any]] = field(default_factory=list)
    late_s: float = 0.0

    def table(self) -> pa.Table:
        """All answers, with the second in which each was there."""
        parts = [each.rows.append_column("at", pa.array(np.full(len(each.rows), each.at))) for each in self.answered if len(each.rows)]
        return pa.concat_tables(parts)


@contextmanager
def session(heap_gb: int) -> Iterator[SparkSession]:
    spark = hr.session("linear road", spark__ui__enabled="false", spark__driver__memory=f"{heap_gb}g", spark__sql__session__timeZone="UTC")
    spark.sparkContext.setLogLevel("ERROR")
    try:
        yield spark
    finally:
        spark.stop()


def journeys(spark: SparkSession) -> DataFrame:
    seconds, tolls = segments.totals()
    rows = [
        (dow + 1, hour, direction, seconds[dow, hour, direction].tolist(), tolls[dow, hour, direction].tolist())
        for dow, hour, direction in np.ndindex(seconds.shape[:3])
    ]
    return spark.createDataFrame(rows, "DOW int, hour int, Dir int, seconds array<double>, tolls array<int>")


def replicated(rows: DataFrame, xways: int, day: Prepared) -> DataFrame:
    """As many expressways as are wanted from one, as SEEP did: each has vehicles and questions of its own."""
    if xways == 1:
        return rows
    asks = F.col("QID") >= 0
    more = rows.withColumn("copy", F.explode(F.sequence(F.lit(0), F.lit(xways - 1))))
    return more.withColumns(
        {
            "XWay": F.when(F.col("XWay") >= 0, F.col("copy")).otherwise(F.col("XWay")),
            "VID": F.col("VID") + F.col("copy") * day.vids,
            "QID": F.when(asks, F.col("QID") + F.col("copy") * day.qids).otherwise(F.col("QID")),
        }
    ).drop("copy")


def in_one_stream(each: dict[str, hr.Stream]) -> hr.Stream:
    """All answers in the same columns, so that a batch's are delivered together."""
    found = None
    for kind, name in enumerate(KINDS):
        a, b, c = _SHAPES[name]
        told = each[name].selectExpr(f"{kind} AS kind", "Time", f"{a} AS a", f"{b} AS b", f"bigint({c}) AS c")
        found = told if found is None else found.union(told)
    assert found is not None
    return found


@dataclass
class Run:
    """One query on one checkpoint: first the past, a file a batch, then what comes, as much a batch as is there."""

    spark: SparkSession
    day: Prepared
    folder: Path
    outcome: Outcome
    instances: int

    @property
    def source(self) -> Path:
        return self.folder / "source"

    def past(self) -> None:
        """The state of the earlier minutes."""
        self.source.mkdir(parents=True)
        for path in sorted(self.day.past.iterdir()):
            (self.source / path.name).hardlink_to(path)
        began = time.monotonic()
        query = self._start({"maxFilesPerTrigger": "1"}, {"availableNow": True})
        query.awaitTermination()
        self.outcome.past_s = time.monotonic() - began
        self.outcome.past_rows = self.outcome.xways * sum(pq.read_metadata(path).num_rows for path in self.day.past.iterdir())

    def present(self) -> None:
        """At the road's own speed."""
        query = self._start({}, {"processingTime": "0 seconds"})
        try:
            query.processAllAvailable()
            pace = Pace(self.day, self.source)
            self.outcome.began = time.time()
            pace.start()
            while not pace.done.wait(1.0):
                if query.exception() is not None:
                    break
            query.processAllAvailable()
            self.outcome.began, self.outcome.late_s = pace.began, pace.late_s
            self.outcome.batches = [each["headrace"] for each in query.recentProgress]
        finally:
            query.stop()

    def _start(self, options: dict[str, str], trigger: dict[str, Any]) -> hr.HeadraceQuery:
        read = self.spark.readStream.schema(INPUT).options(**options).parquet(str(self.source))
        tuples = hr.stream(replicated(read, self.outcome.xways, self.day))
        told = in_one_stream(answers(tuples, self._history(), journeys(self.spark)))
        writer = told.writeStream.foreachBatch(self._keep).option("checkpointLocation", str(self.folder / "checkpoint"))
        return writer.option("headrace.instances", self.instances).trigger(**trigger).start()

    def _history(self) -> DataFrame:
        diary = self.folder / "history.parquet"
        if not diary.exists():
            pq.write_table(history(self.day.vids), diary)
        copies = F.explode(F.sequence(F.lit(0), F.lit(self.outcome.xways - 1)))
        rows = self.spark.read.parquet(str(diary)).withColumn("copy", copies)
        return rows.selectExpr(f"VID + copy * {self.day.vids} AS VID", "copy AS XWay", "Day", "Toll")

    def _keep(self, rows: DataFrame, _batch: int) -> None:
        found = rows.toArrow()
        self.outcome.answered.append(Answered(time.time(), found))


def response_times(outcome: Outcome, day: Prepared) -> dict[str, tuple[float, float, float, float, int]]:
    """Of each kind of answer to what came in the present: median, 95th and 99th percentile, the longest; and how many."""
    told = outcome.table()
    seconds, kinds = told["Time"].to_numpy(), told["kind"].to_numpy()
    took = told["at"].to_numpy() - (outcome.began + seconds - day.begins_s)
    found = {}
    for at, name in enumerate(KINDS):
        mine = took[(kinds == at) & (seconds >= day.begins_s)]
        if len(mine):
            median, p95, p99, worst = np.percentile(mine, [50, 95, 99, 100])
            found[name] = (float(median), float(p95), float(p99), float(worst), len(mine))
    return found
