"""Rows of the testing kit: what a user may write, and how it is converted."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from pyspark.sql import Row
from pyspark.sql import types as T

from headrace.errors import QueryError
from headrace.testing.values import collected, sorted_rows, to_table

BERLIN = ZoneInfo("Europe/Berlin")
MOMENT = datetime(2026, 1, 1, 11, 0, 1, 500000, tzinfo=UTC)
SCHEMA = T.StructType([T.StructField("k", T.StringType()), T.StructField("ts", T.TimestampType()), T.StructField("n", T.LongType())])


def written(*rows: Any, schema: T.StructType = SCHEMA) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = to_table(rows, schema, BERLIN, "add").to_pylist()
    return found


def one(value: Any, kind: T.DataType) -> Any:
    (row,) = written((value,), schema=T.StructType([T.StructField("x", kind)]))
    return row["x"]


def test_rows_may_be_tuples_lists_rows_and_dicts() -> None:
    wanted = {"k": "a", "ts": MOMENT, "n": 1}
    assert written(("a", MOMENT, 1), ["a", MOMENT, 1], Row(k="a", ts=MOMENT, n=1), {"n": 1, "ts": MOMENT, "k": "a"}) == [wanted] * 4
    assert written({"k": "a"}) == [{"k": "a", "ts": None, "n": None}]
    assert written(schema=SCHEMA) == []
    assert written(7, None, schema=T.StructType([SCHEMA["n"]])) == [{"n": 7}, {"n": None}]


def test_texts_are_times_in_the_session_s_zone_and_datetimes_local_ones() -> None:
    texts = ("2026-01-01 12:00:01.5", "2026-01-01T12:00:01.500", "2026-01-01 11:00:01.5+00:00")
    assert [one(text, T.TimestampType()) for text in texts] == [MOMENT] * 3
    assert one(MOMENT.astimezone().replace(tzinfo=None), T.TimestampType()) == MOMENT
    assert one("2026-01-01 12:00:01", T.TimestampNTZType()) == datetime(2026, 1, 1, 12, 0, 1)
    assert one("2026-01-02", T.DateType()) == date(2026, 1, 2)


def test_nested_values_and_decimals() -> None:
    window = T.StructType([T.StructField("start", T.TimestampType()), T.StructField("end", T.TimestampType())])
    assert one(("2026-01-01 12:00:01.5", None), window) == {"start": MOMENT, "end": None}
    assert one([{"end": "2026-01-01 12:00:01.5"}], T.ArrayType(window)) == [{"start": None, "end": MOMENT}]
    assert one({"a": 1}, T.MapType(T.StringType(), T.IntegerType())) == [("a", 1)]
    assert one("1.5", T.DecimalType(10, 2)) == one(1.5, T.DecimalType(10, 2)) == Decimal("1.50")


def test_wanted_rows_look_like_collected_ones() -> None:
    schema = T.StructType([*SCHEMA.fields, T.StructField("x", T.DoubleType()), T.StructField("f", T.FloatType())])
    local = MOMENT.astimezone().replace(tzinfo=None)
    for time in ("2026-01-01 12:00:01.5", MOMENT, local):
        (row,) = collected([("a", time, 1, 2, 0.1)], schema, BERLIN, "assert_rows")
        assert row == ("a", local, 1, 2.0, pa.scalar(0.1, pa.float32()).as_py())
        assert isinstance(row[3], float)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (("a", MOMENT), r"rows of 3 values: k, ts, n; found 2 values: \('a', "),
        ({"k": "a", "m": 1}, "columns among k, ts, n; found m"),
        ("a", "rows of k, ts, n, as tuples or dicts; found 'a'"),
        ((1, None, None), "string in column 'k'; found 1"),
        (("a", "noon", 1), "timestamp in column 'ts'; found 'noon'"),
        (("a", 12, 1), "timestamp in column 'ts'; found 12"),
        (("a", None, "many"), "bigint in column 'n'; found 'many'"),
        (("a", None, 2**63), f"bigint in column 'n'; found {2**63}"),
    ],
)
def test_rows_that_do_not_fit_are_refused(row: Any, message: str) -> None:
    with pytest.raises(QueryError, match=f"^add: wanted {message}"):
        written(("a", None, None), row)


def test_rows_are_sorted_by_their_columns_whatever_they_hold() -> None:
    rows = [("b", {"x": 1}), (None, [2, None]), ("a", float("nan")), ("a", 2.5), ("a", None), (None, [1])]
    assert [repr(row) for row in sorted_rows(rows)] == [repr(rows[at]) for at in (5, 1, 4, 3, 2, 0)]
