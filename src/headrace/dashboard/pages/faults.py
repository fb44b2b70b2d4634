"""Faults and load: executors, what was lost and how long each recovery took, checkpoints, copies, and what is dropped."""

from __future__ import annotations

import logging
import time
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headrace.dashboard import answers
from headrace.dashboard.queries import Queries, Shown
from headrace.errors import HeadraceError, QueryError
from headrace.logs import logger, suppressed

_log = logger(__name__)
KINDS = ("lost", "rebuilt", "gap", "store", "redundancy", "homes", "start", "end", "history")
EVENTS_MAX, CHECKPOINTS_MAX = 200, 200


def routes(known: Queries) -> list[Route]:
    def faults(request: Request) -> Response:
        return answers.data(faults_of(known.find(request.path_params["query"])))

    return [Route("/api/queries/{query}/faults", faults)]


def faults_of(shown: Shown) -> dict[str, Any]:
    """What the page shows. Parts that the query does not have are null."""
    whole = shown.progress()
    last = whole[-1]["headrace"] if whole else {}
    executors: Any = None
    copies: Any = None
    with suppressed(_log, "the query itself does not say what executors it has", QueryError, level=logging.DEBUG):
        answer = shown.ask({"do": "executors"})
        executors, copies = _heard(answer["executors"], last), answer.get("copies")
    checkpoints = [each for each in shown.events if each["kind"] == "checkpoint"]
    lost = [each for each in shown.events if each["kind"] == "lost"]
    return {
        "executors": executors,
        "copies": copies or None,
        "events": [each for each in shown.events if each["kind"] in KINDS][-EVENTS_MAX:],
        "recoveries": lost[-EVENTS_MAX:],
        "checkpoints": checkpoints[-CHECKPOINTS_MAX:] or None,
        "checkpoint": last.get("checkpoint"),
        "replicas": last.get("replicas"),
        "withoutRedundancyMs": _without(shown),
        "shedding": last.get("shedding"),
        "shed": _shed(whole),
        "safety": shown.about.get("safety", []),
        "gaps": _gaps(shown),
    }


def _heard(executors: list[dict[str, Any]] | None, last: dict[str, Any]) -> list[dict[str, Any]] | None:
    """The executors with their last sign of life: an answer to a question, or the work in the last batch."""
    if not executors or not last:
        return executors
    worked, ago_s = {each["executor"] for each in last["instances"]}, time.time() - last["observation"]["endS"]
    for each in executors:
        signs = [each["heardS"], ago_s if each["id"] in worked else None]
        each["heardS"] = min((sign for sign in signs if sign is not None), default=None)
    return executors


def _without(shown: Shown) -> int | None:
    """For how long copies were missing, all in all; None if the query keeps none."""
    told = [each for each in shown.events if each["kind"] == "redundancy"]
    if not told:
        return None
    return sum(int(each.get("lastedMs", 0)) for each in told)


def _shed(whole: list[dict[str, Any]]) -> dict[str, Any] | None:
    """By place where rows may be dropped, over the last batches: rows that arrived, and rows that were dropped."""
    found: dict[str, dict[str, int]] = {}
    for each in whole:
        for name, place in ((each["headrace"].get("shedding") or {}).get("places") or {}).items():
            seen = found.setdefault(name, {"arrived": 0, "shed": 0})
            seen["arrived"] += place["arrived"]
            seen["shed"] += place["shed"]
    return {"batches": len(whole), "places": found} if found else None


def _gaps(shown: Shown) -> list[dict[str, Any]]:
    try:
        return [gap.to_json() for gap in shown.checkpoint.gaps.read()]
    except (HeadraceError, OSError):
        return []
