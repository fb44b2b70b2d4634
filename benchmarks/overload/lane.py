"""The lanes, one after the other in one session, whose code is warm after the closed loops that measure the capacity."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import headrace as hr
from benchmarks.overload.offering import Came, Feed
from benchmarks.overload.query import HEAVY, LIGHT, MAX_LOSS, WEIGHTS, aggregated, source
from benchmarks.top_k.offering import Taken
from headrace.bench.model import ROCKSDB
from headrace.bench.runner import PROVIDER, PROVIDERS
from headrace.errors import HeadraceError

OURS, RANDOM, SPARK = "ours, shedding", "ours, random drop at the source", "plain spark"
NAMES = (OURS, RANDOM, SPARK)
SCALE = 1_000_000
FEW = 5
"""Percent of the rows that a branch gets in the closed loops that measure what the other one costs."""
SOURCE = "the source"
"""In a closed loop: both branches get few rows, because the source drops the others."""
SOURCE_SEED = 7
"""The seed of the drop at the source."""

Totals = dict[str, dict[int, tuple[int, int]]]
"""By branch and key: rows, and the sum of their digests."""


@dataclass(frozen=True)
class Batch:
    """A batch of one branch."""

    id: int
    end_s: float
    thresholds: dict[str, int]
    """By branch: rows with a hash below it were kept. Without drops, all."""
    counted: dict[str, tuple[int, int]]
    """By branch: rows that arrived, and rows that were shed, as the progress says."""


@dataclass
class Outcome:
    """What one lane did."""

    name: str
    came: list[Came]
    began_s: float
    ended_s: float
    taken: dict[str, dict[str, int]] = field(default_factory=dict)
    """By branch and file: the batch that read it."""
    batches: dict[str, dict[int, Batch]] = field(default_factory=dict)
    """By branch."""
    totals: Totals = field(default_factory=dict)
    source_keep: int = SCALE
    """The lane that drops at the source keeps rows with a hash below this."""
    folder: str = ""
    """The folder of the source, as Spark names it."""
    late_s: float = 0.0
    decisions: list[str] = field(default_factory=list)
    lookup_us: float = 0.0


@contextmanager
def session(heap_gb: int) -> Iterator[SparkSession]:
    spark = hr.session(
        "overload",
        master="local[2]",
        spark__driver__memory=f"{heap_gb}g",
        spark__driver__host="127.0.0.1",
        spark__driver__bindAddress="127.0.0.1",
        spark__ui__enabled="false",
        spark__sql__session__timeZone="UTC",
        spark__sql__shuffle__partitions="2",
        spark__sql__streaming__numRecentProgressUpdates="10000",
    )
    spark.sparkContext.setLogLevel("OFF")
    spark.conf.set(PROVIDER, PROVIDERS[ROCKSDB])
    try:
        yield spark
    finally:
        spark.stop()


@dataclass
class Results:
    """What the sinks got."""

    totals: Totals = field(default_factory=lambda: {LIGHT: {}, HEAVY: {}})
    written: dict[str, dict[int, float]] = field(default_factory=lambda: {LIGHT: {}, HEAVY: {}})
    """By branch and batch: when its results were written."""

    def sink(self, branch: str) -> Callable[[DataFrame, int], None]:
        """Keeps the newest result of each key."""

        def write(rows: DataFrame, number: int) -> None:
            self.totals[branch].update({row.k: (row.rows, row.digest) for row in rows.collect()})
            self.written[branch][number] = time.time()

        return write


def started(
    spark: SparkSession, name: str, feed: Feed, work: Path, results: Results, branches: tuple[str, ...], **settings: Any
) -> list[Any]:
    """Start the query of a lane on these branches. Spark needs a query for each sink."""
    frame = source(spark, str(feed.folder))
    if name == SPARK:
        queries = []
        for branch in branches:
            # Spark's own drop of late or too many rows does not exist; it takes everything that has come.
            writer = aggregated(frame, branch).writeStream.outputMode("update").foreachBatch(results.sink(branch))
            queries.append(writer.option("checkpointLocation", str(work / branch)).start())
        return queries
    if (keep := settings.get("source_keep", SCALE)) < SCALE:
        frame = frame.filter(F.pmod(F.xxhash64(F.xxhash64("k", "v"), F.lit(SOURCE_SEED)), F.lit(SCALE)) < keep)
    stream, writers = hr.stream(frame), []
    for branch in branches:
        rows: Any = stream
        if settings.get("few") == branch:
            rows = rows.filter(F.pmod(F.xxhash64("k", "v"), F.lit(100)) < FEW)
        if settings.get("deadline_s"):
            rows = hr.shed(stream, max_loss=MAX_LOSS, by="random" if branch == LIGHT else "k")
        writer = aggregated(rows, branch).writeStream.outputMode("update").foreachBatch(results.sink(branch))
        if settings.get("deadline_s"):
            writer = writer.weight(WEIGHTS[branch]).deadline(f"{settings['deadline_s']} seconds")
        writers.append(writer)
    return [hr.start(*writers, checkpointLocation=str(work / "both"))]


def capacity(spark: SparkSession, work: Path, feed: Feed, few: str, seconds: float, batch_s: float, guess: float) -> float:
    """Files per second that the query can take in batches of this length, by the second half of a closed loop.

    A branch in `few` gets a twentieth of the rows. So what rows cost for each branch can be told from what they cost before.
    """
    keep = SCALE * FEW // 100 if few == SOURCE else SCALE
    (query,) = started(spark, OURS, feed, work, Results(), (LIGHT, HEAVY), few=few, source_keep=keep)
    try:
        taken = Taken(work / "both" / "sources" / "0")
        feed.closed(seconds, batch_s, guess, taken, lambda: query.isActive)
        if (failed := query.exception()) is not None:
            raise failed
        ends = sorted((each.end_s, each.id) for each in batches(query, None).values())
        ends = ends[min(len(ends) // 2, len(ends) - 2) :]
        if len(ends) < 2:
            raise HeadraceError(where="bench overload --calibration", wanted="time for several batches", found=f"{seconds:g} s")
        taken.count()
        read = sum(ends[0][1] < batch <= ends[-1][1] for batch in taken.batches.values())
        return read / (ends[-1][0] - ends[0][0])
    finally:
        query.stop()
        shutil.rmtree(work, ignore_errors=True)


def run(spark: SparkSession, name: str, work: Path, feed: Feed, seconds: float, files_per_s: float, **settings: Any) -> Outcome:
    """One lane: start the query, let it take a few batches, then offer files by the clock."""
    results = Results()
    queries = started(spark, name, feed, work, results, (LIGHT, HEAVY), **settings)
    try:
        # The first batches compile plans. They are checked, but not measured.
        for _ in range(4):
            feed.add()
            for query in queries:
                query.processAllAvailable()
        warm, began_s = len(feed.came), time.time()
        feed.open(seconds, files_per_s, lambda: all(query.isActive for query in queries))
        found = Outcome(name, feed.came[warm:], began_s, time.time(), late_s=feed.late_s)
        # What has come until now may take one more batch; what waits beyond that is not waited for.
        time.sleep(settings["grace_s"])
        for query in queries:
            if (failed := query.exception()) is not None:
                raise failed
            query.stop()
    finally:
        for query in queries:
            query.stop()
    branches = (LIGHT, HEAVY)
    for at, branch in enumerate(branches):
        query = queries[at if name == SPARK else 0]
        taken = Taken(work / (branch if name == SPARK else "both") / "sources" / "0")
        taken.count()
        found.taken[branch] = taken.batches
        # Spark may be stopped in the middle of a batch whose results are not written.
        known = batches(query, None if name == SPARK else branches)
        found.batches[branch] = {at: known.get(at, Batch(at, end_s, {}, {})) for at, end_s in results.written[branch].items()}
    found.totals = results.totals
    found.came = feed.came
    found.source_keep, found.folder = settings.get("source_keep", SCALE), f"file:{feed.folder.absolute()}"
    if name == OURS:
        found.decisions = [f"{each.at_s - began_s:.0f} s: {each.what}. {each.why}" for each in queries[0].decisions()]
        looked = [p["headrace"]["shedding"]["lookupUs"] for p in queries[0].recentProgress if p["headrace"]["shedding"]]
        found.lookup_us = max(looked, default=0.0)
    shutil.rmtree(work, ignore_errors=True)
    return found


def batches(query: Any, branches: tuple[str, ...] | None) -> dict[int, Batch]:
    """The batches of a query that have ended, by number; `branches` are those of the places of shedding, in their order."""
    found = {}
    for progress in query.recentProgress:
        if "durationMs" not in progress or "triggerExecution" not in progress["durationMs"]:
            continue
        end_s = datetime.fromisoformat(progress["timestamp"]).timestamp() + progress["durationMs"]["triggerExecution"] / 1000
        shedding = (progress["headrace"].get("shedding") if branches else None) or {"places": {}}
        places = {branch: shedding["places"].get(name) for branch, name in zip(branches or (), ("shed", "shed-2"), strict=False)}
        thresholds = {branch: each["threshold"] for branch, each in places.items() if each}
        counted = {branch: (each["arrived"], each["shed"]) for branch, each in places.items() if each}
        found[progress["batchId"]] = Batch(progress["batchId"], end_s, thresholds, counted)
    return found
