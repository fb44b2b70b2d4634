"""The recipes of docs/sinks.md for tables: ``python -m tests.matrix.tables delta|iceberg FOLDER``. Fails unless each row is there once."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import headrace as hr
from headrace.errors import BatchFailedError
from headrace.ids import Version
from headrace.runtime.failpoints import break_off
from headrace.testing import assert_same_rows
from headrace.testing.kafka import connector


def write_input(spark: SparkSession, folder: Path) -> str:
    """Four files of rows, one for each batch."""
    for number in range(4):
        rows = spark.range(50).select((F.col("id") % (5 + number)).alias("k"), (F.col("id") + number).alias("v"))
        rows.coalesce(1).write.parquet(str(folder / str(number)))
    return str(folder / "*")


def totals(rows: Any) -> Any:
    return rows.groupBy("k").agg(F.count("*").alias("n"), F.sum("v").alias("total"))


def stream(spark: SparkSession, source: str) -> hr.Stream:
    return hr.stream(spark.readStream.schema("k long, v long").option("maxFilesPerTrigger", 1).parquet(source))


def broken_off_twice(start: Callable[[], hr.HeadraceQuery]) -> None:
    """Versions 1 and 2 are delivered, and Spark does not learn of it: so they are delivered again."""
    for version in (1, 2):
        with break_off("deliver-after", Version(version)), pytest.raises(BatchFailedError):
            start().awaitTermination()
    start().awaitTermination()


def delta(spark: SparkSession, source: str, folder: Path) -> DataFrame:
    table = str(folder / "table")

    def start() -> hr.HeadraceQuery:
        writer = stream(spark, source).writeStream.format("delta").option("path", table)
        return writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()

    broken_off_twice(start)
    return spark.read.format("delta").load(table)


def iceberg(spark: SparkSession, source: str, folder: Path) -> DataFrame:
    spark.sql("CREATE TABLE lake.db.rows (k bigint, v bigint) USING iceberg")

    def append_once(batch: DataFrame, version: int) -> None:
        done = "SELECT max(cast(summary['headrace-version'] AS bigint)) FROM lake.db.rows.snapshots"
        last = batch.sparkSession.sql(done).collect()[0][0]
        if last is None or version > last:
            batch.writeTo("lake.db.rows").option("snapshot-property.headrace-version", str(version)).append()

    def start() -> hr.HeadraceQuery:
        writer = stream(spark, source).writeStream.foreachBatch(append_once)
        return writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()

    broken_off_twice(start)
    return spark.table("lake.db.rows")


def settings(kind: str, folder: Path) -> dict[str, str]:
    if kind == "delta":
        return {
            "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        }
    catalog = "spark.sql.catalog.lake"
    return {
        catalog: "org.apache.iceberg.spark.SparkCatalog",
        f"{catalog}.type": "hadoop",
        f"{catalog}.warehouse": str(folder / "lake"),
        # The query has a session of its own, whose writes a cache of this one would not see for a while.
        f"{catalog}.cache-enabled": "false",
    }


def main() -> None:
    kind, folder = sys.argv[1], Path(sys.argv[2])
    session = hr.session(
        f"tables {kind}",
        master="local[2]",
        spark__ui__enabled="false",
        spark__sql__shuffle__partitions="2",
        spark__jars=connector("tables"),
        **settings(kind, folder),
    )
    session.sparkContext.setLogLevel("ERROR")
    source = write_input(session, folder / "in")
    found = {"delta": delta, "iceberg": iceberg}[kind](session, source, folder)
    assert_same_rows(found.collect(), session.read.parquet(source).collect(), columns=["k", "v"])
    print(f"{kind}: each row is there once")
    session.stop()


if __name__ == "__main__":
    main()
