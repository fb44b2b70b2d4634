"""Sinks, and what the query handle reports."""

from __future__ import annotations

import itertools
import json
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import headrace as hr
from headrace.api.query import HeadraceQuery
from headrace.api.writer import StreamWriter
from headrace.errors import BatchFailedError, QueryError, SinkError
from headrace.runtime import gate, lifetime
from tests.crash.driver import SCHEMA
from tests.crash.harness import difference, in_order, write_input

pytestmark = pytest.mark.spark

FILES = 3
_names = itertools.count()


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_input(tmp_path_factory.mktemp("sinks") / "input", FILES, seed=21)


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    return str(tmp_path / "checkpoint")


def rows(spark: SparkSession, source: Path) -> hr.Stream:
    return hr.stream(spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(source)))


def distinct(spark: SparkSession, source: Path) -> hr.Stream:
    """Appends: each pair once."""
    return rows(spark, source).select("k", (F.col("v") * 20).cast("int").alias("part")).dropDuplicates()


def counted(spark: SparkSession, source: Path) -> hr.Stream:
    """Updates: a count and a sum per key."""
    return rows(spark, source).groupBy("k").agg(F.count("*").alias("n"), F.sum("v").alias("s"))


def batch_distinct(spark: SparkSession, source: Path) -> list[tuple[Any, ...]]:
    frame = spark.read.schema(SCHEMA).parquet(str(source))
    return rows_of(frame.select("k", (F.col("v") * 20).cast("int").alias("part")).distinct())


def batch_counted(spark: SparkSession, source: Path) -> list[tuple[Any, ...]]:
    return rows_of(spark.read.schema(SCHEMA).parquet(str(source)).groupBy("k").agg(F.count("*").alias("n"), F.sum("v").alias("s")))


def rows_of(frame: DataFrame) -> list[tuple[Any, ...]]:
    return in_order(frame.toPandas())


def fresh_name() -> str:
    return f"sink_table_{next(_names)}"


def finish(writer: StreamWriter, checkpoint: str) -> HeadraceQuery:
    query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    query.awaitTermination()
    return query


def test_files(spark: SparkSession, source: Path, tmp_path: Path, checkpoint: str) -> None:
    """Every format of files, as sinks of one query."""
    kinds, stream = ("parquet", "json", "csv", "orc"), distinct(spark, source)
    writers = [stream.writeStream.format(kind).option("path", str(tmp_path / kind)).option("header", True) for kind in kinds]
    hr.start(*writers, checkpointLocation=checkpoint, availableNow=True).awaitTermination()
    wanted = batch_distinct(spark, source)
    for kind in kinds:
        back = spark.read.format(kind).schema("k long, part int").option("header", True).load(str(tmp_path / kind))
        assert not difference(rows_of(back), wanted)
        assert (tmp_path / kind / "_spark_metadata" / str(FILES - 1)).exists()


def test_files_in_folders_by_column(spark: SparkSession, source: Path, tmp_path: Path, checkpoint: str) -> None:
    out = tmp_path / "out"
    finish(distinct(spark, source).writeStream.format("parquet").partitionBy("part").option("path", str(out)), checkpoint)
    back = spark.read.parquet(str(out))
    assert not difference(rows_of(back.select("k", "part")), batch_distinct(spark, source))
    assert {p.name for p in out.iterdir() if p.name.startswith("part=")} >= {"part=0", "part=19"}


@pytest.mark.parametrize("mode", ["update", "complete"])
def test_files_only_append(spark: SparkSession, source: Path, tmp_path: Path, checkpoint: str, mode: str) -> None:
    writer = counted(spark, source).writeStream.format("parquet").option("checkpointLocation", checkpoint).outputMode(mode)
    with pytest.raises(SinkError, match="append"):
        writer.start(str(tmp_path / "out"))
    assert not Path(checkpoint).exists(), "a query that was refused leaves nothing"


def test_files_need_a_path_and_known_columns(spark: SparkSession, source: Path, tmp_path: Path, checkpoint: str) -> None:
    writer = distinct(spark, source).writeStream.format("parquet").option("checkpointLocation", checkpoint)
    with pytest.raises(SinkError, match="path"):
        writer.start()
    with pytest.raises(SinkError, match="nowhere"):
        writer.partitionBy("nowhere").start(str(tmp_path / "out"))


