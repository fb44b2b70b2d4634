"""The rows of earlier batches, read again by Spark's log of offsets, are what ``foreachBatch`` got: in the run and after a restart."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

import headrace as hr
from headrace.compile.build import compile_flow
from headrace.config import Config
from headrace.errors import CheckpointError, SourceError, UnsupportedError
from headrace.operators.kernel import OutputMode
from headrace.spark.event_times import EventTimes, Nodes
from headrace.spark.plans import analyzed, frame_of
from headrace.spark.reread import BatchReader, unreplayable_sources, with_file_metadata
from headrace.spark.streaming import await_initialised, execution_of, planning_paused, query_session
from tests.integration.both import settings

pytestmark = pytest.mark.spark

SCHEMA = "id long, name string, ts timestamp"
Build = Callable[[SparkSession, Path], DataFrame]


def started(stream: DataFrame, checkpoint: Path, batch: Callable[[StreamingQuery, DataFrame, int], None], **trigger: Any) -> StreamingQuery:
    """Start a query whose ``foreachBatch`` knows the query."""
    known: list[StreamingQuery] = []
    is_known = threading.Event()

    def each(frame: DataFrame, number: int) -> None:
        is_known.wait(60)
        batch(known[0], frame, number)

    writer = stream.writeStream.foreachBatch(each).option("checkpointLocation", str(checkpoint))
    known.append(writer.trigger(**trigger).start())
    is_known.set()
    return known[0]


@dataclass(frozen=True)
class Got:
    """What a DataFrame had: its columns and its rows."""

    schema: StructType
    rows: list[str]

    @classmethod
    def of(cls, frame: DataFrame) -> Got:
        return cls(frame.schema, sorted(repr(row) for row in frame.collect()))


@dataclass
class Trial:
    """Runs a query several times on one checkpoint, and reads its earlier batches again inside of ``foreachBatch``."""

    spark: SparkSession
    folder: Path
    build: Build
    first: dict[int, Got] = field(default_factory=dict)
    """By batch: what ``foreachBatch`` got."""
    again: list[tuple[int, Got]] = field(default_factory=list)
    """Batches that were read again."""
    times: dict[int, Nodes] = field(default_factory=dict)
    """By batch: the event times that Spark's watermark nodes saw."""
    times_again: list[tuple[int, Nodes]] = field(default_factory=list)
    progress: list[dict[str, Any]] = field(default_factory=list)
    """What Spark reported of each batch."""

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint"

    def run(self, **trigger: Any) -> None:
        """Start the query, let it process everything, and end it. The first batch reads all earlier ones again, others only the last."""
        readers: list[BatchReader] = []

        def batch(query: StreamingQuery, frame: DataFrame, number: int) -> None:
            first_of_run = not readers
            if first_of_run:
                readers.append(BatchReader(execution_of(query), frame.sparkSession))
            for earlier in range(number) if first_of_run else (number - 1,):
                self.again.append((earlier, Got.of(readers[0].rows(earlier))))
                self.times_again.append((earlier, readers[0].event_times() if timed else ()))
            self.first[number] = Got.of(frame)
            self.times[number] = EventTimes().observed(execution_of(query)) if timed else ()

        stream = self.build(self.spark, self.folder)
        timed = "watermarkDelayMs" in stream.schema.json()
        query = started(stream, self.checkpoint, batch, **(trigger or {"availableNow": True}))
        if "processingTime" in trigger:
            query.processAllAvailable()
            query.stop()
        query.awaitTermination()
        self.progress += [json.loads(each.json) for each in query.recentProgress]

    def check(self, batches: int) -> None:
        """All batches that were read again have the rows, the columns and the event times that they had."""
        assert sorted(self.first) == list(range(batches))
        for number, got in self.again:
            assert got == self.first[number], f"batch {number}"
        for number, times in self.times_again:
            assert times == self.times[number], f"batch {number}"
        assert {number for number, _ in self.again} >= set(range(batches - 1))


def moment(second: int) -> datetime:
    return datetime.fromtimestamp(1_000_000 + second, UTC)


