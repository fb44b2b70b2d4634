"""Where the calls of the demo come in, and where its results go: folders of files, or topics of a Kafka broker that the demo starts."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from headrace.api.writer import StreamWriter
from headrace.demo.query import RESULTS, SCHEMA
from headrace.testing.kafka import Broker, Record, connector

Publish = Callable[[], None]
"""Makes the calls of a tick visible to the query."""


class Places(ABC):
    """One kind of input and output."""

    what: str
    """What the input is called."""

    def settings(self) -> dict[str, str]:
        """Settings that the session needs."""
        return {}

    @abstractmethod
    def prepare(self, tick: int, calls: pa.Table) -> Publish:
        """Prepare the calls of a tick."""

    @abstractmethod
    def stream(self, spark: SparkSession) -> DataFrame:
        """The calls as a streaming DataFrame."""

    @abstractmethod
    def write(self, results: Any) -> StreamWriter:
        """A writer of the query's results."""

    @abstractmethod
    def calls(self, spark: SparkSession) -> DataFrame:
        """All calls that came."""

    @abstractmethod
    def results(self, spark: SparkSession) -> DataFrame:
        """All results that were written."""

    def close(self) -> None:  # noqa: B027 (folders stay)
        """End what was started."""


@dataclass
class Folders(Places):
    """One Parquet file per tick, and a folder of Parquet files as sink."""

    folder: Path
    heavy: Path
    what: str = "files"

    def prepare(self, tick: int, calls: pa.Table) -> Publish:
        # A file is written under a hidden name and then renamed, so Spark reads all of it or nothing.
        hidden = self.folder / f".calls-{tick:06d}.parquet"
        pq.write_table(calls, hidden)

        def publish() -> None:
            hidden.rename(self.folder / f"calls-{tick:06d}.parquet")

        return publish

    def stream(self, spark: SparkSession) -> DataFrame:
        return spark.readStream.schema(SCHEMA).parquet(str(self.folder))

    def write(self, results: Any) -> StreamWriter:
        writer: StreamWriter = results.writeStream.format("parquet").option("path", str(self.heavy))
        return writer

    def calls(self, spark: SparkSession) -> DataFrame:
        return spark.read.schema(SCHEMA).parquet(str(self.folder))

    def results(self, spark: SparkSession) -> DataFrame:
        # A stream that closed no window with a heavy customer has written no file, and maybe no folder.
        return spark.read.schema(RESULTS).parquet(str(self.heavy)) if self.heavy.exists() else spark.createDataFrame([], RESULTS)


class Topics(Places):
    """Calls as JSON in one topic, results as JSON in another, each there once for consumers with ``read_committed``."""

    what = "topic"
    CALLS, HEAVY = "calls", "heavy"
    TIMES = ("start", "end", "ts")

    def __init__(self, folder: Path, partitions: int = 4) -> None:
        self.broker, self._heavy = Broker(folder), self.HEAVY
        self.broker.start()
        self.broker.create(self.CALLS, partitions)
        self.broker.create(self.HEAVY)
        self._producer = self.broker.producer()

    @classmethod
    def running(cls, broker: Broker, heavy: str) -> Topics:
        """The topics of a broker that runs elsewhere, with another topic for results."""
        found = cls.__new__(cls)
        found.broker, found._heavy, found._producer = broker, heavy, None
        return found

    def settings(self) -> dict[str, str]:
        return {"spark.jars": connector()}

    def prepare(self, tick: int, calls: pa.Table) -> Publish:
        for name in self.TIMES:
            calls = calls.set_column(calls.column_names.index(name), name, calls[name].cast(pa.int64()))
        records = [Record(json.dumps(call).encode(), call["src"].encode()) for call in calls.to_pylist()]
        return lambda: self.broker.produce(self.CALLS, records, self._producer)

    def stream(self, spark: SparkSession, **options: Any) -> DataFrame:
        return self._parsed(self._reader(spark.readStream, self.CALLS).option("startingOffsets", "earliest").options(**options).load())

    def write(self, results: Any) -> StreamWriter:
        rows = results.select(F.col("src").alias("key"), F.to_json(F.struct(*results.columns)).alias("value"))
        writer: StreamWriter = rows.writeStream.format("kafka").option("kafka.bootstrap.servers", self.broker.address)
        return writer.option("topic", self._heavy)

    def calls(self, spark: SparkSession) -> DataFrame:
        return self._parsed(self._reader(spark.read, self.CALLS).load())

    def results(self, spark: SparkSession) -> DataFrame:
        records = self._reader(spark.read, self._heavy).option("kafka.isolation.level", "read_committed").load()
        rows: DataFrame = records.select(F.from_json(F.col("value").cast("string"), RESULTS).alias("row")).select("row.*")
        return rows

    def _reader(self, reader: Any, topic: str) -> Any:
        return reader.format("kafka").option("kafka.bootstrap.servers", self.broker.address).option("subscribe", topic)

    def _parsed(self, records: DataFrame) -> DataFrame:
        numbers = "src string, dst string, start long, end long, ts long"
        calls: DataFrame = records.select(F.from_json(F.col("value").cast("string"), numbers).alias("call")).select("call.*")
        return calls.select("src", "dst", *(F.timestamp_micros(name).alias(name) for name in self.TIMES))

    def close(self) -> None:
        self.broker.stop()
