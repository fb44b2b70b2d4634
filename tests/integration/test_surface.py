"""The surface of the API: options, column names, missing attributes, output modes, formats of Spark, the backlog."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, DataSourceWriter, InputPartition, WriterCommitMessage

import headrace as hr
from headrace.errors import HeadraceError, MissingError, QueryError, SinkError
from headrace.runtime.sinks import simple
from headrace.spark.versions import pyspark_version

pytestmark = pytest.mark.spark


@pytest.fixture
def frame(spark: SparkSession) -> DataFrame:
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
    return rows.select((F.col("value") % 3).alias("k"), F.col("value").alias("v"), F.col("timestamp").alias("ts"))


# What is not there


@pytest.mark.parametrize(
    ("of", "name", "words"),
    [
        ("stream", "dropDuplicate", "did you mean dropDuplicates"),
        ("stream", "repartition", "call it before, hr.stream(df.repartition(...))"),
        ("stream", "distinct", "use dropDuplicates"),
        ("stream", "k", "for a column write F.col('k')"),
        ("stream", "collect", "use writeStream"),
        ("grouped", "pivot", "F.when"),
        ("grouped", "averge", "did you mean avg"),
        ("writer", "foreachbatch", "did you mean foreachBatch"),
        ("writer", "outputmode", "did you mean outputMode"),
    ],
)
def test_what_is_missing_is_told_what_there_is(frame: DataFrame, of: str, name: str, words: str) -> None:
    stream = hr.stream(frame)
    found: Any = {"stream": stream, "grouped": stream.groupBy("k"), "writer": stream.writeStream}[of]
    assert not hasattr(found, name)
    with pytest.raises(MissingError, match=r"test_surface[.]py:") as raised:
        getattr(found, name)
    assert isinstance(raised.value, AttributeError)
    assert isinstance(raised.value, HeadraceError)
    assert words in str(raised.value)
    assert raised.value.found == repr(name)
    again = pickle.loads(pickle.dumps(raised.value))
    assert str(again) == str(raised.value)
    assert type(again) is MissingError


def test_python_s_own_tools_are_not_disturbed(frame: DataFrame) -> None:
    stream = hr.stream(frame)
    for each in (stream, stream.groupBy("k"), stream.writeStream):
        assert getattr(each, "nobody", 7) == 7
        assert copy.copy(each) is not None
        for name in ("__deepcopy__", "_ipython_canary_method_should_not_exist_"):
            assert not hasattr(each, name)
        assert "agg" in dir(each) or "start" in dir(each)
    with pytest.raises(MissingError, match="a branch: long"):
        stream.split(long="v > 5").short  # noqa: B018


# Names of aggregates


@pytest.mark.parametrize(
    "wanted",
    [{"*": "count"}, {"v": "mean"}, {"v": "average"}, {"v": "std"}, {"v": "size"}, {"V": "SUM"}, {"v": "Var_Pop"}, {"v": "min"}],
    ids=lambda d: "".join(f"{k}-{v}" for k, v in d.items()),
)
def test_columns_of_a_dict_are_called_as_spark_calls_them(frame: DataFrame, wanted: dict[str, str]) -> None:
    assert hr.stream(frame).groupBy("k").agg(wanted).columns == frame.groupBy("k").agg(wanted).columns


@pytest.mark.parametrize("method", ["sum", "avg", "mean", "min", "max", "count"])
def test_columns_of_shortcuts_are_called_as_spark_calls_them(frame: DataFrame, method: str) -> None:
    names = () if method == "count" else ("v", "k")
    assert getattr(hr.stream(frame).groupBy("k"), method)(*names).columns == getattr(frame.groupBy("k"), method)(*names).columns


@pytest.mark.parametrize("wanted", [{"v": "nothing"}, {"nobody": "sum"}, {"v": 7}, {"*": "sum"}, {}])
def test_a_dict_that_means_nothing_is_refused(frame: DataFrame, wanted: Any) -> None:
    with pytest.raises(QueryError, match=r"test_surface[.]py"):
        hr.stream(frame).groupBy("k").agg(wanted)


# Output modes


def test_a_session_in_update_mode_is_told_about_sessions(frame: DataFrame) -> None:
    timed = hr.stream(frame).withWatermark("ts", "1 minute")
    sessions = timed.groupBy("k", F.session_window("ts", "1 minute")).count()
    with pytest.raises(QueryError) as raised:
        sessions.writeStream.outputMode("update").format("noop").start()
    assert "a session grows and merges" in str(raised.value)
    assert "wanted outputMode('append') or outputMode('complete'); found output mode update" in str(raised.value)


def test_what_append_mode_lacks_names_modes_that_work(frame: DataFrame) -> None:
    sessions = hr.stream(frame).groupBy("k", F.session_window("ts", "1 minute")).count()
    with pytest.raises(QueryError, match=r"or use outputMode\('complete'\)$"):
        sessions.writeStream.format("noop").start()
    with pytest.raises(QueryError, match=r"or use outputMode\('update'\) or outputMode\('complete'\)$"):
        hr.stream(frame).groupBy("k").count().writeStream.format("noop").start()


# Options


@pytest.mark.parametrize("spelling", [str.upper, *(pytest.param(each, marks=pytest.mark.extra) for each in (str.lower, str))])
def test_options_are_the_same_in_any_case(spark: SparkSession, tmp_path: Path, spelling: Callable[[str], str]) -> None:
    rows = hr.stream(files(spark, tmp_path)).dropDuplicates()
    writer = rows.writeStream.format("csv").option(spelling("path"), str(tmp_path / "out")).option(spelling("header"), True)
    writer = writer.option(spelling("checkpointLocation"), str(tmp_path / "ckpt")).option(spelling("headrace.instances"), 3)
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    assert query.routing()["dropDuplicates"].instances == 3
    assert (tmp_path / "ckpt" / "headrace" / "manifests").is_dir()
    assert sorted(row.v for row in spark.read.csv(str(tmp_path / "out"), header=True).collect()) == ["0", "1", "2"]


def files(spark: SparkSession, folder: Path) -> DataFrame:
    spark.range(3).select(F.col("id").alias("v")).coalesce(1).write.parquet(str(folder / "in"))
    return spark.readStream.schema("v long").parquet(str(folder / "in"))


def test_an_option_that_is_given_twice_must_agree(frame: DataFrame, tmp_path: Path) -> None:
    rows = hr.stream(frame).dropDuplicates()
    with pytest.raises(QueryError, match="one path"):
        rows.writeStream.format("json").option("PATH", "/a").start("/b")
    one = rows.writeStream.format("noop").option("headrace.instances", 1)
    with pytest.raises(QueryError, match=r"'HEADRACE[.]Instances': wanted one value for the whole query; found '1' and '2'"):
        hr.start(one, rows.writeStream.format("noop").option("HEADRACE.Instances", 2), checkpointLocation=str(tmp_path))
    with pytest.raises(QueryError, match="one value for the whole query"):
        hr.start(one.option("checkpointlocation", "/elsewhere"), checkpointLocation=str(tmp_path))
    with pytest.raises(SinkError, match="a number of rows"):
        rows.writeStream.format("console").option("NUMROWS", "many").start()


def test_none_takes_an_option_back(frame: DataFrame) -> None:
    writer = hr.stream(frame).writeStream.option("headrace.instances", 1).option("HEADRACE.instances", None)
    assert dict(writer._options) == {}


# A log that can only be appended to


class Log(DataSource):
    """As Kafka's provider: it appends, and refuses to overwrite."""

    @classmethod
    def name(cls) -> str:
        return "appending"

    def writer(self, schema: Any, overwrite: bool) -> DataSourceWriter:
        if overwrite:
            raise ValueError("Save mode overwrite not allowed for Kafka. Allowed save modes are append and errorifexists (default).")
        return LogWriter(self.options["path"])


