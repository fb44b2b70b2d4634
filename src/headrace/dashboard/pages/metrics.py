"""Prometheus' metrics of the queries of this program, at ``/metrics``. Like everything about queries they need the token."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headrace.dashboard import answers
from headrace.dashboard.queries import Queries
from headrace.errors import QueryError
from headrace.runtime.progress_log import running


def routes(known: Queries) -> list[Route]:
    def metrics(request: Request) -> Response:
        # Prometheus' package is imported when it is needed, as in the engine.
        from prometheus_client.exposition import choose_encoder

        from headrace.runtime.metrics import Merged

        logs = running()
        if not logs:
            wanted, hint = "a query that runs in the program of this monitor", "scrape the monitor of the program that runs it"
            return answers.refused(QueryError(where="/metrics", wanted=wanted, found="none", hint=hint), 404)
        encode, kind = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(Merged([log.metrics() for log in logs])), media_type=kind)

    return [Route("/metrics", metrics)]
