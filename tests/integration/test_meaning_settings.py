"""Settings that change what SQL text means, in a zone with daylight saving: event times stay the moments that they are."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import headrace as hr
from headrace.compile.nodes import compile_node
from headrace.config import Config
from tests.integration.both import Feed, assert_equal, settings

pytestmark = pytest.mark.spark

ZONE = "America/New_York"
CLOCKS_GO_BACK = datetime(2026, 11, 1, 5, 30, tzinfo=UTC)
"""Half an hour before the hour from one to two o'clock comes a second time."""
SCHEMA = "k string, ts timestamp_ltz, v long"


def feed(root: Path) -> Feed:
    """Rows before, in and after the hour that comes twice, and one far behind them that closes all windows."""
    minutes = [[0, 7, 14, 31, 35, 62, 67], [91, 95, 122, 127], [3000], [6000]]
    parts = []
    for part in minutes:
        times = pa.array([CLOCKS_GO_BACK + timedelta(minutes=m) for m in part], pa.timestamp("us", tz="UTC"))
        parts.append(pa.table({"k": ["a" if m % 2 else "b" for m in part], "ts": times, "v": part}))
    return Feed.of(root, SCHEMA, parts)


def windows(rows: Any) -> Any:
    return rows.groupBy("k", F.window("ts", "10 minutes", "5 minutes")).agg(F.sum("v").alias("s"), F.max("ts").alias("last"))


def sessions(rows: Any) -> Any:
    return rows.groupBy("k", F.session_window("ts", "20 minutes")).agg(F.count("*").alias("n"))


def time_as_key(rows: Any) -> Any:
    return rows.groupBy("ts").agg(F.sum("v").alias("s"))


def distinct(rows: Any) -> Any:
    return rows.dropDuplicates(["k", "ts"])


@pytest.mark.parametrize("kind", ["TIMESTAMP_NTZ", pytest.param("TIMESTAMP_LTZ", marks=pytest.mark.extra)])
@pytest.mark.parametrize("query", [windows, sessions, time_as_key, distinct])
def test_event_times_are_moments_whatever_the_text_timestamp_means(query: Any, kind: str, spark: SparkSession, tmp_path: Path) -> None:
    with settings(spark, spark__sql__timestampType=kind, spark__sql__session__timeZone=ZONE):
        found = assert_equal(spark, [feed(tmp_path)], lambda rows: query(rows.withWatermark("ts", "20 minutes")), "append", tmp_path)
    assert len(found.rows) >= 5


def test_a_join_measures_the_distance_of_moments(spark: SparkSession, tmp_path: Path) -> None:
    """Pairs of one clock time that are an hour apart do not meet within 5 minutes."""
    with settings(spark, spark__sql__timestampType="TIMESTAMP_NTZ", spark__sql__session__timeZone=ZONE):
        source = feed(tmp_path)
        folder = tmp_path / "in"
        stream = hr.stream(source.stream(spark, folder)).withWatermark("ts", "20 minutes")
        for (path,) in source.files:
            (folder / path.name).write_bytes(path.read_bytes())
        pairs = stream.join(stream, "k", within="5 minutes")
        writer = pairs.writeStream.format("memory").queryName("moments").option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination()
        rows = source.batch(spark)
        near = F.abs(F.unix_micros("l.ts") - F.unix_micros("r.ts")) <= 300_000_000
        expected = rows.alias("l").join(rows.alias("r"), (F.col("l.k") == F.col("r.k")) & near).count()
        assert spark.table("moments").count() == expected


def test_a_plan_is_not_used_again_where_settings_have_changed(spark: SparkSession, tmp_path: Path) -> None:
    """The cast to the text "timestamp" means another type under another setting."""
    source = feed(tmp_path).stream(spark, tmp_path / "in")
    node: Any = hr.stream(source).groupBy("k").agg(F.expr("max(cast(ts as timestamp))").alias("last")).rows.origin
    plans = {}
    for kind in ("TIMESTAMP_LTZ", "TIMESTAMP_NTZ", "TIMESTAMP_LTZ"):
        with settings(spark, spark__sql__timestampType=kind):
            plan = compile_node(node, Config())
            assert plans.setdefault(kind, plan) is plan
    types = {kind: plan.results.schema["last"].dataType.simpleString() for kind, plan in plans.items()}
    assert types == {"TIMESTAMP_LTZ": "timestamp", "TIMESTAMP_NTZ": "timestamp_ntz"}
