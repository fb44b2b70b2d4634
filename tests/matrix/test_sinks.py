"""Kafka, Delta Lake and Iceberg on each Spark that they support: what breaks off behind a delivery is there once after the restart."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import headrace as hr
from headrace.testing import assert_same_rows
from headrace.testing.kafka import Broker, jars_folder, why_not
from tests.matrix.tables import broken_off_twice, stream, totals, write_input

pytestmark = [pytest.mark.spark, pytest.mark.extra]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    if (why := why_not()) is not None:
        pytest.skip(why)
    made = Broker(tmp_path / "broker")
    made.start()
    try:
        yield made
    finally:
        made.stop()


@pytest.fixture
def source(spark: SparkSession, tmp_path: Path) -> str:
    return write_input(spark, tmp_path / "in")


def test_kafka(spark: SparkSession, broker: Broker, source: str, tmp_path: Path) -> None:
    broker.create("results")

    def start() -> hr.HeadraceQuery:
        rows = totals(stream(spark, source)).select(F.to_json(F.struct("k", "n", "total")).alias("value"))
        writer = rows.writeStream.outputMode("update").format("kafka").option("kafka.bootstrap.servers", broker.address)
        return writer.option("topic", "results").option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start()

    broken_off_twice(start)
    found = [json.loads(record.value or b"") for record in broker.consume("results")]
    assert len({(row["k"], row["n"]) for row in found}) == len(found), "each count of a key is there once"
    wanted = totals(spark.read.parquet(source)).collect()
    assert_same_rows({row["k"]: tuple(row.values()) for row in found}.values(), wanted, columns=["k", "n", "total"])
    # And back: Spark's batch answer over the topic, and Headrace's.
    read = spark.readStream.format("kafka").option("kafka.bootstrap.servers", broker.address).option("subscribe", "results")
    counted = hr.stream(read.option("startingOffsets", "earliest").load()).groupBy("topic").count()
    rows: list[Any] = []
    query = counted.writeStream.outputMode("update").foreachBatch(lambda batch, _: rows.extend(batch.collect()))
    query.option("checkpointLocation", str(tmp_path / "back")).trigger(availableNow=True).start().awaitTermination()
    assert [tuple(row) for row in rows] == [("results", len(found))]


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_tables(kind: str, tmp_path: Path) -> None:
    """In a process of its own, because a session's extensions and catalogs are those of its JVM."""
    folder = jars_folder()
    if folder is None or not any((folder / "tables").glob(f"*{kind}*")):
        pytest.skip(f"no release of {kind} for this Spark was fetched")
    done = subprocess.run([sys.executable, "-m", "tests.matrix.tables", kind, str(tmp_path)], capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert f"{kind}: each row is there once" in done.stdout
