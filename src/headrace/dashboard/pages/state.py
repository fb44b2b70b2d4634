"""State: who owns which slots and how loaded they are, and what is in the state at any kept version."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headrace.dashboard import answers, kept
from headrace.dashboard.queries import Queries, Shown
from headrace.errors import QueryError
from headrace.ids import SLOTS

RECENT = 20
"""The load of slots is that of the last so many batches."""


def routes(known: Queries) -> list[Route]:
    def slots(request: Request) -> Response:
        return answers.data(slot_map(known.find(request.path_params["query"]), request.query_params.get("operator")))

    def versions(request: Request) -> Response:
        return answers.data({"versions": kept.versions(known.find(request.path_params["query"]).checkpoint)})

    def stores(request: Request) -> Response:
        shown = known.find(request.path_params["query"])
        return answers.data(kept.stores(shown.checkpoint, answers.number(request, "version", None)))

    def table(request: Request) -> Response:
        shown, store = known.find(request.path_params["query"]), request.query_params.get("store", "")
        offset, limit = answers.number(request, "offset", 0) or 0, answers.number(request, "limit", 50, 1, kept.ROWS_MAX) or 1
        version = answers.number(request, "version", None)
        return answers.data(kept.table(shown.checkpoint, store, version, _wanted(request), offset, limit))

    def difference(request: Request) -> Response:
        shown, store = known.find(request.path_params["query"]), request.query_params.get("store", "")
        before, after = answers.number(request, "before", None), answers.number(request, "after", None)
        return answers.data(kept.difference(shown.checkpoint, store, before, after))

    base = "/api/queries/{query}"
    found = {"slots": slots, "versions": versions, "stores": stores, "table": table, "difference": difference}
    return [Route(f"{base}/{name}", function) for name, function in found.items()]


def _wanted(request: Request) -> dict[str, str]:
    """The values that rows must have, by column."""
    text = request.query_params.get("where", "{}")
    try:
        body = json.loads(text)
    except ValueError:
        body = None
    if not isinstance(body, dict) or not all(isinstance(value, str) for value in body.values()):
        raise QueryError(where="state", wanted="an object of columns and texts", found=text[:100])
    return body


def slot_map(shown: Shown, operator: str | None) -> dict[str, Any]:
    """The owner of every slot of an operator, by ranges, and the rows that came to each lately."""
    whole = shown.progress()
    if not whole:
        raise QueryError(where="state", wanted="a batch in the history", found="none yet")
    last = whole[-1]["headrace"]
    routing = last["observation"]["routing"]
    names = list(routing)
    if not names:
        raise QueryError("this query keeps no state", where="state")
    name = operator or names[0]
    if name not in routing:
        raise QueryError(where="state", wanted=f"an operator: {', '.join(names)}", found=repr(name))
    rows, seconds = _load(whole[-RECENT:], name)
    stores = [about for store, about in shown.checkpoint.identity().get("operators", {}).items() if store.partition(".")[0] == name]
    instances = [{k: v for k, v in each.items() if k != "rowsPerSlot"} for each in last["instances"] if each["operator"] == name]
    return {
        "operators": names,
        "operator": name,
        "version": last["version"],
        "epoch": routing[name]["epoch"],
        "ranges": routing[name]["ranges"],
        "spread": routing[name]["spread"],
        "recreations": routing[name]["recreations"],
        "homes": last["routing"].get(name, {}).get("homes", []),
        "rows": rows.tolist(),
        "seconds": round(seconds, 3),
        "batches": min(RECENT, len(whole)),
        "spreads": any(each.get("kernel", {}).get("lifetime", {}).get("kind") == "windows" for each in stores),
        "instances": instances,
    }


def _load(whole: list[dict[str, Any]], name: str) -> tuple[np.ndarray[Any, np.dtype[np.int64]], float]:
    """Rows by slot over some batches, and how many seconds these cover."""
    rows = np.zeros(SLOTS, dtype=np.int64)
    for each in whole:
        for instance in each["headrace"]["instances"]:
            if instance["operator"] == name and instance["rowsPerSlot"]:
                slots = np.fromiter(map(int, instance["rowsPerSlot"]), dtype=np.int64)
                np.add.at(rows, slots, np.fromiter(instance["rowsPerSlot"].values(), dtype=np.int64))
    spans = [each["headrace"]["observation"] for each in whole]
    return rows, spans[-1]["endS"] - spans[0]["beginS"]
