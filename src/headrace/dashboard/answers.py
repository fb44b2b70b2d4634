"""JSON answers of the monitor's pages, and what they read from requests."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from headrace.errors import HeadraceError, QueryError

JSON = "application/json"


def text(body: Any) -> str:
    """JSON text. Numbers that JSON does not have become null."""
    return json.dumps(_finite(body), separators=(",", ":"), default=_other, allow_nan=False)


def data(body: Any, status: int = 200) -> Response:
    return Response(text(body), status, media_type=JSON)


def refused(error: HeadraceError, status: int = 400) -> Response:
    """An error of ours, with its parts."""
    return data({"error": str(error), "where": error.where, "hint": error.hint}, status)


def _finite(body: Any) -> Any:
    if isinstance(body, float):
        return body if math.isfinite(body) else None
    if isinstance(body, Mapping):
        return {str(name): _finite(value) for name, value in body.items()}
    if isinstance(body, list | tuple):
        return [_finite(each) for each in body]
    return body


def _other(value: Any) -> Any:
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, bytes):
        return "0x" + value.hex()
    return str(value) if isinstance(value, Decimal) else repr(value)


def moment(request: Request, name: str) -> float:
    """Seconds since the epoch in the request's query; 0 without. Raises an error for anything else."""
    given = request.query_params.get(name) or "0"
    try:
        found = float(given)
    except ValueError:
        found = math.nan
    if not math.isfinite(found):
        raise QueryError(where=f"monitor, {name}", wanted="seconds since the epoch", found=repr(given[:100]))
    return found


def number(request: Request, name: str, default: int | None, least: int = 0, most: int = 2**53) -> int | None:
    """A whole number of the request's query. Raises an error for anything else."""
    given = request.query_params.get(name)
    if given is None or given == "":
        return default
    if not given.isdigit() or not least <= int(given) <= most:
        raise QueryError(where=f"monitor, {name}", wanted=f"a whole number from {least} to {most}", found=repr(given))
    return int(given)
