"""``observe`` in unmodified programs: what it measures between stateful operators, what listeners see, and how it is read."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.listener import StreamingQueryListener

import headrace as hr
from tests.conformance.data import SCHEMAS, tables
from tests.integration.both import Feed, settings

pytestmark = pytest.mark.spark


def chained(events: DataFrame) -> DataFrame:
    """Two stateful operators, measured before, between and behind."""
    unique = (
        events.withWatermark("ts", "10 seconds")
        .observe("read", F.count("*").alias("rows"))
        .dropDuplicates(["id", "ts"])
        .observe("unique", F.count("*").alias("rows"), F.avg("amount").alias("mean"))
    )
    small = unique.groupBy(F.window("ts", "20 seconds"), "kind").agg(F.sum("amount").alias("amount"))
    measured = small.observe("small", F.count("*").alias("rows"), F.max("amount").alias("most"))
    return measured.groupBy(F.window(F.window_time("window"), "1 minute")).agg(F.sum("amount").alias("amount"))


def measured(spark: SparkSession, feed: Feed, root: Path) -> list[dict[str, Any]]:
    """By file: how many rows were measured, and the least and greatest of the other measures, over the batches that the file led to."""
    query: Any = chained(feed.stream(spark, root / "in")).writeStream.format("noop").option("checkpointLocation", str(root / "c")).start()
    found, seen = [], 0
    try:
        for at, (path,) in enumerate(feed.files):
            if at == 2 and isinstance(query, hr.HeadraceQuery):
                query.rescale(3)
            (root / "in" / path.name).write_bytes(path.read_bytes())
            query.processAllAvailable()
            every = query.recentProgress
            metrics = [each["observedMetrics"] for each in every[seen:] if "observedMetrics" in each]
            seen = len(every)
            found.append(
                {
                    "read": sum(each["read"].rows for each in metrics if "read" in each),
                    "unique": sum(each["unique"].rows for each in metrics if "unique" in each),
                    "means": [round(each["unique"].mean, 6) for each in metrics if "unique" in each and each["unique"].rows],
                    "small": sum(each["small"].rows for each in metrics if "small" in each),
                    "most": [each["small"].most for each in metrics if "small" in each and each["small"].rows],
                }
            )
    finally:
        query.stop()
    return found


def test_rows_between_operators_are_measured_as_spark_does(spark: SparkSession, tmp_path: Path) -> None:
    feed = Feed.of(tmp_path, SCHEMAS["events"], tables("events"))
    with settings(spark, spark__sql__shuffle__partitions="1"):
        wanted = measured(spark, feed, tmp_path / "spark")
    hr.enable(spark)
    try:
        found = measured(spark, feed, tmp_path / "ours")
    finally:
        hr.disable(spark)
    assert sum(each["unique"] for each in wanted) > 100
    assert sum(each["small"] for each in wanted) > 10
    assert found == wanted


class Watch(StreamingQueryListener):
    """A listener as programs have them, which knows nothing of Headrace."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.measured: list[Any] = []

    def onQueryStarted(self, event: Any) -> None: ...

    def onQueryProgress(self, event: Any) -> None:
        self.rows += [each.numRowsTotal for each in event.progress.stateOperators]
        self.measured += [each.rows for name, each in event.progress.observedMetrics.items() if name == "results"]

    def onQueryIdle(self, event: Any) -> None: ...

    def onQueryTerminated(self, event: Any) -> None: ...


def test_a_listener_of_the_program_gets_state_and_measures(spark: SparkSession, tmp_path: Path) -> None:
    spark.createDataFrame([("ada", 5), ("bob", 7), ("ada", 1)], "name string, n long").write.parquet(str(tmp_path / "in"))
    rows = spark.readStream.schema("name string, n long").parquet(str(tmp_path / "in"))
    watch = Watch()
    hr.enable(spark)
    spark.streams.addListener(watch)
    try:
        totals = rows.groupBy("name").agg(F.sum("n").alias("n")).observe("results", F.count("*").alias("rows"))
        query = totals.writeStream.outputMode("update").format("noop").trigger(availableNow=True).start()
        query.awaitTermination()
        until = time.monotonic() + 30
        while not watch.measured and time.monotonic() < until:
            time.sleep(0.05)
    finally:
        spark.streams.removeListener(watch)
        hr.disable(spark)
    assert watch.rows == [2]
    assert watch.measured == [2]
    progress: Any = query.lastProgress
    assert progress.observedMetrics["results"] == Row(rows=2)
    assert json.loads(progress.json)["observedMetrics"] == {"results": {"rows": 2}}
    told = len(watch.rows)
    hr.writeStream(totals).outputMode("update").format("noop").trigger(availableNow=True).start().awaitTermination()
    spark._jsparkSession.sparkContext().listenerBus().waitUntilEmpty()  # type: ignore[attr-defined]
    assert len(watch.rows) == told, "the listener was removed"
