"""Functions that take values of one row (first, last, min_by, max_by) never put a row together from two; and structs, arrays and maps."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import headrace as hr
from tests.integration.both import Feed, assert_equal, assert_same_rows, normal, ours, spark_batch, values

pytestmark = pytest.mark.spark

START = datetime(2026, 1, 1, tzinfo=UTC)
SCHEMA = "k int, ts timestamp, o int, a int, b string, c double"
ARROW = pa.schema(
    [("k", pa.int32()), ("ts", pa.timestamp("us", tz="UTC")), ("o", pa.int32()), ("a", pa.int32()), ("b", pa.string()), ("c", pa.float64())]
)


def table(seed: int, rows: int = 120) -> pa.Table:
    """Many rows of few moments and orders; values, nulls too, say which row they are from."""
    random = np.random.default_rng(seed)
    data = []
    for at in range(rows):
        n = seed * 1000 + at
        data.append(
            {
                "k": int(random.integers(0, 5)),
                "ts": START + timedelta(seconds=int(random.integers(0, 3))),
                "o": None if random.random() < 0.1 else int(random.integers(0, 3)),
                "a": None if n % 5 == 0 else n,
                # Strings and doubles run the other way round from the numbers.
                "b": None if n % 7 == 0 else f"{9999 - n:04d}",
                "c": float("nan") if n % 11 == 0 else -n / 8,
            }
        )
    return pa.Table.from_pylist(data, schema=ARROW)


@pytest.fixture(scope="module")
def feed(tmp_path_factory: pytest.TempPathFactory) -> Feed:
    return Feed.of(tmp_path_factory.mktemp("ties"), SCHEMA, [table(seed) for seed in (1, 2, 3)])


def picked(stream: Any) -> Any:
    each = ("a", "b", "c")
    return (
        stream.withWatermark("ts", "10 hours")
        .groupBy("k")
        .agg(
            *[f(x).alias(f"{f.__name__} {x}") for f in (F.first, F.last) for x in each],
            *[f(x, "o").alias(f"{f.__name__} {x}") for f in (F.min_by, F.max_by) for x in each],
            *[F.expr(f"max_by({x}, o) FILTER (WHERE o < 2)").alias(f"filtered {x}") for x in each],
            F.max_by(F.struct("a", "b", "c"), "o").alias("max_by struct"),
            F.count("*").alias("n"),
        )
    )


def rescaled(query: hr.HeadraceQuery) -> None:
    query.rescale(1 if len(next(iter(query.routing().values())).parts) == 3 else 3)


def test_values_that_are_picked_together_come_from_one_row(spark: SparkSession, feed: Feed, tmp_path: Path) -> None:
    """At one instance, and at three with changes in between: the same rows, and rows that there were."""
    alone = ours(spark, [feed], picked, "update", tmp_path, instances=1)
    moved = ours(spark, [feed], picked, "update", tmp_path, between=rescaled, instances=3, depthMax=1)
    assert_same_rows(moved.last(1), alone.last(1), alone.columns, "at three instances")
    rows = [row for path in feed.files for row in pq.read_table(path[0]).to_pylist()]
    for k, *found in alone.last(1):
        mine = [row for row in rows if row["k"] == k]
        ordered = [row for row in mine if row["o"] is not None]
        assert found[-1] == len(mine)
        least, greatest = min(row["o"] for row in ordered), max(row["o"] for row in ordered)
        wanted = [
            [row for row in mine if row["ts"] == min(row["ts"] for row in mine)],
            [row for row in mine if row["ts"] == max(row["ts"] for row in mine)],
            [row for row in ordered if row["o"] == least],
            [row for row in ordered if row["o"] == greatest],
            [row for row in ordered if row["o"] == 1],
        ]
        for at, admissible in enumerate(wanted):
            assert len(admissible) > 1
            assert normal(tuple(found[3 * at : 3 * at + 3])) in {normal((row["a"], row["b"], row["c"])) for row in admissible}
        # A struct of the values is of that same row.
        assert normal(tuple(found[15])) == normal(tuple(found[9:12]))


def test_two_rows_of_one_moment(spark: SparkSession, tmp_path: Path) -> None:
    rows = [{"k": 1, "ts": START, "o": 1, "a": 1, "b": "z"}, {"k": 1, "ts": START, "o": 1, "a": 2, "b": "a"}]
    small = Feed.of(tmp_path, SCHEMA, [pa.Table.from_pylist([{"c": None, **row}], schema=ARROW) for row in rows])

    def query(stream: Any) -> Any:
        grouped = stream.withWatermark("ts", "1 hour").groupBy("k")
        some = [F.expr(f"last({x}, true)").alias(f"some {x}") for x in ("a", "b")]
        return grouped.agg(F.last("a"), F.last("b"), *some, F.max_by("a", "ts"), F.max_by("b", "ts"))

    found = ours(spark, [small], query, "update", tmp_path)
    assert found.last(1)[0] in [(1, 1, "z", 1, "z", 1, "z"), (1, 2, "a", 2, "a", 2, "a")]


NESTED = "k int, u int, s struct<x:int,y:struct<d:double,t:string>>, l array<int>, m map<string,int>"


def nested_table(seed: int, rows: int = 60) -> pa.Table:
    random = np.random.default_rng(seed)
    kind = pa.schema(
        [
            ("k", pa.int32()),
            ("u", pa.int32()),
            ("s", pa.struct([("x", pa.int32()), ("y", pa.struct([("d", pa.float64()), ("t", pa.string())]))])),
            ("l", pa.list_(pa.int32())),
            ("m", pa.map_(pa.string(), pa.int32())),
        ]
    )

    def one(*choices: Any) -> Any:
        return choices[int(random.integers(0, len(choices)))]

    data = []
    for at in range(rows):
        inner = one(None, {"d": one(None, 0.0, -0.0, 1.5, float("nan"), float("-inf")), "t": one(None, "", "a", "é", "z")})
        struct = one({"x": one(None, 1, 2), "y": inner}, {"x": one(None, 1), "y": inner}, None)
        data.append(
            {
                "k": at % 4,
                "u": seed * 1000 + at,
                "s": struct if at % 4 else None,
                "l": one(None, [], [None, at]),
                "m": one(None, [("p", at)], []),
            }
        )
    return pa.Table.from_pylist(data, schema=kind)


def nested(stream: Any) -> Any:
    """All orders are different, or their values equal, so Spark has one answer."""
    return (
        stream.withColumn("ym", F.when(F.col("u") % 3 > 0, F.struct(F.make_ym_interval(F.lit(0), F.col("u")).alias("i"), "l")))
        .groupBy("k")
        .agg(
            F.max("s").alias("greatest"),
            F.min("s").alias("least"),
            F.max_by("s", "u").alias("struct"),
            F.min_by("l", "u").alias("array"),
            F.max_by("m", "u").alias("map"),
            F.max_by("u", F.struct("s", "u")).alias("by struct"),
            F.min_by(F.struct("u", "l"), F.struct("s", "u")).alias("by least struct"),
            F.max_by(F.array("ym"), "u")[0]["i"].cast("string").alias("intervals"),
            F.expr("max_by(l, u) FILTER (WHERE u < 0)").alias("none"),
            F.max_by("l", F.expr("CAST(null AS int)")).alias("no order"),
        )
    )


def test_structs_arrays_and_maps(spark: SparkSession, tmp_path: Path) -> None:
    feed = Feed.of(tmp_path, NESTED, [nested_table(1), nested_table(2)])
    assert_equal(spark, [feed], nested, "update", tmp_path, keys=1, batch=True, instances=3, depthMax=1)


@pytest.mark.extra
def test_state_shows_what_is_picked(spark: SparkSession, feed: Feed, tmp_path: Path) -> None:
    seen: list[Any] = []

    def look(query: hr.HeadraceQuery) -> None:
        if query.lastProgress is not None:
            seen.append(values(query.state()))

    found = ours(spark, [feed], picked, "update", tmp_path, between=look, instances=3)
    assert_same_rows(seen[-1], found.steps[-2], found.columns, "the state")


@pytest.mark.extra
def test_windows_pick_whole_rows(spark: SparkSession, feed: Feed, tmp_path: Path) -> None:
    def query(stream: Any) -> Any:
        grouped = stream.withWatermark("ts", "1 second").groupBy("k", F.window("ts", "2 seconds", "1 second").alias("w"))
        return grouped.agg(F.max_by("a", "o"), F.max_by("b", "o"), F.max_by("c", "o"), F.max("o"))

    found = ours(spark, [feed], query, "complete", tmp_path, instances=3)
    rows = {normal(row) for row in spark_batch(spark, [feed], lambda frame: frame.select("k", "a", "b", "c", "o")).rows}
    assert len(found.steps[-1]) == 20
    for k, _, *chosen in found.steps[-1]:
        assert normal((k, *chosen)) in rows
