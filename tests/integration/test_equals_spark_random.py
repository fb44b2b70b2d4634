"""Random queries on random data: whatever keys, aggregates, window and mode, Headrace and Spark agree."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tests.examples import examples
from tests.integration.both import Feed, assert_equal

NAN, INF = float("nan"), float("inf")
EPOCH = datetime(2024, 1, 1, tzinfo=UTC)

COLUMNS: dict[str, tuple[str, pa.DataType, st.SearchStrategy[Any]]] = {
    "b": ("boolean", pa.bool_(), st.booleans()),
    "i": ("int", pa.int32(), st.integers(-3, 3) | st.sampled_from([2**31 - 1, -(2**31)])),
    "n": ("bigint", pa.int64(), st.integers(-(2**50), 2**50)),
    "d": ("double", pa.float64(), st.sampled_from([0.0, -0.0, 1.5, -7.25, 1e-3, NAN, INF, -INF]) | st.floats(-1e6, 1e6)),
    "f": ("float", pa.float32(), st.sampled_from([0.0, -0.0, 0.5, NAN])),
    "m": ("decimal(30,4)", pa.decimal128(30, 4), st.sampled_from([Decimal(0), Decimal("1.5"), Decimal("-99999999999999999999.1234")])),
    "s": ("string", pa.string(), st.sampled_from(["", "a", "b", "é", "zz"])),
    "x": ("binary", pa.binary(), st.binary(max_size=2)),
    "day": ("date", pa.date32(), st.dates(date(1900, 1, 1), date(2100, 1, 1))),
    "z": ("timestamp_ntz", pa.timestamp("us"), st.datetimes(datetime(1900, 1, 1), datetime(2100, 1, 1))),
}
SCHEMA = ", ".join(f"{name} {kind}" for name, (kind, _, _) in COLUMNS.items()) + ", ts timestamp, u bigint"
KEYS = ("b", "i", "d", "f", "m", "s", "x", "day", "z", "i % 2", "struct(s, d)", "upper(s)", "f + d")
AGGREGATES = (
    "count(*)", "count(s)", "count(s, i)", "sum(i)", "sum(d)", "sum(m)", "avg(i)", "avg(d)", "avg(m)", "min(d)", "max(d)", "min(s)",
    "max(x)", "max(day)", "min(z)", "max(m)", "min(b)", "var_pop(i)", "stddev(d)", "max_by(s, u)", "min_by(d, u)", "bool_or(b)",
    "bool_and(b)", "approx_count_distinct(d)", "approx_count_distinct(s)", "collect_set(f)", "collect_set(s)",
    "sum(i) / count(*) + 1", "sum(i) FILTER (WHERE b)", "max(n) - min(n)", "coalesce(max(i), -1)",
)  # fmt: skip
WINDOWS = (None, ("10 seconds",), ("20 seconds", "5 seconds"), ("25 seconds", "10 seconds", "3 seconds"))


@dataclass(frozen=True)
class Case:
    """A query and its input, readable when it fails."""

    keys: tuple[str, ...]
    aggregates: tuple[str, ...]
    window: tuple[str, ...] | None
    mode: str
    options: tuple[tuple[str, Any], ...]
    files: tuple[tuple[dict[str, Any], ...], ...]

    def query(self, stream: Any) -> Any:
        keys: list[Any] = [F.expr(k).alias(f"key{i}") for i, k in enumerate(self.keys)]
        if self.window is not None:
            keys.append(F.window("ts", *self.window))
        grouped = stream.withWatermark("ts", "5 seconds").groupBy(*keys)
        return grouped.agg(*[F.expr(a).alias(f"a{i}") for i, a in enumerate(self.aggregates)])

    @property
    def key_columns(self) -> int:
        return len(self.keys) + (self.window is not None)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    window = draw(st.sampled_from(WINDOWS))
    mode = draw(st.sampled_from(("update", "complete") if window is None else ("append", "append", "update", "complete")))
    keys = draw(st.lists(st.sampled_from(KEYS), max_size=3, unique=True))
    aggregates = draw(st.lists(st.sampled_from(AGGREGATES), min_size=1, max_size=6, unique=True))
    options = {
        "instances": draw(st.integers(1, 5)),
        "hashBits": draw(st.sampled_from([1, 3, 64])),
        "depthMax": draw(st.sampled_from([1, 4])),
        "combine": draw(st.sampled_from(["always", "never", "auto"])),
    }
    row = st.fixed_dictionaries({name: st.none() | values for name, (_, _, values) in COLUMNS.items()})
    files, unique = [], 0
    for at in range(draw(st.integers(1, 3))):
        rows = []
        for values in draw(st.lists(row, min_size=1, max_size=12)):
            second = draw(st.none() | st.integers(0, 3000).map(lambda x: x / 100)) if at else draw(st.integers(0, 3000)) / 100
            time = None if second is None else EPOCH + timedelta(seconds=second + 20 * at)
            rows.append({**values, "ts": time, "u": unique})
            unique += 1
        files.append(tuple(rows))
    return Case(tuple(keys), tuple(aggregates), window, mode, tuple(options.items()), tuple(files))


ARROW = pa.schema([*[(name, kind) for name, (_, kind, _) in COLUMNS.items()], ("ts", pa.timestamp("us", tz="UTC")), ("u", pa.int64())])


@pytest.mark.slow
@settings(
    max_examples=examples(12, at_least=3),
    deadline=None,
    derandomize=True,
    database=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)
@given(case=cases())
def test_random_queries(spark: SparkSession, case: Case) -> None:
    note(str(case))
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        feed = Feed.of(root, SCHEMA, [pa.Table.from_pylist(list(rows), schema=ARROW) for rows in case.files])
        assert_equal(spark, [feed], case.query, case.mode, root, keys=case.key_columns, **dict(case.options))
