"""Every aggregate function gives what Spark's own streaming gives."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import headrace as hr
from tests.integration.both import Feed, assert_equal, compiled, ours, settings

SCHEMA = (
    "k int, ts timestamp, b boolean, i1 tinyint, i2 smallint, i4 int, i8 bigint, f float, d double, dec decimal(20,4), s string,"
    " bin binary, day date, ntz timestamp_ntz, u bigint"
)
ARROW = pa.schema(
    [
        ("k", pa.int32()),
        ("ts", pa.timestamp("us", tz="UTC")),
        ("b", pa.bool_()),
        ("i1", pa.int8()),
        ("i2", pa.int16()),
        ("i4", pa.int32()),
        ("i8", pa.int64()),
        ("f", pa.float32()),
        ("d", pa.float64()),
        ("dec", pa.decimal128(20, 4)),
        ("s", pa.string()),
        ("bin", pa.binary()),
        ("day", pa.date32()),
        ("ntz", pa.timestamp("us")),
        ("u", pa.int64()),
    ]
)
EPOCH = datetime(2024, 1, 1, tzinfo=UTC)


def table(seed: int, rows: int, *, first: int = 0) -> pa.Table:
    """Rows with nulls, NaN, infinities and zeros of both signs; ``u`` is different in every row."""
    random = np.random.default_rng(seed)

    def maybe(value: Any) -> Any:
        return None if random.random() < 0.2 else value

    doubles = [0.0, -0.0, 1.5, -2.25, 1e300, float("nan"), float("inf")]
    data = []
    for at in range(rows):
        k = int(random.integers(0, 6))
        # Key 5 has nothing but nulls, key 4 no special numbers.
        n = int(random.integers(-100, 100))
        d = doubles[int(random.integers(0, len(doubles)))] if k < 2 else n / 7
        row: dict[str, Any] = {
            "b": bool(n > 0),
            "i1": n,
            "i2": n * 300,
            "i4": n * 10_000_000,
            "i8": n * 10**16,
            "f": d if abs(d) < 1e30 or d == float("inf") or d != d else 2.0,
            "d": d,
            "dec": Decimal(n) / 4,
            "s": ["", "a", "é", "zz"][n % 4],
            "bin": bytes([n % 256]) * (n % 3),
            "day": (EPOCH + timedelta(days=n * 100)).date(),
            "ntz": (EPOCH + timedelta(hours=n)).replace(tzinfo=None),
        }
        values = {name: None if k == 5 else maybe(value) for name, value in row.items()}
        data.append({"k": k, "ts": EPOCH + timedelta(seconds=first + at), **values, "u": first * 1000 + at * 7 % rows})
    return pa.Table.from_pylist(data, schema=ARROW)


@pytest.fixture(scope="module")
def feed(tmp_path_factory: pytest.TempPathFactory) -> Feed:
    return Feed.of(tmp_path_factory.mktemp("aggregates"), SCHEMA, [table(1, 60), table(2, 1, first=60), table(3, 60, first=61)])


def numeric(stream: Any) -> Any:
    """What can be combined before the shuffle."""
    c = F.col
    return (
        stream.withColumn("dt", F.make_dt_interval(c("i1")))
        .withColumn("ym", F.make_ym_interval(c("i1"), c("i1")))
        .groupBy("k")
        .agg(
            F.count("*").alias("n"),
            F.count("i4"),
            F.count(F.lit(None)).alias("none"),
            F.expr("count(i1, s)").alias("pairs"),
            *[F.sum(x) for x in ("i1", "i2", "i4", "i8", "f", "d", "dec", "dt", "ym")],
            *[F.avg(x) for x in ("i1", "i4", "f", "d", "dec", "dt", "ym")],
            *[f(x) for f in (F.min, F.max) for x in ("b", "i1", "i2", "i4", "i8", "f", "d", "dec", "day", "ntz", "ts", "dt", "ym")],
            *[f(x) for f in (F.var_pop, F.var_samp, F.stddev_pop, F.stddev) for x in ("i4", "d", "dec")],
            F.bool_and("b"),
            F.bool_or("b"),
            F.every("b").alias("every"),
            F.count_if(c("i4") > 0),
            (F.sum("i4") / F.count("*") + 1).alias("composite"),
            (F.max("i8") - F.min("i8") + c("k")).alias("spread"),
            F.when(F.count("i4") > 3, F.avg("d")).otherwise(-F.max("i2")).alias("conditional"),
            F.expr("sum(i4) FILTER (WHERE b)").alias("filtered sum"),
            F.expr("count(*) FILTER (WHERE i1 > 0 AND s = 'a')").alias("filtered count"),
            F.expr("avg(dec) FILTER (WHERE i1 > 0)").alias("filtered avg"),
            F.expr("stddev(d) FILTER (WHERE i1 > 0)").alias("filtered stddev"),
            F.expr("min(d) FILTER (WHERE b)").alias("filtered min"),
            F.sum(F.lit(1)),
            F.min(F.lit("1")).alias("min text"),
            F.min(F.lit(1)).alias("min number"),
        )
    )


def gathered(stream: Any) -> Any:
    """What needs lists, variable lengths or two columns."""
    c = F.col
    return (
        stream.withColumn("ym", F.make_ym_interval(c("i1"), c("i1")))
        .groupBy("k")
        .agg(
            *[f(x) for f in (F.min, F.max) for x in ("s", "bin")],
            *[F.max_by(x, "u").alias(f"max by u of {x}") for x in ("b", "i1", "d", "dec", "s", "bin", "day", "ntz", "ts", "ym")],
            F.min_by("s", "u"),
            F.max_by("u", F.struct("u").getField("u").cast("string")).alias("by text"),
            F.expr("max_by(s, u) FILTER (WHERE b)").alias("filtered max_by"),
            *[F.approx_count_distinct(x) for x in ("b", "i1", "i8", "f", "d", "dec", "s", "bin", "day", "ntz", "ts", "u", "ym")],
            F.approx_count_distinct("u", 0.2).alias("rough"),
            F.expr("approx_count_distinct(u) FILTER (WHERE b)").alias("filtered approx"),
            *[F.collect_set(x) for x in ("b", "i1", "i8", "f", "d", "dec", "s", "bin", "day", "ntz", "ym")],
            F.expr("collect_set(i1) FILTER (WHERE b)").alias("filtered set"),
            (F.size(F.collect_set("i1")) * 2).alias("composite"),
        )
    )


def whole(stream: Any) -> Any:
    return stream.agg(F.count("*").alias("n"), F.sum("i4"), F.stddev("d").alias("sd"), F.max_by("s", "u").alias("s"))


@pytest.mark.parametrize(("mode", "combine"), [("update", "always"), pytest.param("complete", "never", marks=pytest.mark.extra)])
def test_aggregates_of_fixed_width(spark: SparkSession, feed: Feed, tmp_path: Path, mode: str, combine: str) -> None:
    assert_equal(spark, [feed], numeric, mode, tmp_path, keys=1, batch=True, combine=combine, instances=3)


def test_aggregates_that_gather(spark: SparkSession, feed: Feed, tmp_path: Path) -> None:
    assert_equal(spark, [feed], gathered, "update", tmp_path, keys=1, batch=True, hashBits=1, depthMax=1)


def test_the_whole_stream_as_one_group(spark: SparkSession, feed: Feed, tmp_path: Path) -> None:
    with compiled(spark):
        assert_equal(spark, [feed], whole, "complete", tmp_path, batch=True, instances=2)


BIG = pa.schema([("k", pa.int32()), ("n", pa.int64()), ("dec", pa.decimal128(38, 0))])


def overflowing() -> list[pa.Table]:
    """Key 0 stays within bounds; key 1 overflows in its second file; key 2 would, but comes back within the first."""
    most, large = 2**63 - 1, 10**38 - 1
    first = [(0, 1, 1), (1, most, large), (2, most, large), (2, -most, -large)]
    second = [(0, most - 1, large - 1), (1, 5, large), (2, 7, 7)]
    return [pa.Table.from_pylist([{"k": k, "n": n, "dec": Decimal(d)} for k, n, d in rows], schema=BIG) for rows in (first, second)]


def big_sums(stream: Any) -> Any:
    return stream.groupBy("k").agg(F.sum("n"), F.sum("dec"), F.avg("n"), F.avg("dec").alias("avg dec"))


def test_without_ansi_sums_wrap_and_decimals_are_lost(spark: SparkSession, tmp_path: Path) -> None:
    feed = Feed.of(tmp_path, "k int, n bigint, dec decimal(38,0)", overflowing())
    with settings(spark, spark__sql__ansi__enabled="false"):
        for combine in ("always", "never"):
            assert_equal(spark, [feed], big_sums, "update", tmp_path, keys=1, combine=combine)


@pytest.mark.parametrize(("column", "combine"), [("n", "always"), ("n", "never"), ("dec", "always")])
def test_with_ansi_an_overflow_ends_the_query(spark: SparkSession, tmp_path: Path, column: str, combine: str) -> None:
    """Wherever it happens, in Spark before the shuffle, in a kernel or in the result, the user sees an error of ours."""
    feed = Feed.of(tmp_path, "k int, n bigint, dec decimal(38,0)", overflowing())
    with settings(spark, spark__sql__ansi__enabled="true"), pytest.raises(hr.HeadraceError, match=r"(?i)overflow|cannot be represented"):
        ours(spark, [feed], lambda s: s.groupBy("k").agg(F.sum(column)), "update", tmp_path, combine=combine)


def test_no_row_at_all(spark: SparkSession, feed: Feed, tmp_path: Path) -> None:
    """One group without keys is there even if no row is."""
    assert_equal(spark, [feed], lambda s: whole(s.filter("k > 100")), "complete", tmp_path, batch=True, instances=2)


@pytest.mark.extra
def test_no_row_for_any_key(spark: SparkSession, feed: Feed, tmp_path: Path) -> None:
    assert_equal(spark, [feed], lambda s: s.filter("k > 100").groupBy("k").count(), "complete", tmp_path, batch=True)
