"""One run of Linear Road: the past as fast as possible, then the present at its own pace; answers get the time of their delivery."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import headrace as hr
from benchmarks.linear_road import segments
from benchmarks.linear_road.outputs import Outputs
from benchmarks.linear_road.paced import Pace, Prepared, appear, second
from examples.linear_road import INPUT, answers, diaries

Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float64]

KINDS = ("toll", "accident", "balance", "daily", "travel")
ANSWERS = "kind int, Time int, a int, b int, c long"
TELL_S = 10
"""The interval at which progress is printed."""
LIMITS_S = {"toll": 5, "accident": 5, "balance": 5, "daily": 10, "travel": 30}

DIARIES = "diaries"
"""The operators in the order in which the query builds them."""

_SHAPES = {
    "toll": ("VID", "LAV", "Toll"),
    "accident": ("VID", "AccSeg", "-1"),
    "balance": ("QID", "-1", "Bal"),
    "daily": ("QID", "-1", "Bal"),
    "travel": ("QID", "TravelTime", "Toll"),
}


@dataclass
class Answered:
    """The answers of a batch, and when they were delivered."""

    at: float
    rows: pa.Table


@dataclass
class Outcome:
    xways: int
    began: float = 0.0
    """The time of the clock when the first second of the present arrived."""
    past_rows: int = 0
    past_s: float = 0.0
    answered: list[Answered] = field(default_factory=list)
    batches: list[dict[str, Any]] = field(default_factory=list)
    late_s: float = 0.0
    last_at: float = field(default_factory=time.time)
    """When the answers of the last batch were delivered, or a later portion of the past arrived."""
    waited_s: float = 0.0
    """The age of its newest tuple at that time."""

    def table(self) -> pa.Table:
        """All answers, each with the second of its delivery."""
        if not any(len(each.rows) for each in self.answered):
            return self.answered[0].rows.append_column("at", pa.array([], pa.float64()))
        parts = [each.rows.append_column("at", pa.array(np.full(len(each.rows), each.at))) for each in self.answered if len(each.rows)]
        return pa.concat_tables(parts)


@contextmanager
def session(heap_gb: int) -> Iterator[SparkSession]:
    spark = hr.session(
        "linear road",
        spark__ui__enabled="false",
        spark__driver__memory=f"{heap_gb}g",
        spark__sql__session__timeZone="UTC",
        spark__sql__streaming__numRecentProgressUpdates="10000",
    )
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
    """Replicate one expressway, as SEEP did. Each copy has its own vehicles and questions."""
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
    """All answers in the same columns, so that those of a batch are delivered together."""
    found = None
    for kind, name in enumerate(KINDS):
        a, b, c = _SHAPES[name]
        told = each[name].selectExpr(f"{kind} AS kind", "Time", f"{a} AS a", f"{b} AS b", f"bigint({c}) AS c")
        found = told if found is None else found.union(told)
    assert found is not None
    return found


@dataclass
class Run:
    """One query. It gets the past portion by portion, as fast as it can process it, then new rows as they arrive."""

    spark: SparkSession
    day: Prepared
    folder: Path
    outcome: Outcome
    instances: int
    outputs: Outputs | None = None
    """The files to which answers are written."""
    _told_at: float = field(default_factory=time.monotonic)

    @property
    def source(self) -> Path:
        return self.folder / "source"

    def go(self) -> None:
        self.source.mkdir(parents=True)
        query = self._start()
        try:
            self._past(query)
            past = query.lastProgress
            print(f"linear road: {self.outcome.past_rows:,} tuples in {self.outcome.past_s:.0f} s", flush=True)
            if any(self.day.coming.iterdir()):
                print(f"linear road: {self.day.ends_s - self.day.begins_s:,} seconds at the road's own speed", flush=True)
                self._present(query)
            last = past["headrace"]["version"] if past else -1
            self.outcome.batches = [ours for each in query.recentProgress if (ours := each["headrace"])["version"] > last]
        finally:
            query.stop()

    def _past(self, query: hr.HeadraceQuery) -> None:
        """Process the past, to build up the state."""
        began = time.monotonic()
        for portion in self.day.portions():
            self.outcome.last_at = time.time()
            for path in portion:
                appear(path, self.source)
            query.processAllAvailable()
            self.outcome.past_rows += self.outcome.xways * sum(pq.read_metadata(path).num_rows for path in portion)
            self.outcome.past_s = time.monotonic() - began
            self._tell(f"second {second(portion[0]):,}, {self.outcome.past_rows:,} tuples in {self.outcome.past_s:.0f} s")

    def _present(self, query: hr.HeadraceQuery) -> None:
        """Process the present at the pace of the road."""
        pace = Pace(self.day, self.source)
        self.outcome.began = time.time()
        pace.start()
        while not pace.done.wait(1.0):
            if query.exception() is not None:
                break
            waited = time.time() - self.outcome.last_at + self.outcome.waited_s
            self._tell(f"second {time.time() - self.outcome.began:.0f}, answered up to {waited:.1f} s ago")
        query.processAllAvailable()
        self.outcome.late_s = pace.late_s

    def _tell(self, what: str) -> None:
        """Print the progress now and then."""
        if time.monotonic() - self._told_at >= TELL_S:
            self._told_at = time.monotonic()
            print(f"linear road: {what}", flush=True)

    def _start(self) -> hr.HeadraceQuery:
        read = self.spark.readStream.schema(INPUT).parquet(str(self.source))
        tuples = hr.stream(replicated(read, self.outcome.xways, self.day))
        told = in_one_stream(answers(tuples, self._diaries(), journeys(self.spark)))
        writer = told.writeStream.foreachBatch(self._note).option("checkpointLocation", str(self.folder / "checkpoint"))
        # Few vehicles ask for their expenditure, so one instance is enough; it needs no shuffle.
        writer = writer.option("headrace.instances", self.instances).option("headrace.instancesOf", f"{DIARIES}=1")
        return writer.trigger(processingTime="0 seconds").start()

    def _diaries(self) -> DataFrame:
        whole = diaries(self.spark.read.parquet(str(self.day.history)))
        if self.outcome.xways == 1:
            return whole
        copies = whole.withColumn("copy", F.explode(F.sequence(F.lit(0), F.lit(self.outcome.xways - 1))))
        return copies.selectExpr(f"VID + copy * {self.day.vids} AS VID", "copy AS XWay", "tolls")

    def _note(self, rows: DataFrame, _batch: int) -> None:
        found = rows.toArrow()
        now = time.time()
        self.outcome.answered.append(Answered(now, found))
        if self.outcome.began and len(found):
            self.outcome.waited_s = now - self.outcome.began + self.day.begins_s - float(pc.max(found["Time"]).as_py())
        if self.outputs is not None:
            self.outputs.write(found, self._emitted(found, now))
        self.outcome.last_at = now

    def _emitted(self, found: pa.Table, now: float) -> Floats:
        """In the road's time. Where tuples come as fast as they are taken, each comes with its portion."""
        if self.outcome.began:
            return np.full(len(found), now - self.outcome.began + self.day.begins_s)
        return np.asarray(found["Time"].to_numpy() + (now - self.outcome.last_at))


