"""Steps for which a filter leaves no row: while Spark plans it sees that, and might leave out the tasks behind the filter."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import headrace as hr

pytestmark = pytest.mark.spark

FILES = (["a", "b"], ["a", "a", "b", "a"], ["b"], ["b"])
"""By file, and so by minute: the keys of its rows."""


def windows(rows: DataFrame) -> DataFrame:
    return rows.groupBy(F.window("ts", "5 seconds"), "k").count().filter("count > 2")


def distinct(rows: DataFrame) -> DataFrame:
    return windows(rows).dropDuplicates(["k", "window"]).select("k", "count")


def windows_of_windows(rows: DataFrame) -> DataFrame:
    return windows(rows).groupBy(F.window(F.window_time("window"), "10 seconds"), "k").agg(F.sum("count").alias("n")).select("k", "n")


@pytest.mark.parametrize("behind", [distinct, windows_of_windows])
@pytest.mark.parametrize("instances", [1, 3])
def test_all_instances_run_although_no_row_is_left(
    spark: SparkSession, tmp_path: Path, behind: Callable[[DataFrame], DataFrame], instances: int
) -> None:
    folder, found = tmp_path / "in", list[Any]()
    folder.mkdir()
    schema = "k string, ts timestamp"
    hr.enable(spark)
    try:
        rows = spark.readStream.schema(schema).json(str(folder)).withWatermark("ts", "1 second")
        writer = behind(rows).writeStream.foreachBatch(lambda batch, _: found.extend(map(tuple, batch.collect())))
        query = writer.option("checkpointLocation", str(tmp_path / "ckpt")).option("headrace.instances", instances).start()
        try:
            for minute, keys in enumerate(FILES):
                lines = [json.dumps({"k": k, "ts": f"2024-01-01 00:{minute:02d}:00"}) for k in keys]
                (folder / f"{minute}.json").write_text("\n".join(lines))
                query.processAllAvailable()
        finally:
            query.stop()
    finally:
        hr.disable(spark)
    assert found == [tuple(row) for row in behind(spark.read.schema(schema).json(str(folder))).collect()] == [("a", 3)]
