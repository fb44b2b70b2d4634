"""What the tests with Kafka have in common: calls as JSON records, a query over them, and reading its results."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from random import Random
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import headrace as hr
from headrace.api.writer import StreamWriter
from headrace.testing.kafka import Broker, Record

SCHEMA = "src string, seconds long"


def calls(count: int, seed: int = 1, keys: int = 20) -> Iterator[Record]:
    """Calls as JSON, with the caller as key."""
    random = Random(seed)
    for _ in range(count):
        src = f"u{random.randrange(keys)}"
        yield Record(json.dumps({"src": src, "seconds": random.randrange(100)}).encode(), key=src.encode())


def read(spark: SparkSession, broker: Broker, topics: str, **options: Any) -> DataFrame:
    """A stream of topics, from their beginning."""
    return _reader(spark.readStream, broker, topics).option("startingOffsets", "earliest").options(**options).load()


def read_all(spark: SparkSession, broker: Broker, topics: str, **options: Any) -> DataFrame:
    """The rows of topics as Spark's batch engine reads them."""
    return _reader(spark.read, broker, topics).options(**options).load()


def _reader(reader: Any, broker: Broker, topics: str) -> Any:
    return reader.format("kafka").option("kafka.bootstrap.servers", broker.address).option("subscribe", topics)


def totals(records: Any) -> Any:
    """Count and sum per caller, as records: runs on a stream and on a batch."""
    found = records.select(F.from_json(F.col("value").cast("string"), SCHEMA).alias("call")).select("call.*")
    found = found.groupBy("src").agg(F.count("*").alias("n"), F.sum("seconds").alias("total"))
    return found.select(F.col("src").alias("key"), F.to_json(F.struct("src", "n", "total")).alias("value"))


def to_kafka(rows: hr.Stream, broker: Broker, topic: str | None, checkpoint: Path, mode: str = "update") -> StreamWriter:
    """A writer of a stream to a topic."""
    writer = rows.writeStream.outputMode(mode).format("kafka").option("kafka.bootstrap.servers", broker.address)
    writer = writer if topic is None else writer.option("topic", topic)
    return writer.option("checkpointLocation", str(checkpoint)).option("headrace.instances", 2)


def values(records: Iterable[Record]) -> list[dict[str, Any]]:
    return [json.loads(record.value or b"null") for record in records]


def newest(records: Iterable[Record]) -> dict[str, dict[str, Any]]:
    """By caller: the last result."""
    return {each["src"]: each for each in values(records)}


def answer(spark: SparkSession, broker: Broker, topics: str, **options: Any) -> dict[str, dict[str, Any]]:
    """Spark's batch answer over the topics, by caller."""
    rows = totals(read_all(spark, broker, topics, **options)).collect()
    return newest(Record(row.value.encode()) for row in rows)


def assert_each_once(records: list[Record]) -> None:
    """In update mode each result of a caller counts more calls than the one before. One that came twice does not."""
    seen: dict[str, int] = {}
    for each in values(records):
        assert each["n"] > seen.get(each["src"], 0), f"{each} came again, or out of order"
        seen[each["src"]] = each["n"]