class Replaceable(Log):
    """One that can be overwritten."""

    @classmethod
    def name(cls) -> str:
        return "replaceable"

    def writer(self, schema: Any, overwrite: bool) -> DataSourceWriter:
        return LogWriter(self.options["path"], "w" if overwrite else "a")


class LogWriter(DataSourceWriter):
    """Writes rows as lines to one file."""

    def __init__(self, path: str, how: str = "a") -> None:
        self.path, self.how = path, how

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        message = WriterCommitMessage()
        message.rows = [f"{row.v} {row['count']}" for row in iterator]  # type: ignore[attr-defined]
        return message

    def commit(self, messages: list[Any]) -> None:
        with open(self.path, self.how) as file:
            file.writelines(f"{row}\n" for message in messages for row in message.rows)


@pytest.mark.extra
@pytest.mark.parametrize(("source", "copies"), [(Log, 2), (Replaceable, 1)])
def test_complete_mode_to_a_log_appends_every_result(
    spark: SparkSession, tmp_path: Path, source: type[DataSource], copies: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Spark knows the name kafka, and lets nobody else have it; so one more name stands for it.
    assert "kafka" in simple.ONLY_APPENDS
    monkeypatch.setattr(simple, "ONLY_APPENDS", (*simple.ONLY_APPENDS, Log.name()))
    spark.dataSource.register(source)
    for name in ("a", "b"):
        spark.range(3).select(F.col("id").alias("v")).coalesce(1).write.mode("append").parquet(str(tmp_path / "in" / name))
    rows = spark.readStream.schema("v long").option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "in" / "*"))
    counted = hr.stream(rows).groupBy("v").count()
    writer = counted.writeStream.format(source.name()).outputMode("complete").option("path", str(tmp_path / "log"))
    query = writer.option("checkpointLocation", str(tmp_path / "ckpt")).trigger(availableNow=True).start()
    query.awaitTermination()
    written = sorted((tmp_path / "log").read_text().split("\n")[:-1])
    # The first batch's results and the second's; where they replace one another, only these.
    first, second = [f"{v} 1" for v in range(3)], [f"{v} 2" for v in range(3)]
    assert written == sorted(first + second if copies == 2 else second)


