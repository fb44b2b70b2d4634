"""Unmodified programs: ``hr.enable``, ``hr.writeStream`` and what is around a query: names, tables, listeners, triggers, fallbacks."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.listener import StreamingQueryListener
from pyspark.sql.streaming.query import StreamingQuery

import headrace as hr

ROWS = [("ada", 5, 1), ("bob", 7, 2), ("ada", 1, 3)]
TOTALS = [("ada", 6), ("bob", 7)]


@pytest.fixture
def enabled(spark: SparkSession) -> Iterator[SparkSession]:
    yield hr.enable(spark)
    hr.disable(spark)


@pytest.fixture
def rows(spark: SparkSession, tmp_path: Path) -> DataFrame:
    spark.createDataFrame(ROWS, "name string, n long, at long").write.parquet(str(tmp_path / "in"))
    return spark.readStream.schema("name string, n long, at long").parquet(str(tmp_path / "in"))


def totals(rows: DataFrame) -> DataFrame:
    return rows.groupBy("name").agg(F.sum("n").alias("n"))


def found(spark: SparkSession, table: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in spark.table(table).collect())


def test_a_query_of_an_enabled_session_runs_on_headrace(enabled: SparkSession, rows: DataFrame) -> None:
    query = (
        totals(rows)
        .writeStream.trigger(availableNow=True)
        .start(format="memory", outputMode="complete", queryName="enabled_totals", **{"headrace.instances": "2"})
    )
    query.awaitTermination()
    assert isinstance(query, hr.HeadraceQuery)
    assert found(enabled, "enabled_totals") == TOTALS
    assert sorted(tuple(row) for row in query.state().collect()) == TOTALS


@pytest.mark.extra
def test_other_queries_stay_sparks(enabled: SparkSession, rows: DataFrame) -> None:
    stateless = rows.filter("n > 1").writeStream.format("noop").trigger(availableNow=True).start()
    stateless.awaitTermination()
    assert isinstance(stateless, StreamingQuery)
    left = totals(rows).writeStream.option("Headrace.Enabled", False).outputMode("update").format("noop").trigger(availableNow=True).start()
    left.awaitTermination()
    assert isinstance(left, StreamingQuery)
    other = enabled.newSession()
    assert type(other.readStream.format("rate").load().groupBy().count().writeStream).__name__ == "DataStreamWriter"
    hr.disable(enabled)
    assert type(rows.writeStream).__name__ == "DataStreamWriter"


def test_what_is_no_classic_session_is_refused() -> None:
    with pytest.raises(hr.SessionError, match="wanted a classic Spark session"):
        hr.enable("sc://localhost")  # type: ignore[arg-type]


@pytest.mark.extra
def test_one_query_without_a_change_of_the_session(spark: SparkSession, rows: DataFrame) -> None:
    query = hr.writeStream(totals(rows)).start(format="memory", outputMode="update", queryName="one")
    query.processAllAvailable()
    assert found(spark, "one") == TOTALS
    query.stop()
    assert type(rows.writeStream).__name__ == "DataStreamWriter"


@pytest.mark.extra
def test_a_stream_goes_on_from_results_of_a_dataframe(spark: SparkSession, rows: DataFrame) -> None:
    unique = rows.select("name").dropDuplicates()
    query = (
        hr.stream(unique).groupBy().count().writeStream.format("memory").outputMode("update").queryName("names")
        .trigger(availableNow=True).start()
    )  # fmt: skip
    query.awaitTermination()
    assert [tuple(row) for row in spark.table("names").collect()] == [(2,)]


@pytest.mark.extra
def test_tables_are_created_and_appended_to(enabled: SparkSession, rows: DataFrame, tmp_path: Path) -> None:
    unique = rows.select("name").dropDuplicates()
    query = (
        unique.writeStream.option("checkpointLocation", str(tmp_path / "c")).trigger(once=True).toTable("unique_names", format="parquet")
    )
    query.awaitTermination()
    try:
        assert found(enabled, "unique_names") == [("ada",), ("bob",)]
    finally:
        enabled.sql("DROP TABLE unique_names")


@pytest.mark.extra
def test_foreach_batch_needs_no_checkpoint(enabled: SparkSession, rows: DataFrame) -> None:
    seen: list[tuple[Any, ...]] = []
    writer = totals(rows).writeStream.outputMode("update").trigger(availableNow=True)
    query = writer.foreachBatch(lambda batch, _: seen.extend(tuple(row) for row in batch.collect())).start()
    query.awaitTermination()
    assert isinstance(query, hr.HeadraceQuery)
    assert sorted(seen) == TOTALS


class _ToFiles:
    """A writer of rows as users write them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def open(self, partition_id: int, epoch_id: int) -> bool:
        self.file = (self.folder / f"{epoch_id}-{partition_id}.txt").open("w")
        return True

    def process(self, row: Any) -> None:
        self.file.write(f"{row.name} {row.n}\n")

    def close(self, error: Exception | None) -> None:
        self.file.write("closed\n" if error is None else "failed\n")
        self.file.close()


