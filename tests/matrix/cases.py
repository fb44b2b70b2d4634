"""One query of each stateful operator, and the same question to Spark's batch engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

import headrace as hr
from tests.integration.both import Feed, Values
from tests.integration.own_totals import SCHEMA, START, Totals, TotalsPerKey, rows, spark_group_totals, spark_totals, totals

FILES, ROWS, FILE_S, DELAY = 3, 60, 20, "5 seconds"
END = "end"
END_S = 10_000


@dataclass(frozen=True)
class Case:
    """A query on a stream, and the query on all rows at once that must give the same."""

    query: Callable[[Any], Any]
    batch: Callable[[DataFrame], DataFrame]
    mode: str = "append"
    keys: int = 0
    """If the query emits a key again when it changes: how many leading columns are the key."""


def feed(root: Path) -> Feed:
    """Files of rows whose event times follow each other. The last file only moves the watermark past them, in both halves of a split."""
    tables = [rows(seed, ROWS, seed * FILE_S, FILE_S, keys=6) for seed in range(FILES)]
    late = [START + timedelta(seconds=END_S)] * 2
    tables.append(pa.table({"k": [END, END], "part": [0, 0], "ts": late, "v": [-1, 1]}, tables[0].schema))
    return Feed.of(root, SCHEMA, tables)


def before_end(found: list[Values]) -> list[Values]:
    """Results without those of the last file, which are still open or have no counterpart."""
    return [row for row in found if row[0] != END]


def timed(stream: Any) -> Any:
    return stream.withWatermark("ts", DELAY)


def same(query: Callable[[Any], Any], mode: str = "append", keys: int = 0) -> Case:
    """A query that Spark's DataFrames have too."""
    return Case(query, query, mode, keys)


def running(stream: Any) -> Any:
    return stream.groupBy("k").agg(F.sum("v"), F.avg("v"), F.count("*"), F.max("part"))


def sliding(stream: Any) -> Any:
    return timed(stream).groupBy("k", F.window("ts", "15 seconds", "5 seconds")).agg(F.sum("v"), F.stddev("v"), F.max_by("v", "ts"))


def count_windows(stream: Any) -> Any:
    windows = timed(stream).groupBy("k", hr.count_window(4, 3)).agg(F.sum("v").alias("s"))
    return windows.select("k", F.col("count_window.number"), "s")


def count_windows_in_batch(stream: DataFrame) -> DataFrame:
    """A window begins at every third row of a key; those with four rows are complete."""
    placed = stream.withColumn("place", F.row_number().over(Window.partitionBy("k").orderBy("ts")) - 1)
    begins = placed.filter("place % 3 = 0").selectExpr("k", "place as begin")
    members = begins.alias("w").join(placed.alias("r"), F.expr("w.k <=> r.k and place between begin and begin + 3"))
    windows = members.groupBy("w.k", "begin").agg(F.sum("v").alias("s"), F.count("*").alias("n")).filter("n = 4")
    return windows.selectExpr("k", "cast(begin / 3 as long) as number", "s")


def join(how: str) -> Case:
    """Rows of one half with those of the other that are near in time."""
    kept = ("k", "ts", "v", "ts_right", "v_right")

    def query(stream: Any) -> Any:
        halves = timed(stream).split(low="v < 0", otherwise="high")
        return halves.low.join(halves.high, on="k", within="2 seconds", how=how).select(*kept)

    def batch(stream: DataFrame) -> DataFrame:
        right = stream.filter("v >= 0").selectExpr("k as k_right", "ts as ts_right", "v as v_right")
        near = "k = k_right and ts between ts_right - interval 2 seconds and ts_right + interval 2 seconds"
        return stream.filter("v < 0").join(right, F.expr(near), how).withColumn("k", F.coalesce("k", "k_right")).select(*kept)

    return Case(query, batch)


def product(stream: Any) -> Any:
    halves = timed(stream).split(low="v < 0", otherwise="high")
    return halves.low.crossJoin(halves.high, within="1 second", where="v + v_right > 0").select("k", "k_right", "v", "v_right")


def product_in_batch(stream: DataFrame) -> DataFrame:
    right = stream.filter("v >= 0").selectExpr("k as k_right", "ts as ts_right", "v as v_right")
    near = "ts between ts_right - interval 1 second and ts_right + interval 1 second and v + v_right > 0"
    return stream.filter("v < 0").join(right, F.expr(near)).select("k", "k_right", "v", "v_right")


def totals_in_batch(stream: DataFrame) -> DataFrame:
    return stream.groupBy("k", "part").agg(F.count("*").alias("count"), F.sum("v").alias("total"))


CASES: dict[str, Case] = {
    "running aggregate": same(running, "update", keys=1),
    "tumbling windows": same(lambda s: timed(s).groupBy("k", F.window("ts", "8 seconds")).agg(F.count("*"), F.min("v"))),
    "sliding windows": same(sliding),
    "session windows": same(lambda s: timed(s).groupBy("k", F.session_window("ts", "2 seconds")).agg(F.count("*"), F.sum("v"))),
    "count windows": Case(count_windows, count_windows_in_batch),
    "dropDuplicates": same(lambda s: s.select("k", (F.col("v") % 5).alias("rest")).dropDuplicates()),
    "inner join": join("inner"),
    "full outer join": join("full"),
    "crossJoin": Case(product, product_in_batch),
    "process, all keys at once": Case(totals(Totals()), totals_in_batch, keys=2),
    "process, key by key": Case(totals(TotalsPerKey()), totals_in_batch, keys=2),
    "transformWithState": Case(spark_totals(pandas=False), totals_in_batch, keys=2),
    "transformWithStateInPandas": Case(spark_totals(pandas=True), totals_in_batch, keys=2),
    "applyInPandasWithState": Case(spark_group_totals, totals_in_batch, keys=2),
}
