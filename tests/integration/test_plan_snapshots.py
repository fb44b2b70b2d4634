"""Compiled plans, compared with what they were: a change of plan must be meant.

After a change that is meant: ``HEADRACE_UPDATE_SNAPSHOTS=1 python -m pytest tests/integration/test_plan_snapshots.py``.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import headrace as hr
from headrace.api.stream import Stream
from headrace.compile.build import compile_flow
from headrace.compile.explain import explain
from headrace.compile.routing import route
from headrace.config import Config
from headrace.operators.kernel import OutputMode
from headrace.spark.gateway import java_frame
from headrace.state.routing import Routing

SNAPSHOTS = Path(__file__).parents[1] / "snapshots"
SCHEMA = "k string, ts timestamp, v double, n decimal(10,2), flag boolean"

QUERIES: dict[str, Callable[[Stream], Stream]] = {
    "running": lambda s: s.groupBy("k").agg(F.count("*").alias("rows"), F.sum("n").alias("total")).filter("rows > 1"),
    "sliding": lambda s: (
        s.withWatermark("ts", "10 seconds")
        .groupBy("k", F.window("ts", "50 seconds", "20 seconds"))
        .agg(F.avg("v").alias("mean"), F.max("ts"))
        .select("k", "mean")
    ),
    "not_combined": lambda s: (
        s.withWatermark("ts", "0 seconds").groupBy(F.length("k").alias("len")).agg(F.max("k"), F.first("v"), F.collect_set("flag"))
    ),
    "event_time_as_key": lambda s: s.withWatermark("ts", "1 minute").groupBy("ts").agg(F.stddev("v")),
    "whole_stream": lambda s: s.agg(F.min("v"), (F.sum("v") / F.count("v")).alias("mean")),
    "drop_duplicates": lambda s: s.withWatermark("ts", "1 minute").dropDuplicates(["k", "ts"]),
}


@pytest.mark.parametrize("name", QUERIES)
def test_the_plan_is_what_it_was(name: str, spark: SparkSession, tmp_path: Path) -> None:
    source = hr.stream(spark.readStream.schema(SCHEMA).parquet(str(tmp_path)))
    stream = QUERIES[name](source)
    flow = compile_flow([(stream.rows, OutputMode.UPDATE, "here")], Config())
    text = explain(flow, {op.id: Routing.even(3) for op in flow.ops}, ["at-least-once"], {}) + "\n"
    snapshot = SNAPSHOTS / f"{name}.txt"
    if os.environ.get("HEADRACE_UPDATE_SNAPSHOTS") == "1":
        snapshot.write_text(text)
    assert text == snapshot.read_text()


def test_combining_and_routing_take_one_shuffle(spark: SparkSession, tmp_path: Path) -> None:
    stream = QUERIES["running"](hr.stream(spark.readStream.schema(SCHEMA).parquet(str(tmp_path))))
    (op,) = compile_flow([(stream.rows, OutputMode.UPDATE, "here")], Config()).ops
    plan = op.plan
    batch = spark.createDataFrame([], plan.input.selected.schema)
    for rows in (plan.combined(batch), plan.input.projected(batch)):
        physical = java_frame(route(rows, Routing.even(2))).queryExecution().executedPlan().toString()
        assert physical.count("Exchange") == 1, physical
