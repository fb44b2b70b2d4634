"""The application: the page, its scripts and the routes of all pages, behind the checks of `security.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from headrace.dashboard import answers
from headrace.dashboard.pages import routes
from headrace.dashboard.queries import Queries
from headrace.dashboard.security import Guarded
from headrace.errors import HeadraceError, QueryError
from headrace.logs import logger

STATIC = Path(__file__).parent / "static"
"""The page and its scripts."""
_log = logger(__name__)


def application(known: Queries, token: str, host: str, port: int) -> Guarded:
    """The ASGI application of a monitor that listens on this address."""

    def page(request: Request) -> Response:
        return FileResponse(STATIC / "index.html", media_type="text/html")

    static = Mount("/static", StaticFiles(directory=STATIC))
    handlers: dict[Any, Any] = {HeadraceError: _ours, HTTPException: _http, Exception: _other}
    inner = Starlette(routes=[Route("/", page), static, *routes(known)], exception_handlers=handlers)
    return Guarded(inner, token, host, port)


def _ours(request: Request, error: HeadraceError) -> Response:
    return answers.refused(error)


def _http(request: Request, error: HTTPException) -> Response:
    wanted = "an address of the monitor"
    return answers.refused(QueryError(where="monitor", wanted=wanted, found=f"{request.method} {request.url.path}"), error.status_code)


def _other(request: Request, error: Exception) -> Response:
    _log.warning("a request to the monitor failed: %s", request.url.path, exc_info=error)
    return answers.refused(HeadraceError(where="monitor", found=f"{type(error).__name__}: {error}"), 500)
