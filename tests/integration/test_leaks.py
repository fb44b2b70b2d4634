"""A query that runs for long leaves nothing behind: no files that no version names, and no threads when it ends."""

from __future__ import annotations

import gc
import json
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import headrace as hr
from headrace.api.stream import Stream
from headrace.compile import nodes
from headrace.runtime import loop
from headrace.runtime.checkpoint import Checkpoint
from tests.soak import Soak

pytestmark = pytest.mark.spark

BATCHES = 7
KEEP = 2


def unnamed(checkpoint: Checkpoint) -> set[tuple[str, str]]:
    named = set().union(*(checkpoint.manifests.read(version).files() for version in checkpoint.manifests.versions()))
    there = {(folder.name, path.name) for folder in (checkpoint.runs, checkpoint.staged) for path in folder.iterdir()}
    assert named <= there
    return there - named


def test_runs_that_were_merged_away_by_their_own_version(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every batch merges its own run into others, windows close at once, and the last versions alone are kept."""
    monkeypatch.setattr(loop, "EVERY", 1_000_000)
    source = tmp_path / "in"
    source.mkdir()
    for batch in range(BATCHES):
        lines = [json.dumps({"k": k, "t": f"2024-01-01 00:{batch:02d}:{k:02d}"}) for k in range(20)]
        (source / f"{batch:03d}.json").write_text("\n".join(lines))
    rows = spark.readStream.schema("k int, t timestamp").option("maxFilesPerTrigger", 1).json(str(source))
    events = hr.stream(rows.withWatermark("t", "30 seconds"))
    options: dict[str, Any] = {"headrace.depthMax": "2", "headrace.versionsToKeep": str(KEEP)}
    total = events.groupBy("k").count().writeStream.outputMode("update")
    minutes = events.groupBy("k", F.window("t", "1 minute")).count().writeStream.outputMode("append")
    writers = [writer.options(**options).foreachBatch(lambda rows, version: rows.count()) for writer in (total, minutes)]
    query = hr.start(*writers, checkpointLocation=str(tmp_path / "checkpoint"))
    query.processAllAvailable()
    checkpoint = Checkpoint.existing(str(tmp_path / "checkpoint"))
    left = unnamed(checkpoint)
    merged = sum(instance["rowsCompacted"] for p in query.recentProgress for instance in p["headrace"]["instances"])
    query.stop()
    assert len(checkpoint.manifests.versions()) == KEEP
    assert merged > 0
    assert not left


def test_queries_that_come_and_go_leave_no_threads(spark: SparkSession, tmp_path: Path) -> None:
    # The monitor is the program's: one that another query has started stays.
    there = set(threading.enumerate())

    def run(number: int) -> list[str]:
        source = tmp_path / f"in{number}"
        source.mkdir()
        (source / "0.json").write_text('{"k": 1}')
        rows = spark.readStream.schema("k int").json(str(source))
        writer = hr.stream(rows).groupBy("k").count().writeStream.outputMode("update").format("noop")
        query = writer.option("checkpointLocation", str(tmp_path / f"checkpoint{number}")).start()
        query.processAllAvailable()
        query.stop()
        query.awaitTermination()
        ours = [each for each in threading.enumerate() if each.name.startswith("headrace-") and each not in there]
        for each in ours:
            each.join(60)
        return [each.name for each in ours if each.is_alive()]

    assert run(0) == []
    before = threading.active_count()
    assert [run(number) for number in range(1, 4)] == [[], [], []]
    # Each was called by a thread of Spark's, over a connection of its own, to which a thread here listens until it is closed.
    until = time.monotonic() + 30
    while threading.active_count() > before and time.monotonic() < until:
        time.sleep(0.1)
    assert threading.active_count() <= before, threading.enumerate()


@pytest.mark.extra
@pytest.mark.slow
def test_a_short_soak_is_flat(spark: SparkSession, tmp_path: Path) -> None:
    """Twenty seconds of load with rescales: files and descriptors do not grow; memory takes longer to tell."""
    soak = Soak(spark, tmp_path, seconds=20, rate=2000, every_s=1, rescale_s=4)
    soak.run()
    grown = [finding for finding in soak.findings() if finding.metric in ("files", "unnamed", "manifests", "driver descriptors", "threads")]
    assert not [finding for finding in grown if finding.grows], grown


STREAMS: dict[str, Callable[[Stream], Stream]] = {
    "running": lambda s: s.groupBy("k").agg(F.sum("v"), F.max_by("v", "t")),
    "windows": lambda s: s.groupBy("k", F.window("t", "1 minute", "20 seconds")).agg(F.avg("v")),
    "sessions": lambda s: s.groupBy("k", F.session_window("t", "1 minute")).count(),
    "counted": lambda s: s.groupBy("k", hr.count_window(5, 2)).count(),
    "dropDuplicates": lambda s: s.dropDuplicates(["k", "t"]),
    "join": lambda s: s.join(s, "k", "left", within="10 seconds", where="v < v_right"),
    "join by Spark's condition": lambda s: s.join(s, "k", within="10 seconds", where="hash(v) < v_right"),
    "join of last rows": lambda s: s.join(s, "k", last=3),
    "crossJoin": lambda s: s.crossJoin(s, within="10 seconds", where="v < v_right"),
    "process": lambda s: s.groupBy("k").process(Nothing(), "v long", state=hr.State("v long", ttl="1 hour")),
    "chain": lambda s: s.groupBy("k", F.window("t", "1 minute")).count().select("k", "count").dropDuplicates(["k"]),
}


class Nothing(hr.KeyProcessor):
    def process(self, key: Any, rows: Any, state: Any) -> Any:
        return ()


@pytest.mark.parametrize("kind", STREAMS)
def test_a_plan_is_freed_with_its_node(kind: str, spark: SparkSession) -> None:
    """Plans are kept in a table that is weak by node. A plan that holds its node would keep both for ever."""
    rows = spark.readStream.format("rate").load().selectExpr("value % 7 AS k", "timestamp AS t", "value AS v")
    stream = STREAMS[kind](hr.stream(rows.withWatermark("t", "10 seconds")))
    node = weakref.ref(stream.rows.origin)
    assert node() in nodes._COMPILED
    before = len(nodes._COMPILED)
    del stream
    gc.collect()
    assert node() is None
    assert len(nodes._COMPILED) < before
