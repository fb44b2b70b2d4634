"""A small streaming program to be killed: ``python -m tests.crash.driver KIND INPUT OUTPUT CHECKPOINT --instances N``.

It reads parquet files, one per batch, until none is left, and exits with 0. After a crash it continues where it was.
"""

from __future__ import annotations

import argparse
import os
import threading
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import headrace as hr
from headrace.api.query import HeadraceQuery
from headrace.chaos.processes import die_with

SCHEMA = "k long, ts timestamp, v double"
WINDOW_S, ADVANCE_S, DELAY_S = 40, 15, 10
KINDS = ("windowed", "dedup", "running", "graph")


def session() -> SparkSession:
    """Small, quick to start, and ready to try a task again: a worker that dies must not end the job."""
    spark = hr.session(
        "crash",
        master="local[2,4]",
        spark__ui__enabled="false",
        spark__sql__shuffle__partitions="2",
        spark__sql__session__timeZone="UTC",
        spark__driver__memory="512m",
        # The program runs for some seconds, of which generating and compiling code would take a third.
        spark__sql__codegen__wholeStage="false",
        spark__sql__codegen__factoryMode="NO_CODEGEN",
    )
    spark.sparkContext.setLogLevel("OFF")
    return spark


def start(
    spark: SparkSession,
    kind: str,
    source: Path,
    output: Path,
    checkpoint: Path,
    instances: int,
    trigger: dict[str, Any] | None = None,
    **options: str,
) -> HeadraceQuery:
    """One of several queries that differ in how their state grows, shrinks and reaches the sink."""
    rows = hr.stream(spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(source)))
    if kind == "windowed":
        grouped = rows.withWatermark("ts", f"{DELAY_S} seconds").groupBy("k", F.window("ts", f"{WINDOW_S} seconds", f"{ADVANCE_S} seconds"))
        result = grouped.agg(F.count("*").alias("n"), F.sum("v").alias("s"), F.avg("v").alias("a"))
        result = result.select("k", F.col("window.start").alias("start"), "n", "s", "a")
    elif kind == "graph":
        result = graph(rows.withWatermark("ts", f"{DELAY_S} seconds").filter("k is not null"))
    elif kind == "dedup":
        result = rows.select((F.col("v") * 300).cast("long").alias("id"), "k").dropDuplicates()
    else:
        result = rows.groupBy("k").agg(F.count("*").alias("n"), F.sum("v").alias("s"), F.min("v").alias("low"), F.max("v").alias("high"))
    writer = result.writeStream.option("checkpointLocation", str(checkpoint)).option("headrace.instances", instances)
    writer = writer.option("headrace.depthMax", 2).option("headrace.versionsToKeep", 3).options(**options)
    writer = writer.trigger(**(trigger or {"availableNow": True}))
    if kind == "running":
        output.mkdir(parents=True, exist_ok=True)
        return writer.outputMode("update").foreachBatch(lambda frame, version: write_once(frame, version, output)).start()
    return writer.format("parquet").start(str(output))


class Quiet(hr.KeyProcessor):
    """Counts a key's rows, and gives the count when the key was quiet for a while."""

    def process(self, key: int, rows: list[Any], state: Any) -> None:
        state.n = (state.n or 0) + len(rows)
        state.set_timer(max(row.ts for row in rows) + timedelta(seconds=2))

    def on_timer(self, key: int, at: datetime, state: Any) -> Iterator[tuple[int, datetime, int]]:
        yield key, at, state.n
        state.delete()


def graph(rows: Any) -> Any:
    """Every kind of operator that the other queries lack, their results in one sink."""

    def told(name: str, stream: Any, time: str, number: Any) -> Any:
        return stream.select(F.lit(name).alias("from"), "k", F.col(time).alias("start"), number.cast("long").alias("n"))

    halves = rows.split(low="v < 0.5", otherwise="high")
    pairs = halves.low.join(halves.high, on="k", within="3 seconds", how="left")
    sessions = rows.groupBy("k", F.session_window("ts", "2 seconds")).agg(F.count("*").alias("n"))
    counted = rows.groupBy("k", hr.count_window(4)).agg(F.count("v").alias("n"))
    quiet = rows.groupBy("k").process(Quiet(), "k long, at timestamp, n long", hr.State("n long", timers="event"))
    found = told("pairs", pairs, "ts", F.unix_micros("ts_right"))
    for part in (
        told("sessions", sessions, "session_window.start", F.col("n")),
        told("counted", counted, "count_window.start", F.col("n")),
        told("quiet", quiet, "at", F.col("n")),
    ):
        found = found.union(part)
    return found


def write_once(frame: DataFrame, version: int, output: Path) -> None:
    """Idempotent by batch id: a batch that comes again replaces its own file."""
    temporary = output / f".{version:06d}.tmp"
    pq.write_table(frame.toArrow(), temporary)
    os.replace(temporary, output / f"batch-{version:06d}.parquet")


def main() -> None:
    threading.Thread(target=die_with, args=(os.getppid(),), daemon=True).start()
    arguments = argparse.ArgumentParser()
    arguments.add_argument("kind", choices=KINDS)
    for name in ("input", "output", "checkpoint"):
        arguments.add_argument(name, type=Path)
    arguments.add_argument("--instances", type=int, default=2)
    arguments.add_argument("--option", action="append", default=[], help="NAME=VALUE, an option of Headrace")
    given = arguments.parse_args()
    spark = session()
    options = {f"headrace.{name}": value for name, _, value in (each.partition("=") for each in given.option)}
    query = start(spark, given.kind, given.input, given.output, given.checkpoint, given.instances, **options)
    query.awaitTermination()
    # Nothing is left to do, and an orderly end of the JVM would take a second.
    spark.stop()


if __name__ == "__main__":
    main()