def test_rows_without_a_stateful_operator_are_written_too(spark: SparkSession, source: Path, tmp_path: Path, checkpoint: str) -> None:
    stream = rows(spark, source).select("k", (F.col("v") * 2).alias("twice"))
    finish(stream.writeStream.format("parquet").option("path", str(tmp_path / "out")), checkpoint)
    wanted = spark.read.schema(SCHEMA).parquet(str(source)).select("k", (F.col("v") * 2).alias("twice"))
    assert difference(rows_of(spark.read.parquet(str(tmp_path / "out"))), rows_of(wanted)) == ""
    with pytest.raises(QueryError, match="append or update"):
        finish(stream.writeStream.format("noop").outputMode("complete"), checkpoint + "2")


def test_a_query_needs_a_checkpoint(spark: SparkSession, source: Path, tmp_path: Path) -> None:
    with pytest.raises(QueryError, match="checkpointLocation"):
        distinct(spark, source).writeStream.format("parquet").start(str(tmp_path / "out"))


@pytest.mark.extra
def test_memory_append(spark: SparkSession, source: Path, checkpoint: str) -> None:
    name = fresh_name()
    finish(distinct(spark, source).writeStream.format("memory").queryName(name), checkpoint)
    assert not difference(rows_of(spark.table(name)), batch_distinct(spark, source))


def test_memory_update_has_every_change(spark: SparkSession, source: Path, checkpoint: str) -> None:
    name = fresh_name()
    finish(counted(spark, source).writeStream.format("memory").outputMode("update").queryName(name), checkpoint)
    table = spark.table(name)
    latest = table.groupBy("k").agg(F.max("n").alias("n"), F.max_by("s", "n").alias("s"))
    assert not difference(rows_of(latest), batch_counted(spark, source))
    assert table.count() > latest.count()


def test_memory_complete_has_the_last_answer(spark: SparkSession, source: Path, checkpoint: str) -> None:
    name = fresh_name()
    finish(counted(spark, source).writeStream.format("memory").outputMode("complete").queryName(name), checkpoint)
    assert not difference(rows_of(spark.table(name)), batch_counted(spark, source))


def test_memory_needs_a_name(spark: SparkSession, source: Path, checkpoint: str) -> None:
    with pytest.raises(SinkError, match="queryName"):
        finish(distinct(spark, source).writeStream.format("memory"), checkpoint)


def test_console(spark: SparkSession, source: Path, checkpoint: str, capfd: pytest.CaptureFixture[str]) -> None:
    writer = counted(spark, source).writeStream.format("console").outputMode("update").option("numRows", 3)
    finish(writer, checkpoint)
    printed = capfd.readouterr().out
    assert [f"Batch: {version}" in printed for version in range(FILES)] == [True] * FILES
    assert re.search(r"\| *k\| *n\| *s\|", printed)
    assert "only showing top 3 rows" in printed


def test_noop_computes_and_keeps_nothing(spark: SparkSession, source: Path, checkpoint: str) -> None:
    query = finish(counted(spark, source).writeStream.format("noop").outputMode("update"), checkpoint)
    assert not difference(rows_of(query.state().select("k", "n", "s")), batch_counted(spark, source))
    assert [p for p in query.recentProgress if p["headrace"]["rowsOut"] == 0] == []


def test_any_batch_format_by_name(spark: SparkSession, source: Path, tmp_path: Path, checkpoint: str) -> None:
    """Here one that has a class name only; it is appended to, without a sink's log."""
    out = str(tmp_path / "out")
    name = "org.apache.spark.sql.execution.datasources.v2.parquet.ParquetDataSourceV2"
    finish(distinct(spark, source).writeStream.format(name).option("path", out), checkpoint)
    assert not difference(rows_of(spark.read.parquet(out)), batch_distinct(spark, source))
    assert not (tmp_path / "out" / "_spark_metadata").exists()


