"""One query: its graph with live figures, its series with changes and faults, and the phases of each batch."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headrace.dashboard import answers
from headrace.dashboard.pages.overview import batch, last_batch
from headrace.dashboard.queries import Queries
from headrace.dashboard.series import series
from headrace.dashboard.summary import summary
from headrace.errors import QueryError

EVENTS_MAX = 500


def routes(known: Queries) -> list[Route]:
    def about(request: Request) -> Response:
        shown = known.find(request.path_params["query"])
        body = {"about": shown.about, "summary": summary(shown), "last": last_batch(shown), "beganS": _began(shown.points)}
        return answers.data(body)

    def points(request: Request) -> Response:
        shown = known.find(request.path_params["query"])
        minutes = answers.number(request, "minutes", None, least=1)
        newest = shown.points[-1]["t"] if shown.points else 0.0
        since = newest - 60 * minutes if minutes is not None else 0.0
        events = [each for each in shown.events if each["t"] >= since]
        return answers.data({"series": series(shown.points, since), "events": events[-EVENTS_MAX:]})

    def one(request: Request) -> Response:
        shown, version = known.find(request.path_params["query"]), int(request.path_params["version"])
        found = next((each for each in reversed(shown.progress()) if each["headrace"]["version"] == version), None)
        found = found or next(iter(shown.reader.batches(1, lambda each: each["headrace"]["version"] == version)), None)
        if found is None:
            raise QueryError(where="monitor", wanted=f"batch {version}", found="none: only the last batches are kept whole")
        return answers.data(batch(found))

    base = "/api/queries/{query}"
    return [Route(base, about), Route(f"{base}/series", points), Route(f"{base}/batches/{{version:int}}", one)]


def _began(points: list[dict[str, float]]) -> float | None:
    return points[0]["b"] if points else None