# The backlog


class Topic(DataSource):
    """A source with offsets by topic and partition that gives ten rows a batch, and reports how many there are."""

    @classmethod
    def name(cls) -> str:
        return "topic"

    def schema(self) -> str:
        return "v long"

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return TopicReader()


class Part(InputPartition):
    def __init__(self, begin: int, end: int) -> None:
        self.begin, self.end = begin, end


class TopicReader(DataSourceStreamReader):
    def initialOffset(self) -> dict[str, Any]:
        return {"calls": {"0": 0}}

    def getDefaultReadLimit(self) -> Any:
        from pyspark.sql.streaming.datasource import ReadMaxRows

        return ReadMaxRows(10)

    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:
        return {"calls": {"0": min(35, start["calls"]["0"] + 10)}}

    def reportLatestOffset(self) -> dict[str, Any]:
        return {"calls": {"0": 35}}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return [Part(start["calls"]["0"], end["calls"]["0"])]

    def read(self, partition: Any) -> Iterator[tuple[int]]:
        return iter([(at,) for at in range(partition.begin, partition.end)])


@pytest.mark.skipif(pyspark_version() == "4.1", reason="sources in Python have no read limit before Spark 4.2")
@pytest.mark.extra  # Spark gives the Python process of such a source ten seconds to start, which a busy machine may need.
def test_rows_that_a_limited_source_keeps_back_are_known_when_a_batch_ends(spark: SparkSession, tmp_path: Path) -> None:
    spark.dataSource.register(Topic)
    counted = hr.stream(spark.readStream.format("topic").load()).groupBy("v").count()
    offered: list[tuple[int, int | None]] = []
    writer = counted.writeStream.outputMode("update").format("noop").option("checkpointLocation", str(tmp_path))
    query = writer.elastic(hr.Elastic(policy="elastic-manager", min=1, max=1)).start()
    try:
        query.processAllAvailable()
        found = [(p["headrace"]["rows"], p["headrace"]["backlog"]["rowsLeft"]) for p in query.recentProgress]
        assert query._engine.autoscaler is not None
        offered = [(batch.version, round(batch.rows_left)) for batch in query._engine.autoscaler.batches]
    finally:
        query.stop()
    # Where the first batch began is not written down, so what an offset counts is known from the second on. Kafka's count rows.
    assert found == [(10, None), (10, 15), (10, 5), (5, 0)]
    # The policy is told at once, before Spark's own progress of the batch.
    assert offered == list(enumerate([0, 15, 5, 0]))[-len(offered) :]


def test_a_source_without_a_limit_leaves_nothing(spark: SparkSession, tmp_path: Path) -> None:
    rows = hr.stream(spark.readStream.format("rate").option("rowsPerSecond", 100).load())
    writer = rows.groupBy("value").count().writeStream.outputMode("update").format("noop").option("checkpointLocation", str(tmp_path))
    query = writer.start()
    try:
        while not query.recentProgress:
            query.awaitTermination(1)
        assert {p["headrace"]["backlog"]["rowsLeft"] for p in query.recentProgress} == {0}
    finally:
        query.stop()
