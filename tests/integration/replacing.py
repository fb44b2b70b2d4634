"""Queries that are replaced in tests: their source, and Spark's batch answer over all its rows."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import headrace as hr

SCHEMA = "k string, v int, ts timestamp"
Row = tuple[str, int, int]
"""A key, a value, and the minute of the event time."""


class Place:
    """A folder of rows, a checkpoint, and what sinks were told of each key last."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder, self.files = spark, folder, 0
        self.source.mkdir(exist_ok=True)
        self.told: dict[str, dict[Any, tuple[Any, ...]]] = {}

    @property
    def source(self) -> Path:
        return self.folder / "in"

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint"

    def offer(self, *rows: Row) -> None:
        """One file, which is one batch."""
        self.files += 1
        lines = [json.dumps({"k": k, "v": v, "ts": f"2024-01-01T00:{minute:02d}:00.000Z"}) for k, v, minute in rows]
        hidden = self.source / f".{self.files:04d}"
        hidden.write_text("\n".join(lines))
        hidden.rename(self.source / f"{self.files:04d}.json")

    def rows(self, schema: str = SCHEMA) -> DataFrame:
        return self.spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).json(str(self.source))

    def timed(self) -> DataFrame:
        return self.rows().withWatermark("ts", "1 minute")

    def batch(self) -> DataFrame:
        return self.spark.read.schema(SCHEMA).json(str(self.source))

    def keep(self, name: str) -> Callable[[DataFrame, int], None]:
        """A function for foreachBatch: results replace those before with the same first column."""

        def keep(rows: DataFrame, version: int) -> None:
            self.told.setdefault(name, {}).update({row[0]: tuple(row) for row in rows.collect()})

        return keep

    def update(self, frame: Any, name: str) -> Any:
        """The writer of results in update mode."""
        writer = frame.writeStream if isinstance(frame, hr.Stream) else hr.writeStream(frame)
        return writer.outputMode("update").foreachBatch(self.keep(name)).option("checkpointLocation", str(self.checkpoint))

    def files_of(self, frame: Any, name: str) -> Any:
        """The writer of results in append mode, to files."""
        writer = frame.writeStream if isinstance(frame, hr.Stream) else hr.writeStream(frame)
        writer = writer.format("parquet").option("path", str(self.folder / name))
        return writer.option("checkpointLocation", str(self.checkpoint))

    def written(self, name: str, *columns: str) -> list[tuple[Any, ...]]:
        return sorted(tuple(row) for row in self.spark.read.parquet(str(self.folder / name)).select(*columns).collect())


def sums(rows: Any) -> Any:
    return rows.groupBy("k").agg(F.sum("v").alias("s"))


def sums_and_more(rows: Any) -> Any:
    return rows.groupBy("k").agg(F.max("v").alias("high"), F.sum("v").alias("s"), F.count("*").alias("n"))


def by_key(frame: DataFrame) -> dict[Any, tuple[Any, ...]]:
    """Spark's batch answer, as ``Place.told`` has it."""
    return {row[0]: tuple(row) for row in frame.collect()}
