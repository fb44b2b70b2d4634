"""The rows of streams for programs from practice: sensors, card payments, changes of a table, access logs, orders and shipments."""

from __future__ import annotations

import random
from decimal import Decimal
from typing import Any

import pyarrow as pa

from tests.conformance.moments import TIME, moment

SCHEMAS = {
    "sensors": "device string, metric string, reading double, battery int, at string",
    "payments": "tx string, card string, merchant string, amount decimal(10,2), country string, ok boolean, paid_at timestamp",
    "changes": "op string, key int, row struct<name:string,city:string,score:int>, lsn long, changed timestamp",
    "logs": "value string",
    "orders_in": "order_no long, customer string, sum double, ordered timestamp",
    "shipped": "order_no long, carrier string, shipped timestamp",
}


def _sensor(rng: random.Random, file: int, number: int) -> dict[str, Any]:
    at = moment(rng, file)
    return {
        "device": f"dev-{rng.randrange(4)}",
        "metric": rng.choice(["temp", "hum"]),
        "reading": rng.choice([round(rng.uniform(10, 90), 1), None]),
        "battery": rng.randrange(100),
        "at": rng.choice([at.strftime("%Y-%m-%dT%H:%M:%S.%fZ"), at.strftime("%Y-%m-%dT%H:%M:%SZ")]),
    }


def _payment(rng: random.Random, file: int, number: int) -> dict[str, Any]:
    return {
        "tx": f"t{number - rng.choice([0, 0, 0, 1])}",
        "card": rng.choice(["c1", "c2", "c3"]),
        "merchant": rng.choice(["shop", "bar", "web", None]),
        "amount": Decimal(rng.randrange(100, 99999)) / 100,
        "country": rng.choice(["NO", "IT", "US"]),
        "ok": rng.choice([True, True, False, None]),
        "paid_at": moment(rng, file),
    }


def _change(rng: random.Random, file: int, number: int) -> dict[str, Any]:
    return {
        "op": rng.choice(["I", "U", "U", "D"]),
        "key": rng.randrange(8),
        "row": {"name": rng.choice(["ada", "bob"]), "city": rng.choice(["Oslo", None]), "score": rng.randrange(50)},
        "lsn": number,
        "changed": moment(rng, file),
    }


def _log(rng: random.Random, file: int, number: int) -> dict[str, Any]:
    at = moment(rng, file)
    if rng.random() < 0.1:
        return {"value": "garbage line"}
    when, method, status = at.strftime("%d/%b/%Y:%H:%M:%S +0000"), rng.choice(["GET", "POST"]), rng.choice([200, 200, 404, 500])
    return {"value": f'10.0.0.{rng.randrange(3)} - - [{when}] "{method} /p{rng.randrange(4)} HTTP/1.1" {status} {rng.randrange(5000)}'}


def _order_in(rng: random.Random, file: int, number: int) -> dict[str, Any]:
    return {
        "order_no": number,
        "customer": rng.choice(["ada", "bob", None]),
        "sum": round(rng.uniform(1, 100), 2),
        "ordered": moment(rng, file),
    }


def _shipped(rng: random.Random, file: int, number: int) -> dict[str, Any]:
    return {"order_no": max(0, number - rng.randrange(30)), "carrier": rng.choice(["ups", "dhl"]), "shipped": moment(rng, file)}


ROW = {"sensors": _sensor, "payments": _payment, "changes": _change, "logs": _log, "orders_in": _order_in, "shipped": _shipped}
TYPES = {
    "sensors": pa.schema(
        [("device", pa.string()), ("metric", pa.string()), ("reading", pa.float64()), ("battery", pa.int32()), ("at", pa.string())]
    ),
    "payments": pa.schema(
        [
            ("tx", pa.string()),
            ("card", pa.string()),
            ("merchant", pa.string()),
            ("amount", pa.decimal128(10, 2)),
            ("country", pa.string()),
            ("ok", pa.bool_()),
            ("paid_at", TIME),
        ]
    ),
    "changes": pa.schema(
        [
            ("op", pa.string()),
            ("key", pa.int32()),
            ("row", pa.struct([("name", pa.string()), ("city", pa.string()), ("score", pa.int32())])),
            ("lsn", pa.int64()),
            ("changed", TIME),
        ]
    ),
    "logs": pa.schema([("value", pa.string())]),
    "orders_in": pa.schema([("order_no", pa.int64()), ("customer", pa.string()), ("sum", pa.float64()), ("ordered", TIME)]),
    "shipped": pa.schema([("order_no", pa.int64()), ("carrier", pa.string()), ("shipped", TIME)]),
}
