"""The overview, and the stream of news that keeps every page up to date."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

from anyio import to_thread
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from headrace.dashboard import answers
from headrace.dashboard.queries import Queries, Shown
from headrace.dashboard.series import series
from headrace.dashboard.summary import summary

LOOK_S = 0.4
"""How often to look for news while a page is open."""
IDLE_S = 10.0
"""Without news, a comment is sent so often: a browser that is gone is noticed, and times since the last batch are brought up to date."""


def routes(known: Queries) -> list[Route]:
    def queries(request: Request) -> Response:
        return answers.data({"queries": [summary(each) for each in known.all()]})

    async def stream(request: Request) -> Response:
        wanted = request.query_params.get("query")
        shown = known.find(wanted) if wanted else None
        since = answers.moment(request, "since")
        return StreamingResponse(news(known, shown, since, request.is_disconnected), media_type="text/event-stream")

    return [Route("/api/queries", queries), Route("/api/stream", stream)]


async def news(known: Queries, shown: Shown | None, since: float, is_gone: Callable[[], Any]) -> AsyncIterator[str]:
    """Server-sent events: ``queries`` with a line for each query, and ``batch`` with what is new of one of them."""
    stamps: Any = None
    newest, told = since, -1
    waited = 0.0
    while not known.ended.is_set() and not await is_gone():
        every = await to_thread.run_sync(known.all)
        now = [each.stamp for each in every]
        if now != stamps or waited >= IDLE_S:
            stamps, waited = now, 0.0
            body = await to_thread.run_sync(_summaries, every)
            yield f"event: queries\ndata: {answers.text(body)}\n\n"
        if shown is not None and ((shown.points and shown.points[-1]["t"] > newest) or len(shown.events) != told):
            yield f"event: batch\ndata: {answers.text(await to_thread.run_sync(_batch, shown, newest, told))}\n\n"
            newest, told = shown.points[-1]["t"] if shown.points else newest, len(shown.events)
        await asyncio.sleep(LOOK_S)
        waited += LOOK_S


def _summaries(every: list[Shown]) -> list[dict[str, Any]]:
    return [summary(each) for each in every]


def _batch(shown: Shown, newest: float, told: int) -> dict[str, Any]:
    """New points, new events, and the instances of the last batch."""
    events = [] if told < 0 else shown.events[told:]
    return {"series": series(shown.points, newest), "events": events, "last": last_batch(shown)}


def last_batch(shown: Shown) -> dict[str, Any] | None:
    """What a page needs of the last batch's whole progress."""
    whole = shown.progress()
    return None if not whole else batch(whole[-1])


def batch(progress: dict[str, Any]) -> dict[str, Any]:
    """A progress without what only replays and heat maps need."""
    ours = progress["headrace"]
    instances = [{name: value for name, value in each.items() if name != "rowsPerSlot"} for each in ours["instances"]]
    left_out = ("observation", "instances")
    return {
        "version": ours["version"],
        "endS": ours["observation"]["endS"],
        "beginS": ours["observation"]["beginS"],
        "durationMs": progress.get("durationMs"),
        "sources": progress.get("sources", []),
        "instances": instances,
        **{name: value for name, value in ours.items() if name not in left_out},
    }
