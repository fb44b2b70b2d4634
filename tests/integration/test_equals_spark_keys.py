"""Keys of every type, with nulls, NaN and zeros of both signs, are grouped as Spark groups them."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from tests.integration.both import Feed, assert_equal, settings

NAN, INF = float("nan"), float("inf")
COLUMNS: dict[str, tuple[str, pa.DataType, list[Any]]] = {
    "b": ("boolean", pa.bool_(), [True, False]),
    "i1": ("tinyint", pa.int8(), [-128, 0, 127]),
    "i2": ("smallint", pa.int16(), [-(2**15), 1]),
    "i4": ("int", pa.int32(), [-(2**31), 2**31 - 1, 0]),
    "i8": ("bigint", pa.int64(), [-(2**63), 2**63 - 1, 0]),
    "f": ("float", pa.float32(), [0.0, -0.0, NAN, INF, 1.5]),
    "d": ("double", pa.float64(), [-0.0, 0.0, NAN, -INF, 0.1]),
    "dec": ("decimal(38,18)", pa.decimal128(38, 18), [Decimal("0.1"), Decimal(-(10**19)), Decimal(0)]),
    "small": ("decimal(5,2)", pa.decimal128(5, 2), [Decimal("1.10"), Decimal("-999.99")]),
    "s": ("string", pa.string(), ["", "a", "A", "é", "a "]),
    "bin": ("binary", pa.binary(), [b"", b"\x00", b"a"]),
    "day": ("date", pa.date32(), [date(1969, 12, 31), date(2024, 2, 29)]),
    "ts": ("timestamp", pa.timestamp("us", tz="UTC"), [datetime(1960, 1, 1), datetime(2024, 3, 31, 1, 30)]),
    "ntz": ("timestamp_ntz", pa.timestamp("us"), [datetime(1960, 1, 1), datetime(2024, 3, 31, 2, 30)]),
}
SCHEMA = ", ".join(f"{name} {kind}" for name, (kind, _, _) in COLUMNS.items()) + ", v int"


def tables() -> list[pa.Table]:
    """Each column goes round its values, and through null, at its own pace; keys come again in the second file."""

    def column(kind: pa.DataType, choices: list[Any], rows: range) -> pa.Array:
        cycle = [None, *choices]
        return pa.array([cycle[row % len(cycle)] for row in rows], kind)

    def one(rows: range) -> pa.Table:
        arrays = {name: column(kind, choices, rows) for name, (_, kind, choices) in COLUMNS.items()}
        return pa.table({**arrays, "v": pa.array(list(rows), pa.int32())})

    return [one(range(40)), one(range(20, 50))]


@pytest.fixture(scope="module")
def feed(tmp_path_factory: pytest.TempPathFactory) -> Feed:
    return Feed.of(tmp_path_factory.mktemp("keys"), SCHEMA, tables())


def by_each(stream: Any) -> Any:
    """One query groups by every column in turn: rows are multiplied, and all columns but one are null."""
    names = [*COLUMNS, "dt", "ym", *(["clock"] if hasattr(T, "TimeType") else [])]
    made = stream.withColumns(
        {
            "dt": F.make_dt_interval(F.lit(1), F.col("i1")),
            "ym": F.make_ym_interval(F.lit(0), F.col("i1").cast("int")),
            **({"clock": F.expr("make_time(1, abs(i1 % 60), 2.5)")} if hasattr(T, "TimeType") else {}),
        }
    )
    each = made.withColumn("at", F.explode(F.array([F.lit(i) for i in range(len(names))])))
    keys = [F.when(F.col("at") == i, F.col(name)).alias(name) for i, name in enumerate(names)]
    return each.groupBy("at", *keys).agg(F.count("*").alias("n"), F.sum("v").alias("sum"))


def by_all(stream: Any) -> Any:
    return stream.groupBy(*[name for name in COLUMNS if name not in ("s", "bin")]).agg(F.count("*").alias("n"))


def by_structs(stream: Any) -> Any:
    c = F.col
    inner = F.struct("d", "s", F.make_ym_interval(F.lit(0), c("i1").cast("int")).alias("ym"))
    maybe = F.when(c("i2") > 0, F.struct("f", "ts", inner.alias("inner")))
    return stream.groupBy(maybe.alias("key"), (c("i4") % 3).alias("m"), c("b")).agg(
        F.sum("v").alias("sum"), (c("b") | c("b")).alias("same")
    )


@pytest.mark.parametrize(
    ("query", "keys", "options"),
    [(by_each, 18, {}), pytest.param(by_all, 12, {"hashBits": 2}, marks=pytest.mark.extra), (by_structs, 3, {"hashBits": 1})],
)
def test_keys(spark: SparkSession, feed: Feed, tmp_path: Path, query: Any, keys: int, options: dict[str, Any]) -> None:
    # Spark has the type, and keeps it behind a setting for now.
    with settings(spark, spark__sql__timeType__enabled="true"):
        assert_equal(spark, [feed], query, "update", tmp_path, keys=keys, batch=True, instances=3, depthMax=1, **options)


def test_duplicates_by_every_type(spark: SparkSession, feed: Feed, tmp_path: Path) -> None:
    def query(stream: Any) -> Any:
        return (
            stream.drop("v")
            .withColumn("p", F.struct("d", "s"))
            .dropDuplicates(["d", "f", "s", "dec", "ts", "p"])
            .select("d", "f", "s", "p")
        )

    assert_equal(spark, [feed], query, "append", tmp_path, batch=True, hashBits=3)