def waits(outcome: Outcome, day: Prepared) -> tuple[Ints, Floats, Ints]:
    """For each answer in the present: the second of its tuple, its response time and its kind."""
    told = outcome.table()
    seconds, kinds = told["Time"].to_numpy(), told["kind"].to_numpy()
    took = told["at"].to_numpy() - (outcome.began + seconds - day.begins_s)
    now = seconds >= day.begins_s
    return seconds[now], took[now], kinds[now]


def response_times(outcome: Outcome, day: Prepared) -> dict[str, tuple[float, float, float, float, int]]:
    """By kind of answer: median, 95th and 99th percentile and maximum of the response time, and the number of answers."""
    _, took, kinds = waits(outcome, day)
    found = {}
    for at, name in enumerate(KINDS):
        mine = took[kinds == at]
        if len(mine):
            median, p95, p99, worst = np.percentile(mine, [50, 95, 99, 100])
            found[name] = (float(median), float(p95), float(p99), float(worst), len(mine))
    return found


def where_the_time_goes(batches: list[dict[str, Any]]) -> Iterator[str]:
    """Medians over the batches: of the phases of a batch, and of the slowest instance of each operator."""
    if not batches:
        return
    rows, whole = (float(np.median([batch[name] for batch in batches])) for name in ("rows", "batchMs"))
    yield f"a batch, by the median: {rows:,.0f} tuples in {whole:,.0f} ms"
    for phase in batches[-1]["phasesMs"]:
        yield f"  {phase:<22} {np.median([batch['phasesMs'].get(phase, 0.0) for batch in batches]):>8,.0f} ms"
    slowest: dict[str, list[float]] = {}
    for batch in batches:
        walls: dict[str, float] = {}
        for each in batch["instances"]:
            walls[each["operator"]] = max(walls.get(each["operator"], 0.0), each["wallSeconds"] * 1000)
        for name, wall in walls.items():
            slowest.setdefault(name, []).append(wall)
    for name in sorted(slowest):
        yield f"    in the job: {name:<10} {np.median(slowest[name]):>8,.0f} ms"
