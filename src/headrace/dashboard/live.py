"""The monitor of this program: one server for all of its queries, started with the first one that wants it."""

from __future__ import annotations

import os
import sys
import threading

from headrace.config import Config
from headrace.dashboard.queries import Queries
from headrace.dashboard.server import Server
from headrace.errors import QueryError
from headrace.logs import logger
from headrace.runtime.checkpoint import Checkpoint

_log = logger(__name__)
_lock = threading.Lock()
_server: Server | None = None
_process = 0


def shown(checkpoint: Checkpoint, config: Config) -> str | None:
    """Show a query that has started, and return the monitor's URL; None if it has none.

    The first query of the program chooses address and port, and has the URL printed to stderr. If the port is taken, the query goes on
    without a monitor, and says so.
    """
    global _server, _process
    if not config.ui:
        return None
    with _lock:
        if _server is None or _process != os.getpid():
            try:
                _server, _process = Server(Queries(), config.uiHost, config.uiPort), os.getpid()
            except QueryError as refused:
                _log.warning("the query has no monitor: %s", refused, query=checkpoint.location)
                print(f"headrace: no monitor: {refused}", file=sys.stderr)
                return None
            _server.start()
            print(f"headrace: the monitor is at {_server.url}", file=sys.stderr)
        query = _server.known.add(checkpoint)
        return f"{_server.url}#/{query.id}"
