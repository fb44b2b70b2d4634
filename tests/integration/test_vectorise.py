"""A condition over two rows means the same to numpy as to Spark: for every pair, with ANSI mode on and off."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from headrace.compile.vectorise import vectorise
from headrace.errors import QueryError, UnsupportedError
from headrace.operators import expressions as E
from headrace.operators.grid import evaluate_grid, holds_pairs
from headrace.operators.vectors import columns_from_arrow
from headrace.spark import gateway, plans
from headrace.spark.expression_tree import read
from tests.examples import examples

NAN, INF = float("nan"), float("inf")
EPOCH = datetime(2024, 1, 1, tzinfo=UTC)
VALUES: dict[str, tuple[str, pa.DataType, list[Any]]] = {
    "b": ("boolean", pa.bool_(), [True, False]),
    "y": ("tinyint", pa.int8(), [0, 1, -7, 127, -128]),
    "h": ("smallint", pa.int16(), [0, 3, -3, 32767, -32768]),
    "i": ("int", pa.int32(), [0, 1, -1, 7, 2**31 - 1, -(2**31)]),
    "n": ("bigint", pa.int64(), [0, 1, -1, 12, 2**53 + 1, 2**63 - 1, -(2**63)]),
    "f": ("float", pa.float32(), [0.0, -0.0, 0.5, NAN, -INF, 3e38, 16777216.0]),
    "d": ("double", pa.float64(), [0.0, -0.0, 1.0, -2.5, 0.1, NAN, INF, -INF, 1e300, 9.3e18]),
    "m": ("decimal(10,2)", pa.decimal128(10, 2), [Decimal("0.00"), Decimal("1.50"), Decimal("-99999999.99")]),
    "s": ("string", pa.string(), ["", "a", "ab", "b", "é", "\U0001f600", "\uffee"]),
    "x": ("binary", pa.binary(), [b"", b"\x00", b"\xff", b"a"]),
    "day": ("date", pa.date32(), [date(1969, 12, 31), date(2024, 2, 29), date(2100, 1, 1)]),
    "ts": ("timestamp", pa.timestamp("us", tz="UTC"), [EPOCH, EPOCH + timedelta(seconds=7), datetime(1960, 1, 1, 0, 0, 0, 1, tzinfo=UTC)]),
    "z": ("timestamp_ntz", pa.timestamp("us"), [datetime(2024, 1, 1), datetime(1960, 1, 1, 0, 0, 0, 1)]),
    # Of moderate size: what overflows for the others does not for these.
    "p": ("double", pa.float64(), [0.0, 0.25, 1.0, -0.75, 52.3, -33.1, 179.5]),
    "q": ("int", pa.int32(), [0, 1, 2, -2, 5, 1000, -999]),
}
ROWS = 14
SEEDS = {"left": 1, "right": 2}


def table(side: str) -> pa.Table:
    """Every value of every column, and nulls, in an order of their own for each side."""
    rng = np.random.default_rng(SEEDS[side])
    columns = {}
    for name, (_, kind, values) in VALUES.items():
        filled = [*values, None] + [values[at] for at in rng.integers(0, len(values), ROWS - len(values) - 1)]
        columns[name] = pa.array([filled[at] for at in rng.permutation(ROWS)], kind)
    # Sides that never are null or out of range take the short ways through the evaluation.
    columns["r"] = pa.array(rng.integers(-50, 50, ROWS), pa.int64())
    columns["w"] = pa.array(rng.integers(1, 9, ROWS) / 2.0, pa.float64())
    columns["id"] = pa.array(range(ROWS), pa.int64())
    return pa.table(columns)


def frame(spark: SparkSession, side: str) -> DataFrame:
    schema = ", ".join([*(f"{name} {kind}" for name, (kind, _, _) in VALUES.items()), "r bigint", "w double", "id bigint"])
    return spark.createDataFrame(table(side), schema).alias(side[0])


@contextmanager
def ansi(spark: SparkSession, on: bool) -> Iterator[None]:
    before = spark.conf.get("spark.sql.ansi.enabled")
    spark.conf.set("spark.sql.ansi.enabled", str(on).lower())
    try:
        yield
    finally:
        spark.conf.set("spark.sql.ansi.enabled", before)


def trees(spark: SparkSession, predicates: list[str]) -> list[E.Expr | UnsupportedError]:
    """What `vectorise` makes of each predicate."""
    left, right = frame(spark, "left"), frame(spark, "right")
    joined = left.crossJoin(right)
    sides = {}
    for side, one in (("left", left), ("right", right)):
        for attribute in gateway.items(plans.analyzed(one).output()):
            sides[attribute.exprId().toString()] = (side, attribute.name())
    selected = plans.analyzed(joined.select(*[F.expr(p).alias(f"p{i}") for i, p in enumerate(predicates)])).projectList()
    found: list[E.Expr | UnsupportedError] = []
    for each in gateway.items(selected):
        try:
            found.append(vectorise(read(spark, each), sides.get))
        except UnsupportedError as refused:
            found.append(refused)
    return found


def spark_pairs(spark: SparkSession, predicates: list[str]) -> list[set[tuple[int, int]]]:
    joined = frame(spark, "left").crossJoin(frame(spark, "right"))
    asked: list[Column] = [F.expr(p).alias(f"p{i}") for i, p in enumerate(predicates)]
    rows = joined.select(F.col("l.id").alias("a"), F.col("r.id").alias("b"), *asked).collect()
    return [{(row["a"], row["b"]) for row in rows if row[f"p{i}"]} for i in range(len(predicates))]


def our_pairs(tree: E.Expr) -> set[tuple[int, int]]:
    """By the grid, whole and in small tiles, and pair by pair: all the same."""
    tree = E.from_description(json.loads(json.dumps(E.describe(tree))))
    left, right = (columns_from_arrow(table(side), ["id", *VALUES, "r", "w"]) for side in ("left", "right"))
    whole = pairs_of(evaluate_grid(tree, left, right))
    assert pairs_of(evaluate_grid(tree, left, right, tile_pairs=5)) == whole
    a, b = np.divmod(np.arange(ROWS * ROWS), ROWS)
    flat = holds_pairs(tree, left, right, a, b)
    assert set(zip(a[flat].tolist(), b[flat].tolist(), strict=True)) == whole
    few = holds_pairs(tree, left, right, a[:20], b[:20])
    assert few.tolist() == flat[:20].tolist()
    return whole


def pairs_of(found: Iterator[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]) -> set[tuple[int, int]]:
    pairs = [pair for a, b in found for pair in zip(a.tolist(), b.tolist(), strict=True)]
    assert len(pairs) == len(set(pairs))
    return set(pairs)


COMPARED = [f"l.{column} {op} r.{column}" for column in VALUES if column not in "pq" for op in ("=", "<>", "<", "<=", ">", ">=", "<=>")]
PREDICATES = [
    *COMPARED,
    "l.i = r.n", "l.n < r.d", "l.f = r.d", "l.y > r.h", "l.f < r.n", "l.i <> r.f", "l.b = (r.i > 0)",
    "l.m < 5", "l.m = r.i", "l.m >= 1.5", "l.i < 0.5", "l.m <=> r.m and r.m is not null",
    "l.d > 0", "l.d < 1", "l.d >= r.r", "r.r <= l.d", "l.d = 'NaN'", "l.f <> r.w", "l.w < r.d", "l.w > r.d", "isnan(l.d) or isnan(r.f)",
    "l.i is null or r.s is not null", "not (l.b and r.b)", "l.b or r.b", "l.b and not r.b", "(l.b or r.b) is null", "l.b <=> null",
    "(l.i > 0 and r.d > 0) is null", "not (l.i > r.i or l.s = r.s)", "l.b", "r.q > 0", "true", "false", "null", "1 = 1 and l.q < r.q",
    "l.i in (1, 7, null)", "l.s in ('a', 'é', r.s)", "l.i not in (1, r.i)", "l.d in (0, double('NaN'))", "l.q between r.q and 5",
    "l.q + r.q > 3", "l.r - r.r < 5 and l.s <> r.s", "abs(l.r - r.r) < 20 and l.q <> r.q", "abs(l.p - r.p) < 5", "l.q * r.q > -3",
    "-l.q < r.q", "abs(l.d) > r.p", "-l.f <= r.f", "l.d + r.d > 0", "l.d * r.d < 1", "l.f * r.f > l.f - r.f", "l.d - r.d = 0",
    "l.r / 3 > r.r", "l.w / r.w > 1", "l.r % 7 = r.r % 3", "l.p % r.w > 0", "l.r div 7 < r.r", "l.p / r.w < 2", "l.d % r.w = 0",
    "l.q % 5 = r.q % 5", "l.r div -1 = r.r div -2", "try_divide(l.q, r.q) > 1", "try_add(l.i, r.i) > 0", "try_multiply(l.n, r.n) > 3",
    "try_subtract(l.n, r.n) is null", "try_cast(l.d as int) > r.q", "try_cast(l.n as int) is null", "try_cast(l.f as bigint) > 5",
    "try_cast(l.d as tinyint) = r.y", "try_cast(l.i as tinyint) is null", "cast(l.i as double) > r.w", "cast(l.b as int) + r.q > 1",
    "cast(l.q as boolean) = r.b", "cast(l.n as float) = r.f", "cast(l.d as float) > r.f", "cast(l.q as bigint) = r.q",
    "sqrt(l.p) > r.w", "sqrt(l.d) > 1", "ln(l.p) < r.w", "ln(l.d) is null", "log10(l.w) > 0.1", "exp(l.d) > r.d", "floor(l.p) < r.q",
    "ceil(l.w) > r.n", "floor(nullif(l.p, r.w)) = r.q",
    "ceil(l.q) = floor(r.p)", "signum(l.d) = signum(r.p)", "rint(l.p) > r.p", "hypot(l.p, r.w) < 5",
    "degrees(l.w) > r.p", "radians(l.p) < r.w", "atan2(l.p, r.p) > 1", "pow(l.d, r.d) > 1", "pow(l.p, 2) < r.p", "isnan(pow(l.d, r.d))",
    "sin(l.p) > cos(r.p)", "asin(l.p) > r.w", "acos(l.d) is null", "tan(l.w) < atan(r.p)", "tanh(l.d) >= sinh(r.p)",
    "2 * 6371 * asin(sqrt(pow(sin(radians(r.p - l.p) / 2), 2)"
    " + cos(radians(l.p)) * cos(radians(r.p)) * pow(sin(radians(r.w - l.w) / 2), 2))) < 3000",
    "coalesce(l.i, r.q) > 0", "coalesce(l.s, r.s, 'b') >= 'ab'", "nvl(l.d, 0) = 0", "nullif(l.q, 1) > r.q", "coalesce(l.i, l.q, 5) < r.q",
    "if(l.b, l.q, r.q) > 0", "case when l.q > 0 then 'a' when r.q > 0 then r.s end = l.s", "case l.s when 'a' then 1 else 2 end < r.q",
    "case when r.q <> 0 then l.q / r.q else null end > 1", "r.q <> 0 and l.q / r.q > 1", "r.q = 0 or l.q % r.q = 1",
    "l.q <> 0 and 10 / l.q > r.w", "coalesce(l.r, 1 / 0) > r.q", "if(true, l.q, 1 / 0) > r.q",
    "startswith(l.s, 'a') and endswith(r.s, 'b')", "contains(l.s, 'é') or l.s = r.s", "startswith(coalesce(l.s, r.s), '')", "l.s < 'b'",
    "l.x = x'00' or r.x > x'61'", "l.s <> r.s and l.s > 'a'",
    "l.ts - r.ts < interval 5 seconds", "abs(l.ts - r.ts) <= interval 7 seconds", "l.ts > r.ts + interval 1 second",
    "l.z - r.z > interval 1 day",
    "l.ts < '2024-01-01 00:00:03'", "l.day - r.day >= interval 1 day", "datediff(l.day, r.day) > 5", "l.day < date'2024-03-01'",
    "l.ts between r.ts - interval 8 seconds and r.ts", "cast(l.ts as double) > r.r", "cast(l.ts as bigint) <= unix_seconds(r.ts)",
    "unix_micros(l.ts) > unix_millis(r.ts)", "l.z >= timestamp_ntz'2024-01-01'", "l.ts - r.ts + interval 1 hour > -(r.ts - l.ts)",
]  # fmt: skip
LEGACY = [
    "ceil(l.d) > r.n", "floor(l.d) <= r.n", "floor(l.d + r.w) > 0",
    "l.i + r.i > 0", "l.i - r.i < 0", "l.n * r.n > 5", "l.n + r.n = r.n", "l.y * r.y > 0", "l.h - r.h > 0", "l.y + r.y < 0",
    "abs(l.i) < 0", "-l.n < 0", "-l.y = r.y", "abs(l.y) > r.q", "l.d / r.d > 1", "l.q / r.q is null", "l.i % r.i = 0", "l.n % r.n < 0",
    "l.n div r.n > 0", "l.i div r.i < 0", "l.f % r.f > 0", "l.d % r.d = 0", "cast(l.d as int) > r.q", "cast(l.d as bigint) > r.n",
    "cast(l.f as int) = r.i", "cast(l.d as tinyint) = r.y", "cast(l.i as smallint) = r.h", "cast(l.n as int) = r.i",
    "cast(l.n as tinyint) > 0", "cast(l.f as bigint) < r.n",
]  # fmt: skip
"""Conditions that fail in ANSI mode, for some pair."""
MOMENTARY = [
    "cast(now() as string)", "cast(current_date() as string)", "cast(localtimestamp() as string)", "cast(current_time() as string)",
    "cast(unix_timestamp() as string)", "current_user()", "current_timezone()", "current_database()", "current_catalog()",
]  # fmt: skip
"""Texts without columns that differ between queries. Spark could evaluate them at once, but the value would be that of the first query."""
UNSUPPORTED = [
    "l.s rlike 'a.*'", "l.s || 'x' = r.s", "round(l.d, 1) = r.d", "l.m + 1 > r.m", "cast(l.s as int) = r.q", "length(l.s) > r.q",
    "l.ts > current_timestamp()", "l.day < l.ts", "startswith(l.s, r.s)", "cast(l.m as decimal(4,1)) > 1", "cast(l.m as double) > r.d",
    "rand() < 0.5 or l.b", "l.ts + interval 1 month > r.ts", "cast(l.n as decimal(20,0)) > r.m", "l.s collate utf8_lcase = r.s",
    "array(l.i) = array(r.i)", "greatest(l.i, r.i) > 0", "cast(l.q as string) = r.s", "struct(l.i) = struct(r.i)",
    *(f"{each} = l.s" for each in MOMENTARY),
]  # fmt: skip


@pytest.mark.spark
@pytest.mark.parametrize("on", [True, pytest.param(False, marks=pytest.mark.extra)], ids=["ansi", "legacy"])
def test_every_pair_gets_sparks_answer(spark: SparkSession, on: bool) -> None:
    predicates = PREDICATES if on else PREDICATES + LEGACY
    with ansi(spark, on):
        found = trees(spark, predicates)
        refused = {p: str(tree) for p, tree in zip(predicates, found, strict=True) if isinstance(tree, UnsupportedError)}
        assert not refused
        wanted = [pairs for part in parts(predicates, 40) for pairs in spark_pairs(spark, part)]
    ours = [our_pairs(tree) for tree in found if not isinstance(tree, UnsupportedError)]
    differ = {p: sorted(a ^ b)[:3] for p, a, b in zip(predicates, ours, wanted, strict=True) if a != b}
    assert not differ
    # Data that tells nothing apart would make this test pass too.
    assert sum(0 < len(pairs) < ROWS * ROWS for pairs in wanted) > 0.8 * len(predicates)


def parts(items: list[str], size: int) -> list[list[str]]:
    return [items[a:b] for a, b in pairwise([*range(0, len(items), size), len(items)])]


@pytest.mark.spark
def test_what_fails_in_ansi_mode_fails_here_too(spark: SparkSession) -> None:
    with ansi(spark, True):
        for predicate, tree in zip(LEGACY, trees(spark, LEGACY), strict=True):
            assert not isinstance(tree, UnsupportedError), predicate
            with pytest.raises(QueryError, match=r"overflow|division by zero|does not fit"):
                our_pairs(tree)
        for predicate in LEGACY[::9]:
            with pytest.raises(PySparkException):
                spark_pairs(spark, [predicate])


@pytest.mark.spark
@pytest.mark.parametrize("on", [True, False], ids=["ansi", "legacy"])
def test_what_has_no_exact_counterpart_is_refused(spark: SparkSession, on: bool) -> None:
    with ansi(spark, on):
        for predicate, found in zip(UNSUPPORTED, trees(spark, UNSUPPORTED), strict=True):
            assert isinstance(found, UnsupportedError), predicate
            assert found.where
            assert found.found


@pytest.mark.spark
def test_wall_clock_differences_in_a_zone_with_daylight_saving_are_refused(spark: SparkSession) -> None:
    spark.conf.set("spark.sql.session.timeZone", "Europe/Madrid")
    try:
        asked = [
            "l.ts - r.ts < interval 1 second",
            "l.ts + interval 2 days > r.ts",
            "l.ts + interval 2 hours > r.ts",
            "l.z - r.z > interval 1 day",
        ]
        found = trees(spark, asked)
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert [isinstance(each, UnsupportedError) for each in found] == [True, True, False, False]


def numbers() -> st.SearchStrategy[str]:
    columns = [f"{side}.{name}" for side in "lr" for name in ("y", "i", "n", "f", "d", "p", "q", "r", "w")]
    leaf = st.sampled_from([*columns, "0", "1", "2.5D", "-3", "null"])
    return st.recursive(
        leaf,
        lambda inner: st.one_of(
            st.builds("({} {} {})".format, inner, st.sampled_from(["+", "-", "*", "/", "%"]), inner),
            st.builds("{}({})".format, st.sampled_from(["abs", "-", "sqrt", "floor", "double", "int", "bigint", "float", "signum"]), inner),
            st.builds("{}({}, {})".format, st.sampled_from(["coalesce", "nullif", "try_add", "try_divide"]), inner, inner),
        ),
        max_leaves=4,
    )


def conditions() -> st.SearchStrategy[str]:
    texts = st.sampled_from(["l.s", "r.s", "'a'", "'é'", "coalesce(l.s, r.s)"])
    compared = st.one_of(
        st.builds("({} {} {})".format, numbers(), st.sampled_from(["=", "<>", "<", "<=", ">", ">=", "<=>"]), numbers()),
        st.builds("({} {} {})".format, texts, st.sampled_from(["=", "<>", "<", ">=", "<=>"]), texts),
        st.builds("({} is null)".format, numbers()),
        st.builds("({} in ({}, {}))".format, numbers(), numbers(), numbers()),
        st.sampled_from(["l.b", "r.b"]),
    )
    return st.recursive(
        compared,
        lambda inner: st.one_of(
            st.builds("({} {} {})".format, inner, st.sampled_from(["and", "or", "<=>"]), inner),
            st.builds("(not {})".format, inner),
            st.builds("(case when {} then {} else {} end)".format, inner, inner, inner),
        ),
        max_leaves=4,
    )


@pytest.mark.spark
@pytest.mark.slow
@settings(
    max_examples=examples(8),
    deadline=None,
    derandomize=True,
    database=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate],
)
@pytest.mark.extra
@given(predicates=st.lists(conditions(), min_size=12, max_size=12))
def test_random_conditions(spark: SparkSession, predicates: list[str]) -> None:
    """Without ANSI mode, in which most of them would only fail."""
    note(str(predicates))
    with ansi(spark, False):
        found = trees(spark, predicates)
        kept = [(p, tree) for p, tree in zip(predicates, found, strict=True) if not isinstance(tree, UnsupportedError)]
        wanted = spark_pairs(spark, [p for p, _ in kept])
    for (predicate, tree), pairs in zip(kept, wanted, strict=True):
        assert our_pairs(tree) == pairs, predicate
