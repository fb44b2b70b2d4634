"""The queries under test: every kind of stateful operator, a sink for each. Seeds alternate between two queries of four sinks.

| name | operator | sink |
| --- | --- | --- |
| totals | running aggregate | foreachBatch into SQLite, idempotent by version |
| windows | sliding window | parquet |
| sizes | tumbling window over the results of ``windows`` (a chain) | json |
| sessions | session window | parquet |
| distinct | dropDuplicates | parquet |
| pairs | left join of two branches of a split, within a bound | parquet |
| buckets | a user's processor with a map and timers | parquet |
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import headrace as hr

SCHEMA = "id long, file int, k string, side string, ts timestamp, v long, note string, late boolean"
DELAY_S, WINDOW_S, ADVANCE_S, GAP_S, WITHIN_S, BUCKET_S, SIZES_S = 10, 40, 15, 4, 5, 10, 60
QUERIES = {"windows": ("totals", "windows", "sizes", "pairs"), "sessions": ("totals", "sessions", "distinct", "buckets")}
FORMATS = {"windows": "parquet", "sizes": "json", "pairs": "parquet", "sessions": "parquet", "distinct": "parquet", "buckets": "parquet"}


class Buckets(hr.KeyProcessor):
    """Counts a key's rows by tens of seconds, and gives each count when its time is over."""

    def process(self, key: str, rows: list[Any], state: Any) -> None:
        for row in rows:
            state.rows = (state.rows or 0) + 1
            begin = int(row.ts.timestamp()) // BUCKET_S * BUCKET_S
            state.counts[begin] = state.counts.get(begin, 0) + 1
            state.set_timer(datetime.fromtimestamp(begin + BUCKET_S, UTC))

    def on_timer(self, key: str, at: datetime, state: Any) -> Iterator[tuple[str, int, int]]:
        begin = int(at.timestamp()) - BUCKET_S
        yield key, begin, state.counts[begin]
        del state.counts[begin]


def streams(spark: SparkSession, source: Path) -> dict[str, Any]:
    """What each sink gets."""
    frame = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(source))
    rows = hr.stream(frame).withWatermark("ts", f"{DELAY_S} seconds")
    totals = rows.groupBy("k").agg(F.count("*").alias("n"), F.sum("v").alias("s"), F.min("v").alias("low"), F.max("v").alias("high"))
    window = F.window("ts", f"{WINDOW_S} seconds", f"{ADVANCE_S} seconds")
    windows = rows.groupBy("k", window).agg(F.count("*").alias("n"), F.sum("v").alias("s"), F.avg("v").alias("a"))
    sizes = windows.groupBy(F.window(F.window_time("window"), f"{SIZES_S} seconds")).agg(F.count("*").alias("n"), F.sum("n").alias("s"))
    sessions = rows.groupBy("k", F.session_window("ts", f"{GAP_S} seconds")).agg(F.count("*").alias("n"), F.sum("v").alias("s"))
    distinct = rows.select("id", "ts", "k", "note").dropDuplicates(["id", "ts"])
    sides = rows.select("k", "side", "id", "ts").split(left="side = 'l'", right="side = 'r'")
    pairs = sides.left.join(sides.right, on="k", within=f"{WITHIN_S} seconds", how="left")
    state = hr.State("rows long", maps={"counts": ("begin long", "n long")}, timers="event")
    buckets = rows.select("k", "ts").groupBy("k").process(Buckets(), "k string, begin long, n long", state)
    us = F.unix_micros
    return {
        "totals": totals,
        "windows": windows.select("k", us("window.start").alias("start"), us("window.end").alias("end"), "n", "s", "a"),
        "sizes": sizes.select(us("window.start").alias("start"), us("window.end").alias("end"), "n", "s"),
        "sessions": sessions.select("k", us("session_window.start").alias("start"), us("session_window.end").alias("end"), "n", "s"),
        "distinct": distinct.select("id", us("ts").alias("ts"), "k", "note"),
        "pairs": pairs.select("k", "id", "id_right"),
        "buckets": buckets,
    }


def start(spark: SparkSession, source: Path, output: Path, checkpoint: Path, order: tuple[str, ...], **options: Any) -> hr.HeadraceQuery:
    """Start the query with its sinks in an order, on a checkpoint that may have been left by any earlier run."""
    found = streams(spark, source)
    given = {"headrace.depthMax": 2, "headrace.versionsToKeep": 3, "headrace.idleSeconds": 0} | options
    writers = []
    output.mkdir(parents=True, exist_ok=True)
    for name in order:
        writer = found[name].writeStream.options(**given)
        if name == "totals":
            writer = writer.outputMode("update").foreachBatch(lambda frame, version: upsert(frame, version, output / "totals.db"))
        else:
            writer = writer.format(FORMATS[name]).option("path", str(output / name))
        writers.append(writer)
    return hr.start(*writers, checkpointLocation=str(checkpoint), processingTime="0 seconds")


def upsert(frame: DataFrame, version: int, path: Path) -> None:
    """Idempotent by version: a version that comes again replaces its own rows. Each call is noted too."""
    rows = frame.toArrow().to_pylist()
    with sqlite3.connect(path) as database:
        database.execute("create table if not exists totals (version int, k text, n int, s int, low int, high int)")
        database.execute("create table if not exists calls (version int)")
        database.execute("delete from totals where version = ?", (version,))
        database.execute("insert into calls values (?)", (version,))
        values = [(version, row["k"], row["n"], row["s"], row["low"], row["high"]) for row in rows]
        database.executemany("insert into totals values (?, ?, ?, ?, ?, ?)", values)
    database.close()