@pytest.fixture
def table(spark: SparkSession, tmp_path: Path) -> Iterator[tuple[str, Path]]:
    name = fresh_name()
    yield name, tmp_path / "table"
    spark.sql(f"DROP TABLE IF EXISTS {name}")


def test_to_table(spark: SparkSession, source: Path, checkpoint: str, table: tuple[str, Path]) -> None:
    name, path = table
    writer = distinct(spark, source).writeStream.option("checkpointLocation", checkpoint).option("path", str(path))
    query = writer.trigger(availableNow=True).toTable(name)
    query.awaitTermination()
    spark.catalog.refreshTable(name)
    assert not difference(rows_of(spark.table(name)), batch_distinct(spark, source))


def test_foreach_batch_has_contiguous_ids_and_replays_under_the_same(spark: SparkSession, source: Path, checkpoint: str) -> None:
    seen: list[tuple[int, list[tuple[Any, ...]]]] = []
    failing = {1}

    def take(frame: DataFrame, version: int) -> None:
        if version in failing:
            failing.remove(version)
            raise RuntimeError("the sink is down")
        seen.append((version, rows_of(frame)))

    def writer() -> StreamWriter:
        return counted(spark, source).writeStream.outputMode("update").foreachBatch(take)

    with pytest.raises(BatchFailedError, match="the sink is down"):
        finish(writer(), checkpoint)
    assert [version for version, _ in seen] == [0]
    query = finish(writer(), checkpoint)
    assert [version for version, _ in seen] == list(range(FILES))
    assert [p["headrace"]["replayed"] for p in query.recentProgress] == [True, False]
    latest = {row[0]: row for _, changed in seen for row in changed}
    assert not difference(sorted(latest.values(), key=str), sorted(batch_counted(spark, source), key=str))


def test_foreach_batch_wants_a_function(spark: SparkSession, source: Path) -> None:
    with pytest.raises(QueryError, match="function"):
        counted(spark, source).writeStream.foreachBatch("print")  # type: ignore[arg-type]


def test_one_trigger_of_a_known_kind(spark: SparkSession, source: Path) -> None:
    writer = counted(spark, source).writeStream
    with pytest.raises(QueryError, match="one trigger"):
        writer.trigger(processingTime="1 second", availableNow=True)
    with pytest.raises(QueryError, match="one trigger"):
        writer.trigger()
    with pytest.raises(QueryError, match="continuous"):
        writer.trigger(continuous="1 second")
    with pytest.raises(QueryError, match="append, update or complete"):
        writer.outputMode("upsert")


def test_as_much_progress_is_kept_as_spark_keeps(spark: SparkSession, source: Path, checkpoint: str) -> None:
    own = spark.newSession()
    own.conf.set("spark.sql.streaming.numRecentProgressUpdates", "2")
    writer = counted(own, source).writeStream.format("noop").outputMode("complete").option("checkpointLocation", checkpoint)
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    assert [p["batchId"] for p in query.recentProgress] == [FILES - 2, FILES - 1]


def test_the_handle_of_a_running_query(spark: SparkSession, source: Path, checkpoint: str, capsys: pytest.CaptureFixture[str]) -> None:
    name = fresh_name()
    writer = counted(spark, source).writeStream.format("memory").outputMode("complete").queryName(name)
    query = writer.option("checkpointLocation", checkpoint).trigger(processingTime="100 milliseconds").start()
    try:
        query.processAllAvailable()
        assert query.isActive
        assert query.name == name
        assert query.exception() is None
        assert query.awaitTermination(timeout=1) is False
        assert {"message", "isDataAvailable", "isTriggerActive"} <= set(query.status)
        assert not difference(rows_of(spark.table(name)), batch_counted(spark, source))
        last = query.lastProgress
        assert last is not None
        assert [p["batchId"] for p in query.recentProgress] == list(range(FILES))
        assert (last["batchId"], last.batchId, last["id"], last["runId"]) == (FILES - 1, FILES - 1, query.id, query.runId)
        assert json.loads(last.json)["headrace"]["version"] == FILES - 1
        query.explain()
        assert "instance 0: slots" in capsys.readouterr().out
        query.explain(extended=True)
    finally:
        query.stop()
    assert not query.isActive
    assert query.exception() is None
    assert query.awaitTermination(timeout=5) is True
    query.awaitTermination()

    again = writer.start()
    try:
        again.processAllAvailable()
        assert again.id == query.id
        assert again.runId != query.runId
    finally:
        again.stop()


