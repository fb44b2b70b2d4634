"""Changes of a running query, asked for on any page: they go to its control endpoint, which checks them as if the program had asked."""

from __future__ import annotations

import json
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headrace.dashboard import answers
from headrace.dashboard.queries import Queries, Shown
from headrace.errors import QueryError

CHANGES = ("rescale", "rebalance", "move", "spread", "auto", "decommission")
BODY_BYTES_MAX = 100_000


def routes(known: Queries) -> list[Route]:
    async def change(request: Request) -> Response:
        shown, wanted = await run_in_threadpool(known.find, request.path_params["query"]), await body_of(request)
        if wanted.get("do") not in CHANGES:
            raise QueryError(where="monitor", wanted=f"one of {', '.join(CHANGES)}", found=repr(wanted.get("do")))
        return answers.data(await run_in_threadpool(shown.ask, wanted))

    async def preview(request: Request) -> Response:
        shown, wanted = await run_in_threadpool(known.find, request.path_params["query"]), await body_of(request)
        return answers.data(await run_in_threadpool(shown.ask, {"do": "preview", "change": wanted}))

    def live(request: Request) -> Response:
        return answers.data(now(known.find(request.path_params["query"])))

    base, post = "/api/queries/{query}", ["POST"]
    return [Route(f"{base}/do", change, methods=post), Route(f"{base}/preview", preview, methods=post), Route(f"{base}/now", live)]


async def body_of(request: Request) -> dict[str, Any]:
    """The JSON object that a request has as its body. Raises an error for anything else."""
    text = b""
    async for piece in request.stream():
        text += piece
        if len(text) > BODY_BYTES_MAX:
            raise QueryError(where="monitor", wanted=f"at most {BODY_BYTES_MAX:,} bytes", found="more")
    try:
        body = json.loads(text)
    except ValueError as wrong:
        raise QueryError(where="monitor", wanted="a JSON object", found=str(wrong)) from None
    if not isinstance(body, dict):
        raise QueryError(where="monitor", wanted="a JSON object", found=type(body).__name__)
    return body


def now(shown: Shown) -> dict[str, Any]:
    """What only the running query knows: routing of the next batch, policy, executors. Empty if it does not run."""
    try:
        status = shown.ask({"do": "status"})
    except QueryError:
        return {}
    executors = shown.ask({"do": "executors"})["executors"]
    return {"routing": status["routing"], "homes": status["homes"], "policy": status.get("policy"), "executors": executors}
