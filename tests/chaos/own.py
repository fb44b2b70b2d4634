"""A query of our own for ``headrace chaos``: a program like a user's, with up to five sinks.

    python -m tests.chaos.own ROWS FOLDER        writes its input
    CHAOS_INPUT=FOLDER headrace chaos tests/chaos/own.py --faults 50

``CHAOS_SINKS=totals,pairs`` chooses sinks among totals (a running aggregate), windows (sliding), distinct, sessions and pairs (a join); by
default it is the first three.
Rows come out of order, but never late, so that Spark's batch answer is what must come out.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import headrace as hr

SCHEMA = "id long, k string, ts timestamp, v long"
BEGIN_US, STEP_US, JITTER_US = 1_700_000_000_000_000, 40_000, 8_000_000
DELAY = "10 seconds"
"""Longer than rows are out of order."""
WITHIN_S = 2


def write(folder: Path, rows: int, seed: int = 7, keys: int = 3000, files: int = 20) -> None:
    """Write the input: skewed keys, some null; every twentieth row comes twice."""
    folder.mkdir(parents=True)
    random = np.random.default_rng(seed)
    key = (keys * random.random(rows) ** 3).astype(np.int64)
    ts = BEGIN_US + np.arange(rows) * STEP_US - random.integers(0, JITTER_US, rows)
    ids = np.arange(rows)
    again = np.flatnonzero(random.random(rows) < 0.05)
    again = again[again > 0]
    key[again], ts[again], ids[again] = key[again - 1], ts[again - 1], ids[again - 1]
    value = random.integers(-1000, 1000, rows)
    names = pa.array([f"key {each}" for each in key], mask=random.random(rows) < 0.02)
    table = pa.table({"id": ids, "k": names, "ts": pa.array(ts, pa.timestamp("us", "UTC")), "v": value})
    size = -(-rows // files)
    for at in range(files):
        pq.write_table(table.slice(at * size, size), folder / f"{at:03d}.parquet")
        os.utime(folder / f"{at:03d}.parquet", (BEGIN_US / 1e6 + at, BEGIN_US / 1e6 + at))


FORMATS = {"totals": "parquet", "windows": "parquet", "distinct": "json", "sessions": "csv", "pairs": "orc"}
"""The sinks that the program asks for. ``headrace chaos`` replaces them."""


def chosen() -> list[str]:
    return os.environ.get("CHAOS_SINKS", "totals,windows,distinct").split(",")


def streams(rows: Any, joined: Callable[[Any, Any], Any]) -> dict[str, Any]:
    """What each sink gets, of a stream or of a DataFrame; ``joined`` joins two of them."""
    sessions = rows.groupBy("k", F.session_window("ts", "1 second")).agg(F.count("*").alias("n"), F.sum("v").alias("s"))
    sides = [rows.filter(f"v % 2 = {rest}").select("k", "id", "ts") for rest in (0, 1)]
    return {
        "totals": rows.groupBy("k").agg(F.count("*").alias("n"), F.sum("v").alias("s"), F.min("v").alias("low"), F.max("v").alias("high")),
        "windows": rows.groupBy("k", F.window("ts", "40 seconds", "15 seconds")).agg(F.count("*").alias("n"), F.sum("v").alias("s")),
        "distinct": rows.select("id", "ts").dropDuplicates(["id", "ts"]),
        "sessions": sessions,
        "pairs": joined(*sides).select("k", "id", "id_right"),
    }


def reference(rows: DataFrame) -> dict[str, DataFrame]:
    """Spark's answer: its DataFrames have no ``join(within=...)``."""

    def joined(left: DataFrame, right: DataFrame) -> DataFrame:
        other = right.toDF("k_right", "id_right", "ts_right")
        near = F.abs(F.unix_micros("ts") - F.unix_micros("ts_right")) <= WITHIN_S * 1_000_000
        return left.join(other, (F.col("k") == F.col("k_right")) & near)

    found = streams(rows, joined)
    return {f"{at}-{FORMATS[name]}": found[name] for at, name in enumerate(chosen())}


def main(folder: str) -> None:
    spark = hr.session("our own query")
    rows = hr.stream(spark.readStream.schema(SCHEMA).parquet(folder)).withWatermark("ts", DELAY)
    found = streams(rows, lambda left, right: left.join(right, on="k", within=f"{WITHIN_S} seconds"))
    writers = []
    for name in chosen():
        writer = found[name].writeStream.format(FORMATS[name]).option("path", f"unused-{name}")
        writers.append(writer.outputMode("update").foreachBatch(print) if name == "totals" else writer)
    hr.start(*writers, checkpointLocation="unused-checkpoint").awaitTermination()


if __name__ == "__main__":
    if len(sys.argv) == 3:
        write(Path(sys.argv[2]), int(sys.argv[1]))
    else:
        main(os.environ["CHAOS_INPUT"])
