"""One query of each operator gives what Spark's batch engine gives for the same rows."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import headrace as hr
from tests.integration.both import Feed, assert_same_rows, ours, spark_batch, values
from tests.matrix.cases import CASES, before_end, feed, running, timed

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Feed:
    return feed(tmp_path_factory.mktemp("matrix"))


@pytest.mark.parametrize("name", [pytest.param(name, marks=[] if name == "running aggregate" else pytest.mark.extra) for name in CASES])
def test_operator(spark: SparkSession, tmp_path: Path, rows: Feed, name: str) -> None:
    case = CASES[name]
    wanted = before_end(spark_batch(spark, [rows], case.batch).rows)
    found = ours(spark, [rows], case.query, case.mode, tmp_path, instances=2)
    assert wanted
    assert_same_rows(before_end(found.last(case.keys) if case.keys else found.rows), wanted, found.columns, name)


@pytest.mark.extra
def test_split_with_several_sinks(spark: SparkSession, tmp_path: Path, rows: Feed) -> None:
    """One query writes rows, windows and running totals to files, to a table in memory and to a function."""
    calls: list[tuple[object, ...]] = []
    stream = timed(hr.stream(rows.stream(spark, rows.folder / "waiting")))
    halves = stream.split(low="v < 0", otherwise="high")
    windows = halves.high.groupBy("k", F.window("ts", "8 seconds")).agg(F.count("*"))
    query = hr.start(
        halves.low.select("k", "v").writeStream.format("parquet").option("path", str(tmp_path / "low")),
        windows.writeStream.format("memory").queryName("matrix_windows"),
        running(stream).writeStream.outputMode("update").foreachBatch(lambda frame, _: calls.extend(values(frame))),
        checkpointLocation=str(tmp_path / "checkpoint"),
        availableNow=True,
    )
    query.awaitTermination()
    batch = rows.batch(spark)
    for found, wanted in (
        (values(spark.read.parquet(str(tmp_path / "low"))), batch.filter("v < 0").select("k", "v")),
        (values(spark.table("matrix_windows")), batch.filter("v >= 0").groupBy("k", F.window("ts", "8 seconds")).agg(F.count("*"))),
        (calls, running(batch)),
    ):
        assert_same_rows(before_end(found), before_end(values(wanted)), wanted.columns, "a sink")
