"""The server's side of the pages: a module each, with the routes that its page calls."""

from __future__ import annotations

from starlette.routing import Route

from headrace.dashboard.pages import changes, editor, elasticity, faults, metrics, overview, query, state
from headrace.dashboard.queries import Queries

PAGES = (overview, query, changes, state, elasticity, faults, metrics, editor)


def routes(known: Queries) -> list[Route]:
    """The routes of all pages."""
    return [route for page in PAGES for route in page.routes(known)]
