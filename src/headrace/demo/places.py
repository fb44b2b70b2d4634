"""Where the calls of the demo come in, and where the results of a lane go: folders of files, or topics of a Kafka broker.

The demo fills a place with calls. Each lane is a process of its own and opens the same place by its description (`Places.about`).
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from headrace.demo.query import PRICED, SCHEMA
from headrace.testing.kafka import Broker, Record, connector

BATCH_FILES = 15
"""A batch takes at most so many files: the calls of three seconds."""

JSON = {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"}
"""Spark's own format for times in JSON has milliseconds only."""

Publish = Callable[[], None]
"""Makes the calls of a tick visible to the lanes."""


class Places(ABC):
    """One kind of input and output."""

    what: str
    """What the input is called."""

    @abstractmethod
    def about(self) -> dict[str, Any]:
        """What another process needs to open the same place: see `opened`."""

    def settings(self) -> dict[str, str]:
        """Settings that a session needs."""
        return {}

    @abstractmethod
    def prepare(self, tick: int, calls: pa.Table) -> Publish:
        """Prepare the calls of a tick."""

    @abstractmethod
    def stream(self, spark: SparkSession, batch_rows: int | None = None) -> DataFrame:
        """The calls as a streaming DataFrame, in batches of about so many."""

    @abstractmethod
    def write(self, results: Any, lane: str) -> Any:
        """A writer of a lane's results. ``results`` has the method ``writeStream`` of a DataFrame."""

    @abstractmethod
    def calls(self, spark: SparkSession) -> DataFrame:
        """All calls that came."""

    @abstractmethod
    def results(self, spark: SparkSession, lane: str) -> DataFrame:
        """All results that a lane has written."""

    def close(self) -> None:  # noqa: B027 (folders stay)
        """End what was started."""


def opened(about: Mapping[str, Any]) -> Places:
    """The place that another process has described."""
    if about["kind"] == Folders.what:
        return Folders(Path(about["calls"]), Path(about["out"]))
    return Topics.running(Broker(Path(about["folder"]), port=about["port"]))


@dataclass
class Folders(Places):
    """One Parquet file per tick, and for each lane a folder of Parquet files as sink."""

    folder: Path
    out: Path
    what: str = field(default="files", init=False)

    def about(self) -> dict[str, Any]:
        return {"kind": self.what, "calls": str(self.folder), "out": str(self.out)}

    def prepare(self, tick: int, calls: pa.Table) -> Publish:
        # A file is written under a hidden name and then renamed, so Spark reads all of it or nothing.
        hidden = self.folder / f".calls-{tick:06d}.parquet"
        pq.write_table(calls, hidden)

        def publish() -> None:
            hidden.rename(self.folder / f"calls-{tick:06d}.parquet")

        return publish

    def stream(self, spark: SparkSession, batch_rows: int | None = None) -> DataFrame:
        # Files are not all of one size, so a number of files stands for a time.
        reader = spark.readStream.schema(SCHEMA)
        return (reader.option("maxFilesPerTrigger", BATCH_FILES) if batch_rows else reader).parquet(str(self.folder))

    def write(self, results: Any, lane: str) -> Any:
        return results.writeStream.format("parquet").option("path", str(self._sink(lane)))

    def calls(self, spark: SparkSession) -> DataFrame:
        return spark.read.schema(SCHEMA).parquet(str(self.folder))

    def results(self, spark: SparkSession, lane: str) -> DataFrame:
        # A lane that has finished no batch has no folder yet.
        sink = self._sink(lane)
        return spark.read.schema(PRICED).parquet(str(sink)) if sink.exists() else spark.createDataFrame([], PRICED)

    def _sink(self, lane: str) -> Path:
        return self.out / lane / "priced"


class Topics(Places):
    """Calls as JSON in one topic, results of each lane as JSON in another."""

    what = "topic"
    CALLS = "calls"
    TIMES = ("start", "end", "ts")

    def __init__(self, folder: Path, partitions: int = 4, lanes: tuple[str, ...] = ()) -> None:
        self.broker = Broker(folder)
        self.broker.start()
        self.broker.create(self.CALLS, partitions)
        for lane in lanes:
            self.broker.create(self.sink(lane))
        self._producer = self.broker.producer()

    @classmethod
    def running(cls, broker: Broker) -> Topics:
        """The topics of a broker that runs elsewhere."""
        found = cls.__new__(cls)
        found.broker, found._producer = broker, None
        return found

    @staticmethod
    def sink(lane: str) -> str:
        """The topic of a lane's results."""
        return f"priced-{lane}"

    def about(self) -> dict[str, Any]:
        # The folder is not opened: the broker runs already.
        return {"kind": self.what, "folder": str(self.broker.folder / "none"), "port": self.broker.port}

    def settings(self) -> dict[str, str]:
        return {"spark.jars": connector()}

    def prepare(self, tick: int, calls: pa.Table) -> Publish:
        for name in self.TIMES:
            calls = calls.set_column(calls.column_names.index(name), name, calls[name].cast(pa.int64()))
        records = [Record(json.dumps(call).encode(), call["src"].encode()) for call in calls.to_pylist()]
        return lambda: self.broker.produce(self.CALLS, records, self._producer)

    def stream(self, spark: SparkSession, batch_rows: int | None = None) -> DataFrame:
        reader = self._reader(spark.readStream, self.CALLS).option("startingOffsets", "earliest")
        return self._parsed((reader.option("maxOffsetsPerTrigger", batch_rows) if batch_rows else reader).load())

    def write(self, results: Any, lane: str) -> Any:
        rows = results.select(F.col("src").alias("key"), F.to_json(F.struct(*results.columns), JSON).alias("value"))
        writer = rows.writeStream.format("kafka").option("kafka.bootstrap.servers", self.broker.address)
        return writer.option("topic", self.sink(lane))

    def calls(self, spark: SparkSession) -> DataFrame:
        return self._parsed(self._reader(spark.read, self.CALLS).load())

    def results(self, spark: SparkSession, lane: str, schema: str = PRICED) -> DataFrame:
        records = self._reader(spark.read, self.sink(lane)).option("kafka.isolation.level", "read_committed").load()
        rows: DataFrame = records.select(F.from_json(F.col("value").cast("string"), schema, JSON).alias("row")).select("row.*")
        return rows

    def _reader(self, reader: Any, topic: str) -> Any:
        return reader.format("kafka").option("kafka.bootstrap.servers", self.broker.address).option("subscribe", topic)

    def _parsed(self, records: DataFrame) -> DataFrame:
        numbers = "src string, dst string, start long, end long, ts long"
        calls: DataFrame = records.select(F.from_json(F.col("value").cast("string"), numbers).alias("call")).select("call.*")
        return calls.select("src", "dst", *(F.timestamp_micros(name).alias(name) for name in self.TIMES))

    def close(self) -> None:
        self.broker.stop()