def test_stop_lets_the_running_batch_finish(spark: SparkSession, source: Path, checkpoint: str) -> None:
    inside, done = threading.Event(), threading.Event()

    def slow(frame: DataFrame, version: int) -> None:
        inside.set()
        time.sleep(0.5)
        frame.count()
        done.set()

    writer = counted(spark, source).writeStream.outputMode("update").foreachBatch(slow).option("checkpointLocation", checkpoint)
    query = writer.trigger(processingTime="0 seconds").start()
    assert inside.wait(60)
    query.stop()
    assert done.is_set()
    assert query.exception() is None
    assert query.awaitTermination() is None


def test_progress_carries_what_policies_need(spark: SparkSession, source: Path, checkpoint: str) -> None:
    stream = rows(spark, source).withWatermark("ts", "10 seconds")
    windowed = stream.groupBy("k", F.window("ts", "20 seconds")).agg(F.avg("v").alias("a"))
    name = fresh_name()
    query = finish(windowed.writeStream.format("memory").queryName(name).option("headrace.instances", 2), checkpoint)
    files = [spark.read.schema(SCHEMA).parquet(str(path)).count() for path in sorted(source.iterdir())]
    for progress, count in zip(query.recentProgress, files, strict=True):
        ours = progress["headrace"]
        assert [i["instance"] for i in ours["instances"]] == [0, 1]
        for instance in ours["instances"]:
            assert instance["keysTouched"] > 0
            assert instance["cpuSeconds"] > 0
            assert instance["wallSeconds"] >= 0.5 * instance["cpuSeconds"]
            assert instance["stateBytes"] > 0
            assert instance["runs"] > 0
            assert sum(instance["rowsPerSlot"].values()) == instance["rows"]
        assert sum(i["rows"] for i in ours["instances"]) == count == progress["numInputRows"]
        assert {"plan", "job", "commit", "deliver"} <= set(ours["phasesMs"])
        assert ours["batchMs"] >= ours["phasesMs"]["job"]
        assert "rows" in ours["backlog"]
        late = sum(i["rowsLate"] for i in ours["instances"])
        assert ours["shareDelivered"] == pytest.approx(1 - late / count, abs=0.001)
        assert ours["latencyMs"]["arrivalMax"] >= ours["latencyMs"]["arrivalMin"] > 0
        assert progress["stateOperators"][0]["numRowsTotal"] > 0
        assert progress["eventTime"]["watermark"].endswith("Z")
        json.dumps(progress)
    dropped = sum(p["stateOperators"][0]["numRowsDroppedByWatermark"] for p in query.recentProgress)
    assert dropped == sum(i["rowsLate"] for p in query.recentProgress for i in p["headrace"]["instances"]) > 0


def test_a_batch_that_may_not_begin_is_answered_before_its_connection_is_closed(
    spark: SparkSession, source: Path, checkpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next batch waits at the gate while the query stops. Spark calls the query ended before that batch has its answer."""
    monkeypatch.setattr(gate, "HOLD_S", 0.3)
    monkeypatch.setattr(lifetime, "LOOK_S", 0.001)
    stop_now = lifetime.QueryLifetime.stop_now
    # So late that the next batch has reached the gate.
    monkeypatch.setattr(lifetime.QueryLifetime, "stop_now", lambda self: (time.sleep(1.0), stop_now(self)))
    inside = threading.Event()

    def slow(frame: DataFrame, version: int) -> None:
        inside.set()
        time.sleep(0.2)

    writer = counted(spark, source).writeStream.outputMode("update").foreachBatch(slow).option("checkpointLocation", checkpoint)
    query = writer.trigger(processingTime="0 seconds").start()
    assert inside.wait(60)
    query.stop()
    time.sleep(0.5)
    assert query.exception() is None
