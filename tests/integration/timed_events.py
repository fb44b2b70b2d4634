"""Timed events for tests of graphs: made, shuffled as far as the watermark allows, and written as files of a source."""

from __future__ import annotations

import os
import random
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

import headrace as hr

EPOCH = datetime(2024, 1, 1, tzinfo=UTC)
DELAY_S = 40
END_S = 100_000
SCHEMA = "k string, ts timestamp, v long"
Event = tuple[str, int, int]
Results = set[tuple[Any, ...]]
_ages = count()


def events(seed: int = 5, rows: int = 240) -> list[Event]:
    rnd = random.Random(seed)
    return [(f"k{rnd.randrange(5)}", rnd.randrange(900), at) for at in range(rows)]


def write(folder: Path, name: str, part: list[Event]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    data = [{"k": k, "ts": EPOCH + timedelta(seconds=s), "v": v} for k, s, v in part]
    path = folder / f"{name}.parquet"
    pq.write_table(pa.Table.from_pylist(data, schema=_ARROW), path)
    # Spark takes files by age, and these are written faster than clocks tick.
    age_s = 1_700_000_000 + next(_ages)
    os.utime(path, (age_s, age_s))


_ARROW = pa.schema([("k", pa.string()), ("ts", pa.timestamp("us", tz="UTC")), ("v", pa.int64())])


def shuffled(all_events: list[Event], size: int = 60) -> list[list[Event]]:
    """Files in which no row is later than the watermark allows: rows move by less than the delay."""
    rnd = random.Random(1)
    moved = sorted(all_events, key=lambda e: e[1] + rnd.random() * (DELAY_S - 1))
    return [moved[at : at + size] for at in range(0, len(moved), size)]


def second(moment: Any) -> int:
    return int((moment.replace(tzinfo=UTC) - EPOCH).total_seconds())


def source(spark: SparkSession, folder: Path) -> Any:
    stream = hr.stream(spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(folder)))
    return stream.withWatermark("ts", f"{DELAY_S} seconds")