def parquet(folder: Path, *numbers: int) -> None:
    """One file of three rows for each number. The files are read in this order, because Spark sorts them by age."""
    folder.mkdir(parents=True, exist_ok=True)
    kinds = pa.schema({"id": pa.int64(), "name": pa.string(), "ts": pa.timestamp("us", "UTC")})
    for number in numbers:
        ids = [number * 10 + at for at in range(3)]
        columns = {"id": ids, "name": [f"n{each % 4}" for each in ids], "ts": [moment(each) for each in ids]}
        file = folder / f"{number}.parquet"
        pq.write_table(pa.table(columns, schema=kinds), file)
        os.utime(file, (1_700_000_000 + number, 1_700_000_000 + number))


def files(spark: SparkSession, folder: Path, **options: Any) -> DataFrame:
    folder.mkdir(parents=True, exist_ok=True)
    return spark.readStream.schema(SCHEMA).options(**{"maxFilesPerTrigger": 1, **options}).parquet(str(folder))


def two_runs(spark: SparkSession, folder: Path, build: Build, **trigger: Any) -> Trial:
    """A run over three files, and another over two more."""
    trial = Trial(spark, folder, build)
    parquet(folder / "in", 0, 1, 2)
    trial.run(**trigger)
    parquet(folder / "in", 3, 4)
    trial.run(**trigger)
    return trial


