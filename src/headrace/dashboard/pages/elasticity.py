"""Decisions of a query's policy, and what another policy or other limits would have decided."""

from __future__ import annotations

import itertools
import logging
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headrace.control.elastic import POLICIES, Elastic
from headrace.control.observing import Batch
from headrace.dashboard import answers
from headrace.dashboard.pages.changes import body_of
from headrace.dashboard.queries import Queries, Shown
from headrace.errors import QueryError
from headrace.logs import logger, suppressed
from headrace.sim.replay import Replayed, batches_of, replay

_log = logger(__name__)
BATCHES_MAX = 1_500
"""A replay takes at most so many batches, the newest."""


def routes(known: Queries) -> list[Route]:
    def decisions(request: Request) -> Response:
        return answers.data(decided(known.find(request.path_params["query"])))

    async def what_if(request: Request) -> Response:
        shown, wanted = await run_in_threadpool(known.find, request.path_params["query"]), await body_of(request)
        return answers.data(await run_in_threadpool(replayed, shown, wanted))

    base = "/api/queries/{query}"
    return [Route(f"{base}/decisions", decisions), Route(f"{base}/whatif", what_if, methods=["POST"])]


def decided(shown: Shown) -> dict[str, Any]:
    """Every decision, oldest first: of this start from the query itself, which counts repeated ones; earlier ones from the history."""
    past = [each for each in shown.events if each["kind"] == "decision"]
    live: list[dict[str, Any]] = []
    # If it does not run, or has neither a policy nor drops, there is only the history.
    with suppressed(_log, "the query itself does not say what was decided", QueryError, level=logging.DEBUG):
        live = shown.ask({"do": "decisions"})["decisions"]
    since = min((each["atS"] for each in live), default=float("inf"))
    return {
        "decisions": [each for each in past if each["atS"] < since - 1e-3] + live,
        "policy": shown.about.get("policy"),
        "policies": {name: list(kind.thresholds) for name, kind in POLICIES.items()},
        "whole": len(shown.progress()),
    }


def replayed(shown: Shown, wanted: dict[str, Any]) -> dict[str, Any]:
    """A replay of the recorded batches by a policy with these settings, beside what happened."""
    try:
        settings = Elastic(**wanted)
    except TypeError:
        names = ", ".join(Elastic.__dataclass_fields__)
        raise QueryError(where="what if", wanted=f"settings of hr.Elastic: {names}", found=", ".join(wanted)) from None
    batches = batches_of(shown.reader.batches(BATCHES_MAX), "history")
    if not batches:
        raise QueryError(where="what if", wanted="batches in the history of the query", found="none")
    would = replay(batches, settings)
    since_s = batches[0].end_s
    seen = [(each["t"], each["busy"]) for each in shown.points if each["t"] >= since_s and each.get("busy") is not None]
    return {
        "batches": len(batches),
        "seconds": round(batches[-1].end_s - batches[0].begin_s, 1),
        "limits": settings.limits,
        "operators": {str(each.operator): _beside(batches, would, at) for at, each in enumerate(batches[-1].operators)},
        "busy": {"was": {"t": [t for t, _ in seen], "busy": [busy for _, busy in seen]}, "would": _busy(would)},
        "decisions": [each.to_json() for each in would.log],
        "instanceSeconds": {"was": _recorded_seconds(batches), "would": _seconds(would)},
    }


def _beside(batches: list[Batch], would: Replayed, at: int) -> dict[str, list[Any]]:
    """Instances of an operator as they were, and as they would have been, over time."""
    name = batches[-1].operators[at].operator
    was = [(batch.end_s, len(each.busy_s)) for batch in batches for each in batch.operators if each.operator == name]
    seen = [(moment.at_s, moment.instances[name]) for moment in would.moments if name in moment.instances]
    return {"wasT": [t for t, _ in was], "was": [n for _, n in was], "wouldT": [t for t, _ in seen], "would": [n for _, n in seen]}


def _busy(found: Replayed) -> dict[str, list[Any]]:
    """The query's utilisation at each moment that the policy looked at it."""
    seen = [(moment.at_s, moment.observation.path) for moment in found.moments]
    return {"t": [t for t, path in seen if path], "busy": [round(path.utilisation, 4) for _, path in seen if path]}


def _recorded_seconds(batches: list[Batch]) -> float:
    """Instances times seconds, as it was: what the run cost."""
    pairs = itertools.pairwise(batches)
    return round(sum((then.end_s - now.end_s) * sum(len(each.busy_s) for each in now.operators) for now, then in pairs), 1)


def _seconds(found: Replayed) -> float:
    pairs = itertools.pairwise(found.moments)
    return round(sum((then.at_s - now.at_s) * sum(now.instances.values()) for now, then in pairs), 1)
