"""Names that differ in case alone, names of windows, and windows of windows: as in Spark."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import headrace as hr
from headrace.errors import QueryError
from tests.integration.both import Feed, assert_equal, settings

pytestmark = pytest.mark.spark

START = datetime(2026, 1, 1, tzinfo=UTC)


def test_where_case_matters_the_column_with_that_very_name_is_meant(spark: SparkSession, tmp_path: Path) -> None:
    with settings(spark, spark__sql__caseSensitive="true"):
        rows = spark.readStream.schema("a int, A int, ts timestamp").parquet(str(tmp_path)).withWatermark("ts", "1 second")
        stream = hr.stream(rows)
        for name in ("a", "A"):
            node: Any = stream.dropDuplicates([name]).rows.origin
            assert node.subset == (name,)
        with pytest.raises(QueryError, match="a, A on the left side"):
            stream.join(stream.select("a", "ts"), "a", within="1 minute")


def test_a_session_may_be_called_window(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.readStream.schema("ts timestamp").parquet(str(tmp_path)).withWatermark("ts", "1 second")
    for name in (None, "window", "visit"):
        window = F.session_window("ts", "1 second")
        window = window if name is None else window.alias(name)
        assert hr.stream(rows).groupBy(window).count().schema == rows.groupBy(window).count().schema


def test_a_window_of_windows_goes_by_their_last_moment(spark: SparkSession, tmp_path: Path) -> None:
    times = [[START + timedelta(seconds=seconds) for seconds in part] for part in ([1, 7, 12, 18], [33, 41, 55], [3600], [7200])]
    feed = Feed.of(tmp_path, "ts timestamp", [pa.table({"ts": pa.array(part, pa.timestamp("us", tz="UTC"))}) for part in times])

    def query(rows: Any) -> Any:
        counts = rows.withWatermark("ts", "1 second").groupBy(F.window("ts", "5 seconds")).agg(F.count("*").alias("n"))
        return counts.groupBy(F.window("window", "20 seconds").alias("long")).agg(F.sum("n").alias("n"), F.count("*").alias("windows"))

    assert len(assert_equal(spark, [feed], query, "append", tmp_path).rows) >= 3


@pytest.mark.parametrize("subset", [["k", "window"], *(pytest.param(each, marks=pytest.mark.extra) for each in (["window"], ["n"]))])
def test_distinct_windows_go_by_their_end(subset: list[str], spark: SparkSession, tmp_path: Path) -> None:
    """The event time of an aggregate's results is their window, as a whole."""
    parts = [[1, 7, 12, 18], [33, 41, 55], [3600], [7200], [10000], [14000]]
    tables = []
    for part in parts:
        times = pa.array([START + timedelta(seconds=seconds) for seconds in part], pa.timestamp("us", tz="UTC"))
        tables.append(pa.table({"k": [f"k{seconds % 2}" for seconds in part], "ts": times}))
    feed = Feed.of(tmp_path, "k string, ts timestamp", tables)

    def query(rows: Any) -> Any:
        counts = rows.withWatermark("ts", "1 second").groupBy("k", F.window("ts", "10 seconds")).agg(F.count("*").alias("n"))
        # Which of several rows stays is not said, so only what all of them have in common is compared.
        return counts.dropDuplicates(subset).select(*subset)

    assert len(assert_equal(spark, [feed], query, "append", tmp_path).rows) >= 1
