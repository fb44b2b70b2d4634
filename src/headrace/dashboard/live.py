"""The monitor of this program: one server for all of its queries, started with the first one that wants it."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from typing import TypeVar, cast

from headrace.config import Config
from headrace.dashboard.editor.workbench import Workbench
from headrace.dashboard.queries import Queries
from headrace.dashboard.security import token_of
from headrace.dashboard.server import Server
from headrace.errors import QueryError
from headrace.logs import logger
from headrace.runtime.checkpoint import Checkpoint

_log = logger(__name__)
_lock = threading.Lock()
_server: Server | None = None
_process = 0
T = TypeVar("T", bound=Workbench)


def shown(checkpoint: Checkpoint, config: Config) -> str | None:
    """Show a query that has started, and return the monitor's URL; None if it has none.

    The first query of the program chooses address and port, and has the URL printed to stderr. If the port is taken, the query goes on
    without a monitor, and says so.
    """
    if not config.ui:
        return None
    with _lock:
        try:
            server = _running(config)
        except QueryError as refused:
            _log.warning("the query has no monitor: %s", refused, query=checkpoint.location)
            print(f"headrace: no monitor: {refused}", file=sys.stderr)
            return None
        query = server.known.add(checkpoint)
        return f"{server.url}#/{query.id}"


def with_editor(config: Config, make: Callable[[], T], fits: Callable[[T], bool]) -> tuple[T, str]:
    """Give the monitor an editor, unless it has one that fits and whose session lives. Returns the editor's workbench and its URL.

    Starts the monitor if there is none yet. Raises an error if its port is taken.
    """
    with _lock:
        server = _running(config)
        found = cast(T | None, server.known.workbench)
        if found is None or found.is_over or not fits(found):
            found = server.known.workbench = make()
        return found, f"{server.url}#/editor"


def _running(config: Config) -> Server:
    """The program's server, which is started if there is none."""
    global _server, _process
    if _server is None or _process != os.getpid():
        _server, _process = Server(Queries(), config.uiHost, config.uiPort, token_of(config.uiTokenFile)), os.getpid()
        _server.start()
        print(f"headrace: the monitor is at {_server.url}", file=sys.stderr)
    return _server
