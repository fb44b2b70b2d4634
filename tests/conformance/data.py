"""The rows of the programs' streams: a few files for each, with late rows, duplicates and nulls.

The last file moves event time far ahead.
"""

from __future__ import annotations

import random
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from tests.conformance import practice_data
from tests.conformance.moments import TIME, moment

FILES, ROWS = 4, 40

SCHEMAS = {
    "events": "id long, user string, kind string, value double, amount long, tags array<string>, "
    "place struct<city:string,zip:int>, ts timestamp",
    "clicks": "click_ad long, click_user string, click_ts timestamp",
    "views": "ad long, country string, cost double, view_ts timestamp",
    "lines": "line string, line_ts timestamp",
    "raw": "json string, at timestamp",
    "orders": "order_id string, customer struct<name:string,tier:string>, items array<struct<sku:string,qty:int,price:decimal(10,2)>>, "
    "total decimal(12,2), paid boolean, shop smallint, ratio float, day date, local timestamp_ntz, token binary, "
    "attrs map<string,string>, created timestamp",
    **practice_data.SCHEMAS,
}


def _event(rng: random.Random, file: int, number: int) -> dict[str, Any]:
    return {
        "id": number - rng.choice([0, 0, 0, 1]),
        "user": rng.choice(["ada", "bob", "cy", "dee", None]),
        "kind": rng.choice(["open", "close", "error"]),
        "value": rng.choice([round(rng.uniform(-5, 50), 2), None]),
        "amount": rng.randrange(100),
        "tags": rng.sample(["red", "green", "blue"], rng.randrange(3)),
        "place": {"city": rng.choice(["Oslo", "Rome"]), "zip": rng.randrange(3)},
        "ts": moment(rng, file),
    }


def _click(rng: random.Random, file: int, number: int) -> dict[str, Any]:
    return {"click_ad": rng.randrange(25), "click_user": rng.choice(["ada", "bob", "cy"]), "click_ts": moment(rng, file)}


def _view(rng: random.Random, file: int, number: int) -> dict[str, Any]:
    return {"ad": rng.randrange(25), "country": rng.choice(["no", "it"]), "cost": number / 4, "view_ts": moment(rng, file)}


def _line(rng: random.Random, file: int, number: int) -> dict[str, Any]:
    words = rng.choices(["the", "stream", "of", "words", "The"], k=rng.randrange(6))
    return {"line": " ".join(words), "line_ts": moment(rng, file)}


def _raw(rng: random.Random, file: int, number: int) -> dict[str, Any]:
    json = f'{{"device": "d{rng.randrange(4)}", "signal": {rng.randrange(10)}}}' if rng.random() < 0.9 else "broken"
    return {"json": json, "at": moment(rng, file)}


def _order(rng: random.Random, file: int, number: int) -> dict[str, Any]:
    at = moment(rng, file)
    price = Decimal(rng.randrange(1, 5000)) / 100
    items = [{"sku": rng.choice(["pen", "cup", "hat"]), "qty": rng.randrange(1, 4), "price": price} for _ in range(rng.randrange(3))]
    return {
        "order_id": f"o{number - rng.choice([0, 0, 0, 2])}",
        "customer": {"name": rng.choice(["Ada", "ada", "Bob", None]), "tier": rng.choice(["gold", "basic"])},
        "items": items,
        "total": rng.choice([price * 3, price, None]),
        "paid": rng.choice([True, False, None]),
        "shop": rng.randrange(3),
        "ratio": rng.choice([0.5, 1.25, float("nan"), -0.0, None]),
        "day": at.date() - timedelta(days=rng.randrange(2)),
        "local": at.replace(tzinfo=None),
        "token": rng.choice([b"\x00\x01", b"\xff", b""]),
        "attrs": {"color": rng.choice(["red", "blue"]), "size": rng.choice(["s", "l"])},
        "created": at,
    }


_ROW = {"events": _event, "clicks": _click, "views": _view, "lines": _line, "raw": _raw, "orders": _order, **practice_data.ROW}
_TYPES = {
    "events": pa.schema(
        [
            ("id", pa.int64()),
            ("user", pa.string()),
            ("kind", pa.string()),
            ("value", pa.float64()),
            ("amount", pa.int64()),
            ("tags", pa.list_(pa.string())),
            ("place", pa.struct([("city", pa.string()), ("zip", pa.int32())])),
            ("ts", TIME),
        ]
    ),
    "clicks": pa.schema([("click_ad", pa.int64()), ("click_user", pa.string()), ("click_ts", TIME)]),
    "views": pa.schema([("ad", pa.int64()), ("country", pa.string()), ("cost", pa.float64()), ("view_ts", TIME)]),
    "lines": pa.schema([("line", pa.string()), ("line_ts", TIME)]),
    "raw": pa.schema([("json", pa.string()), ("at", TIME)]),
    "orders": pa.schema(
        [
            ("order_id", pa.string()),
            ("customer", pa.struct([("name", pa.string()), ("tier", pa.string())])),
            ("items", pa.list_(pa.struct([("sku", pa.string()), ("qty", pa.int32()), ("price", pa.decimal128(10, 2))]))),
            ("total", pa.decimal128(12, 2)),
            ("paid", pa.bool_()),
            ("shop", pa.int16()),
            ("ratio", pa.float32()),
            ("day", pa.date32()),
            ("local", pa.timestamp("us")),
            ("token", pa.binary()),
            ("attrs", pa.map_(pa.string(), pa.string())),
            ("created", TIME),
        ]
    ),
    **practice_data.TYPES,
}


def tables(name: str) -> list[pa.Table]:
    """The files of a stream, in the order in which they come."""
    rng = random.Random(f"conformance {name}")
    files = [[_ROW[name](rng, file, file * ROWS + row) for row in range(ROWS)] for file in range(FILES)]
    # One last row, hours later, closes windows.
    last = _ROW[name](random.Random(1), 300, 10_000)
    # Spark's optimiser may move a filter for nulls below the watermark, so the last row has none.
    files.append([{**last, "user": "ada"} if "user" in last else last])
    return [pa.Table.from_pylist(rows, schema=_TYPES[name]) for rows in files]


def users(spark: SparkSession) -> DataFrame:
    """A static DataFrame."""
    return spark.createDataFrame([("ada", "math", 36), ("bob", "art", 52), ("eve", "spy", 28)], "user string, job string, age int")
