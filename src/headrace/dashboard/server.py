"""Runs the monitor's server: a socket at once, everything else when somebody connects.

Uvicorn runs in a thread of its own with its own event loop. It is imported when the first connection waits, so a query whose monitor nobody
opens pays for one socket and one thread that sleeps.
"""

from __future__ import annotations

import logging
import secrets
import select
import socket
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.errors import QueryError
from headrace.logs import logger

if TYPE_CHECKING:
    import uvicorn

    from headrace.dashboard.queries import Queries

LOOK_S = 1.0
CLOSE_SECONDS_MAX = 5.0
BACKLOG = 64
_log = logger(__name__)


@dataclass
class Server:
    """A monitor that listens from its construction on."""

    known: Queries
    host: str = "127.0.0.1"
    wanted_port: int = 0
    token: str = ""
    """Generated, if none is given."""
    _server: uvicorn.Server | None = None
    _thread: threading.Thread | None = None

    def __post_init__(self) -> None:
        try:
            family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
            self._socket = socket.create_server((self.host, self.wanted_port), family=family, backlog=BACKLOG)
        except OSError as refused:
            hint = "choose another headrace.uiPort, or 0 for any that is free"
            wanted = f"to listen on {self.host}:{self.wanted_port}"
            raise QueryError(where="monitor", wanted=wanted, found=str(refused), hint=hint) from None
        self.port = int(self._socket.getsockname()[1])
        self._ended = threading.Event()
        self.token = self.token or secrets.token_urlsafe(24)

    @property
    def url(self) -> str:
        """The address to open, with the token."""
        host = {"0.0.0.0": socket.gethostname(), "::": socket.gethostname()}.get(self.host, self.host)
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}/?token={self.token}"

    def start(self) -> None:
        """Begin to serve, in a thread of its own."""
        self._thread = threading.Thread(target=self.run, name="headrace-monitor", daemon=True)
        self._thread.start()

    def run(self) -> None:
        """Serve until `stop`."""
        with self._socket:
            while not self._ended.is_set() and not select.select([self._socket], [], [], LOOK_S)[0]:
                pass
            if not self._ended.is_set():
                self._serve()

    def _serve(self) -> None:
        import uvicorn

        from headrace.dashboard.app import application

        app = application(self.known, self.token, self.host, self.port)
        config = uvicorn.Config(
            app, log_config=None, access_log=False, lifespan="off", ws="none", server_header=False, timeout_graceful_shutdown=5
        )
        for name in ("uvicorn", "uvicorn.error"):
            # Its messages are about single connections. They go where the program's own messages of this level go.
            logging.getLogger(name).setLevel(logging.WARNING)
        ended = self.known.ended

        class Ending(uvicorn.Server):
            """Tells open streams of news to end, before it waits for connections."""

            async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
                ended.set()
                await super().shutdown(sockets)

        self._server = Ending(config)
        if not self._ended.is_set():
            self._server.run(sockets=[self._socket])

    def stop(self) -> None:
        """Stop serving, and wait a little for it."""
        self._ended.set()
        if self._server is not None:
            self._server.should_exit = True
        if self._thread is not None:
            self._thread.join(CLOSE_SECONDS_MAX)
