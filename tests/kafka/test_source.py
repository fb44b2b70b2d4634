"""What topics can be: several, of any number of partitions, binary, compacted, with transactions, growing, on a broker that goes away."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import headrace as hr
from headrace.testing import assert_same_rows
from headrace.testing.kafka import Broker, Record
from tests.kafka.calls import answer, assert_each_once, calls, newest, read, read_all, to_kafka, totals

pytestmark = [pytest.mark.spark, pytest.mark.extra, pytest.mark.slow]


def run(rows: Any, checkpoint: Path, mode: str = "update") -> list[tuple[Any, ...]]:
    """All rows that a query gives, until everything in its topics is read."""
    found: list[tuple[Any, ...]] = []
    writer = rows.writeStream.outputMode(mode).foreachBatch(lambda batch, _: found.extend(map(tuple, batch.collect())))
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination()
    return found


def test_several_topics_with_keys_and_headers(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    for topic, partitions in (("a-calls", 3), ("b-calls", 1)):
        broker.create(topic, partitions)
        headers = (("kind", topic[0].encode()), ("trace", b"\x00\x01"))
        broker.produce(topic, (Record(each.value, each.key, headers) for each in calls(300, seed=len(topic) + partitions)))

    def query(records: Any) -> Any:
        kind = F.element_at(F.filter("headers", lambda each: each["key"] == "kind"), 1)["value"].cast("string")
        rows = records.select("topic", F.col("key").cast("string").alias("src"), kind.alias("kind"), "value")
        return rows.groupBy("topic", "src", "kind").agg(F.count("*").alias("n"), F.sum(F.length("value")).alias("bytes"))

    stream = hr.stream(read(spark, broker, "a-calls,b-calls", includeHeaders="true", maxOffsetsPerTrigger=170))
    found = {row[:3]: row for row in run(query(stream), tmp_path / "checkpoint")}
    wanted = query(read_all(spark, broker, "a-calls,b-calls", includeHeaders="true"))
    assert_same_rows(found.values(), wanted.collect(), columns=wanted.columns, keys=["topic", "src", "kind"])


def test_binary_values_in_windows_by_spark_s_own_methods(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    """An unmodified program: four bytes of a caller and eight of a duration, with the time that Kafka keeps."""
    broker.create("binary", 2)
    begin_ms = 1_790_000_000_000
    records = (Record(struct.pack(">iq", i % 7, i), timestamp_ms=begin_ms + i * 50) for i in range(2000))
    broker.produce("binary", [*records, Record(struct.pack(">iq", -1, 0), timestamp_ms=begin_ms + 10_000_000, partition=0)])

    def number(begin: int, length: int) -> Any:
        return F.conv(F.hex(F.substring("value", begin, length)), 16, 10).cast("long")

    def query(frame: DataFrame) -> DataFrame:
        rows = frame.select(number(1, 4).alias("src"), number(5, 8).alias("v"), "timestamp").withWatermark("timestamp", "1 second")
        grouped = rows.groupBy("src", F.window("timestamp", "20 seconds", "10 seconds")).agg(F.sum("v").alias("v"))
        return grouped.select("src", F.col("window.start").alias("start"), "v")

    hr.enable(spark)
    try:
        frame = query(read(spark, broker, "binary", maxOffsetsPerTrigger=700))
        writer = frame.writeStream.format("parquet").option("path", str(tmp_path / "out"))
        started = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
        assert isinstance(started, hr.HeadraceQuery)
        started.awaitTermination()
    finally:
        spark.conf.unset("headrace.enabled")
    wanted = query(read_all(spark, broker, "binary")).filter(F.col("start") < F.timestamp_millis(F.lit(begin_ms + 9_000_000)))
    assert_same_rows(spark.read.parquet(str(tmp_path / "out")).collect(), wanted.collect(), columns=wanted.columns)


def test_it_begins_where_it_is_told(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    broker.create("late", 2)
    broker.produce("late", (Record(b"%d" % i, partition=i % 2) for i in range(100)))
    offsets = '{"late": {"0": 40, "1": -2}}'
    rows = hr.stream(read(spark, broker, "late", startingOffsets=offsets)).groupBy("partition").agg(F.count("*").alias("n"))
    assert sorted(run(rows, tmp_path / "checkpoint")) == [(0, 10), (1, 50)]


def test_a_topic_that_grows_and_a_query_that_starts_again(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    broker.create("growing")
    broker.create("grown")
    broker.produce("growing", calls(200))

    def start(instances: int) -> hr.HeadraceQuery:
        rows = hr.stream(read(spark, broker, "growing", maxOffsetsPerTrigger=150, **{"kafka.metadata.max.age.ms": "500"}))
        writer = to_kafka(totals(rows), broker, "grown", tmp_path / "checkpoint").option("headrace.instances", instances)
        return writer.trigger(processingTime="200 milliseconds").start()

    query = start(2)
    query.processAllAvailable()
    broker.grow("growing", 4)
    broker.produce("growing", (Record(each.value, each.key, partition=i % 4) for i, each in enumerate(calls(400, seed=2))))
    query.processAllAvailable()
    backlog = query.lastProgress["headrace"]["backlog"]
    assert backlog["topics"] == {"growing": {"0": 0, "1": 0, "2": 0, "3": 0}}
    assert (backlog["rows"], backlog["ageMs"]) == (0, 0.0)
    query.stop()
    broker.produce("growing", calls(100, seed=3))
    query = start(3)
    query.processAllAvailable()
    query.stop()
    found = broker.consume("grown")
    assert_each_once(found)
    assert newest(found) == answer(spark, broker, "growing")


def test_transactions_and_compaction(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    """Offsets have holes: records of a transaction that was aborted, its marks, and records that compaction has removed."""
    broker.create("ledger", cleanup_policy="compact", segment_ms="100", min_cleanable_dirty_ratio="0.01", max_compaction_lag_ms="200")
    for number in range(4):
        with broker.transaction(f"bank-{number}", commit=number != 1) as producer:
            for each in calls(50, seed=number, keys=8):
                producer.produce("ledger", each.value, each.key)
    options = {"kafka.isolation.level": "read_committed"}

    def query(records: Any) -> Any:
        return records.groupBy(F.col("key").cast("string").alias("src")).agg(F.count("*").alias("n"), F.max("value").alias("most"))

    rows = query(hr.stream(read(spark, broker, "ledger", maxOffsetsPerTrigger=60, **options)))
    found = {row[0]: row for row in run(rows, tmp_path / "checkpoint")}
    wanted = query(read_all(spark, broker, "ledger", **options))
    assert sum(row[1] for row in found.values()) <= 150, "the aborted transaction does not count"
    # Compaction may remove records between the two; then Spark's answer has less, and never other keys.
    assert set(found) == {row.src for row in wanted.collect()}
    if sum(row.n for row in wanted.collect()) == 150:
        assert_same_rows(found.values(), wanted.collect(), columns=wanted.columns, keys=["src"])


def test_the_broker_is_killed_and_comes_back(spark: SparkSession, own_broker: Broker, tmp_path: Path) -> None:
    own_broker.create("in", 2)
    own_broker.create("out")
    own_broker.produce("in", calls(300))
    rows = hr.stream(read(spark, own_broker, "in", maxOffsetsPerTrigger=60))
    query = to_kafka(totals(rows), own_broker, "out", tmp_path / "checkpoint").trigger(processingTime="100 milliseconds").start()
    try:
        while not query.recentProgress:
            query.awaitTermination(1)
        own_broker.kill()
        query.awaitTermination(2)
        own_broker.start()
        own_broker.produce("in", calls(300, seed=2))
        query.processAllAvailable()
    finally:
        query.stop()
    found = own_broker.consume("out")
    assert_each_once(found)
    assert newest(found) == answer(spark, own_broker, "in")