def lines(folder: Path, name: str, *rows: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("".join(f"{row}\n" for row in rows))


def test_the_time_of_the_batch(spark: SparkSession, tmp_path: Path) -> None:
    def build(spark: SparkSession, folder: Path) -> DataFrame:
        times = [F.current_timestamp().alias("now"), F.current_date().alias("today"), F.localtimestamp().alias("local")]
        rows = files(spark, folder / "in").withWatermark("ts", "2 seconds").select("id", "ts", *times, F.unix_timestamp().alias("unix"))
        return rows.where("id % 3 != 1 and now > timestamp'2020-01-01'")

    before = dict(spark.conf.getAll)
    trial = two_runs(spark, tmp_path, build)
    trial.check(5)
    assert len({row.split("now=")[1] for got in trial.first.values() for row in got.rows}) == 5
    assert trial.times == {number: (1_000_000_000 + 10_000 * number,) for number in range(5)}
    assert dict(spark.conf.getAll) == before
    # Spark counts the rows of each batch, and its own watermark moves as if nothing had been read again.
    reported = [each for each in trial.progress if each["numInputRows"]]
    assert [each["numInputRows"] for each in reported] == [3] * 5
    assert [each["eventTime"]["watermark"][:19] for each in reported][-1] == "1970-01-12T13:47:10"


@pytest.mark.parametrize("trigger", [{"once": True}, {"processingTime": "0 seconds"}], ids=["once", "continuously"])
def test_other_triggers(spark: SparkSession, tmp_path: Path, trigger: dict[str, Any]) -> None:
    trial = two_runs(spark, tmp_path, lambda spark, folder: files(spark, folder / "in"), **trigger)
    trial.check(2 if "once" in trigger else 5)


def test_sources_without_rows_in_a_batch_or_in_any_so_far(spark: SparkSession, tmp_path: Path) -> None:
    def build(spark: SparkSession, folder: Path) -> DataFrame:
        (folder / "late").mkdir(exist_ok=True)
        reader = spark.readStream.schema("id long, name string").option("maxFilesPerTrigger", 1)
        numbers = (
            spark.readStream.format("rate-micro-batch")
            .option("rowsPerBatch", 4)
            .load()
            .selectExpr("value as id", "cast(timestamp as string) as name")
        )
        rate = (
            spark.readStream.format("rate").option("rowsPerSecond", 2).load().selectExpr("value as id", "cast(timestamp as string) as name")
        )
        parts = [reader.json(str(folder / "json")), reader.csv(str(folder / "csv")), reader.json(str(folder / "late")), numbers, rate]
        whole = parts[0]
        for more in parts[1:]:
            whole = whole.union(more)
        return whole

    trial = Trial(spark, tmp_path, build)
    for number in range(3):
        lines(tmp_path / "json", f"{number}", json.dumps({"id": number, "name": "json"}))
    lines(tmp_path / "csv", "0", "10,csv", "11,csv")
    # The rate source began ten seconds ago, so that it has rows.
    (trial.checkpoint / "sources" / "4").mkdir(parents=True)
    (trial.checkpoint / "sources" / "4" / "0").write_text(f"v1\n{int(datetime.now(UTC).timestamp() * 1000) - 10_000}")
    # Without this setting, Spark gives all rows in one batch if a source does not know the trigger, as the rate source does not.
    with settings(spark, spark__sql__streaming__triggerAvailableNowWrapper__enabled="true"):
        trial.run()
        lines(tmp_path / "late", "0", json.dumps({"id": 20, "name": "late"}))
        trial.run()
        lines(tmp_path / "csv", "1", "12,csv")
        trial.run()
    trial.check(5)
    assert len(trial.first[0].rows) >= 1 + 2 + 4 + 20
    assert [len(trial.first[number].rows) for number in (1, 2)] == [1, 1]


def test_one_source_at_several_places(spark: SparkSession, tmp_path: Path) -> None:
    def build(spark: SparkSession, folder: Path) -> DataFrame:
        rows = files(spark, folder / "in")
        rows.createOrReplaceTempView("reread_twice")
        named = spark.sql(
            "with x as (select id, name from reread_twice) select *, 1 as part from x union all select *, 2 from x where id % 2 = 0"
        )
        return rows.select("id", "name", F.lit(0).alias("part")).union(named).union(named)

    trial = two_runs(spark, tmp_path, build)
    trial.check(5)
    assert len(trial.first[1].rows) == 3 + 2 * (3 + 2)


def test_hidden_columns_of_files_and_a_compacted_log(spark: SparkSession, tmp_path: Path) -> None:
    def build(spark: SparkSession, folder: Path) -> DataFrame:
        rows = spark.readStream.schema(f"{SCHEMA}, part int").option("maxFilesPerTrigger", 1).parquet(str(folder / "in"))
        return rows.select("name", "part", "_metadata.file_name", "_metadata.row_index", F.input_file_name().alias("file"))

    trial = Trial(spark, tmp_path, build)
    with settings(spark, spark__sql__streaming__fileSource__log__compactInterval="2"):
        for part in range(5):
            parquet(tmp_path / "in" / f"part={part}", part)
            trial.run()
    trial.check(5)
    assert (trial.checkpoint / "sources" / "0" / "3.compact").exists()


@pytest.mark.parametrize("adaptive", ["true", "false"])
def test_a_static_side_and_a_shuffle(spark: SparkSession, tmp_path: Path, adaptive: str) -> None:
    parquet(tmp_path / "static", 0)

    def build(spark: SparkSession, folder: Path) -> DataFrame:
        static = spark.read.schema(SCHEMA).parquet(str(folder / "static")).select("name", F.col("id").alias("other"))
        rows = files(spark, folder / "in").repartition(3, "name")
        return rows.join(static.hint("broadcast"), "name").join(static.hint("merge").distinct(), "name", "left").drop("ts")

    with settings(spark, spark__sql__adaptive__enabled=adaptive, spark__sql__shuffle__partitions="2"):
        trial = two_runs(spark, tmp_path, build)
    trial.check(5)
    assert any(got.rows for got in trial.first.values())


def test_a_source_written_in_python(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Reader(DataSourceStreamReader):
        def __init__(self, options: dict[str, str]) -> None:
            self.file = options["file"]

        def initialOffset(self) -> dict[str, int]:
            return {"at": 0}

        def latestOffset(self) -> dict[str, int]:  # type: ignore[override]
            with open(self.file) as file:
                return {"at": int(file.read())}

        def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
            return [InputPartition(at) for at in range(start["at"], end["at"])]

        def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
            yield (partition.value,)

    class Counter(DataSource):
        @classmethod
        def name(cls) -> str:
            return "reread_counter"

        def schema(self) -> str:
            return "id long"

        def streamReader(self, schema: StructType) -> DataSourceStreamReader:
            return Reader(dict(self.options))

    # Spark makes such a source in a worker, for which a plain session may take another Python.
    monkeypatch.setattr(spark.sparkContext, "pythonExec", sys.executable)
    spark.dataSource.register(Counter)

    def build(spark: SparkSession, folder: Path) -> DataFrame:
        return spark.readStream.format("reread_counter").option("file", str(folder / "count")).load()

    trial = Trial(spark, tmp_path, build)
    for count in (2, 5):
        (tmp_path / "count").write_text(str(count))
        trial.run()
    trial.check(2)
    assert [len(trial.first[number].rows) for number in range(2)] == [2, 3]
    assert unreplayable_sources(build(spark, tmp_path)) == []


def test_the_streaming_dataframe_of_a_graph_with_two_sources(spark: SparkSession, tmp_path: Path) -> None:
    parquet(tmp_path / "other", 7, 8)

    def build(spark: SparkSession, folder: Path) -> DataFrame:
        left, right = (hr.stream(files(spark, folder / name)).withWatermark("ts", "5 seconds") for name in ("in", "other"))
        counts = left.union(right).groupBy("name", F.window("ts", "10 seconds")).count()
        outlets = [(counts.rows, OutputMode.APPEND, "here"), (left.filter("id > 5").rows, OutputMode.APPEND, "here")]
        flow = compile_flow(outlets, Config())
        assert len(flow.sources) == 2
        return flow.streaming

    two_runs(spark, tmp_path, build).check(5)


def test_while_the_query_is_idle(spark: SparkSession, tmp_path: Path) -> None:
    trial = Trial(spark, tmp_path, lambda spark, folder: files(spark, folder / "in").withColumn("now", F.current_timestamp()))
    parquet(tmp_path / "in", 0, 1, 2)
    trial.run()
    query = started(trial.build(spark, tmp_path), trial.checkpoint, lambda *_: None, processingTime="0 seconds")
    try:
        await_initialised(query, 60)
        reader = BatchReader(execution_of(query), query_session(query, spark))
        with planning_paused(query):
            rows = reader.rows(1)
            assert not rows.isStreaming
            assert Got.of(rows) == trial.first[1]
            # Rows that were read again can be used in any way, and more than once.
            assert rows.groupBy("name").count().count() == len({row.split("name=")[1].split(",")[0] for row in trial.first[1].rows})
            assert [Got.of(reader.rows(number)) for number in range(3)] == [trial.first[number] for number in range(3)]
            with pytest.raises(CheckpointError, match=r"offsets of batch 3; found those of batches 0 to 2$"):
                reader.rows(3)
            (tmp_path / "in" / "1.parquet").unlink()
            with pytest.raises(SourceError, match=r"batch 1 again.*the 1 files of the batch; found 0 of them"):
                reader.rows(1)
    finally:
        query.stop()


def test_offsets_that_spark_has_removed(spark: SparkSession, tmp_path: Path) -> None:
    errors: dict[int, str] = {}
    seen: list[int] = []

    def batch(query: StreamingQuery, frame: DataFrame, number: int) -> None:
        if number == 5:
            reader = BatchReader(execution_of(query), frame.sparkSession)
            for earlier in range(5):
                try:
                    seen.extend(row.id // 10 for row in reader.rows(earlier).collect())
                except CheckpointError as refused:
                    errors[earlier] = str(refused)

    parquet(tmp_path / "in", *range(6))
    with settings(spark, spark__sql__streaming__minBatchesToRetain="2", spark__sql__streaming__asyncLogPurge__enabled="false"):
        started(files(spark, tmp_path / "in"), tmp_path / "checkpoint", batch, availableNow=True).awaitTermination()
    assert sorted(errors) == [0, 1, 2, 3]
    assert len(seen) == 3
    assert errors[0].endswith(
        "wanted Spark's offsets of batch 0; found those of batches 3 to 5; "
        "set spark.sql.streaming.minBatchesToRetain to more than the number of batches that may have to be read again"
    )


def test_state_of_sparks_own_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    errors: list[str] = []

    def batch(query: StreamingQuery, frame: DataFrame, number: int) -> None:
        with pytest.raises(UnsupportedError) as refused:
            BatchReader(execution_of(query), frame.sparkSession).rows(0)
        errors.append(str(refused.value))
        frame.collect()

    parquet(tmp_path / "in", 0)
    stream = files(spark, tmp_path / "in").dropDuplicates(["id"])
    started(stream, tmp_path / "checkpoint", batch, availableNow=True).awaitTermination()
    assert "dropDuplicates" in errors[0]


def test_the_hidden_column_comes_through_selections_of_a_source(spark: SparkSession, tmp_path: Path) -> None:
    parquet(tmp_path / "in", 0)
    rows = spark.read.schema(SCHEMA).parquet(str(tmp_path / "in")).select("id", "name").select("id")
    found = frame_of(spark, with_file_metadata(spark, analyzed(rows)))
    assert found.columns == ["id", "_metadata"]
    assert {row[0] for row in found.select("_metadata.file_name").collect()} == {"0.parquet"}