@pytest.mark.extra
def test_foreach_with_an_object(enabled: SparkSession, rows: DataFrame, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    query = totals(rows).writeStream.outputMode("update").trigger(availableNow=True).foreach(_ToFiles(tmp_path / "out")).start()
    query.awaitTermination()
    lines = [line for file in (tmp_path / "out").iterdir() for line in file.read_text().splitlines()]
    assert sorted({line for line in lines if line != "closed"}) == ["ada 6", "bob 7"]
    assert "closed" in lines


@pytest.mark.extra
def test_sparks_own_lists_know_the_query(enabled: SparkSession, rows: DataFrame) -> None:
    events: list[tuple[str, str]] = []

    class Listener(StreamingQueryListener):
        def onQueryStarted(self, event: Any) -> None:
            events.append(("started", str(event.id)))

        def onQueryProgress(self, event: Any) -> None:
            events.append(("progress", str(event.progress.id)))

        def onQueryIdle(self, event: Any) -> None: ...

        def onQueryTerminated(self, event: Any) -> None:
            events.append(("terminated", str(event.id)))

    listener = Listener()
    enabled.streams.addListener(listener)
    try:
        query = totals(rows).writeStream.outputMode("update").format("memory").queryName("listed").start()
        query.processAllAvailable()
        assert "listed" in [each.name for each in enabled.streams.active]
        assert enabled.streams.get(query.id).runId == query.runId
        assert query.recentProgress[-1]["numInputRows"] == len(ROWS)
        query.stop()
        enabled.streams.awaitAnyTermination(30)
        enabled.streams.resetTerminated()
        query.awaitTermination(30)
        # Spark delivers events to listeners in a thread of its own.
        until = time.monotonic() + 30
        while not any(what == "terminated" for what, _ in events) and time.monotonic() < until:
            time.sleep(0.05)
    finally:
        enabled.streams.removeListener(listener)
    assert set(events) == {("started", query.id), ("progress", query.id), ("terminated", query.id)}


@pytest.mark.extra
def test_a_query_goes_on_from_its_checkpoint_with_another_number_of_instances(
    enabled: SparkSession, rows: DataFrame, tmp_path: Path
) -> None:
    for instances, more in ((1, []), (3, [("ada", 10, 9), ("cy", 1, 9)])):
        if more:
            enabled.createDataFrame(more, "name string, n long, at long").write.mode("append").parquet(str(tmp_path / "in"))
        writer = totals(rows).writeStream.outputMode("complete").option("checkpointLocation", str(tmp_path / "c"))
        query = writer.option("headrace.instances", instances).format("memory").queryName("goes_on").trigger(availableNow=True).start()
        query.awaitTermination()
    assert found(enabled, "goes_on") == [("ada", 16), ("bob", 7), ("cy", 1)]


@pytest.mark.extra
def test_what_spark_refuses_and_what_headrace_lacks(enabled: SparkSession, rows: DataFrame, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(AnalysisException, match="watermark"):
        totals(rows).writeStream.format("noop").start()
    again = totals(rows).dropDuplicates(["name"])
    with pytest.raises(hr.UnsupportedError, match="change with every batch"):
        again.writeStream.outputMode("update").format("noop").start()
    with caplog.at_level(logging.WARNING, logger="headrace"):
        writer = again.writeStream.outputMode("update").format("noop").trigger(availableNow=True)
        query = writer.option("headrace.fallback", "spark").start()
        query.awaitTermination()
    assert isinstance(query, StreamingQuery)
    assert "Spark runs this query on its own operators" in caplog.text
    query = hr.writeStream(again).option("headrace.fallback", "spark").outputMode("update").format("noop").trigger(once=True).start()
    query.awaitTermination()
    assert isinstance(query, StreamingQuery)


@pytest.mark.extra
def test_explain_says_what_runs_where(spark: SparkSession, rows: DataFrame, capsys: pytest.CaptureFixture[str]) -> None:
    hr.explain(totals(rows).where("n > 3"))
    shown = capsys.readouterr().out
    assert "aggregate   Python over Arrow" in shown
    assert "then        Spark (JVM): filter" in shown
    hr.explain(rows.filter("n > 1"))
    assert "Spark runs all of it" in capsys.readouterr().out
    spark.conf.set("headrace.fallback", "spark")
    try:
        hr.explain(totals(rows).dropDuplicates(["name"]), outputMode="update")
    finally:
        spark.conf.unset("headrace.fallback")
    assert "Headrace cannot run it" in capsys.readouterr().out
    assert not spark.streams.active, "nothing is started to explain it"
