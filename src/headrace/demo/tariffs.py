"""The tariff service of the demo: it is asked for the price of every call, and takes its time for each answer.

This is the work per row. It stands for what stateful Python code often does: ask a model, a database or another company's service. An
instance asks for one call after the other, so the service's time, not the machine, says how many calls a second an instance can process.
A core is not busy while it waits, so both lanes of the demo have as much as they need also on two cores.

    request   zone (1 byte), seconds (4 bytes)
    answer    cents (4 bytes)
"""

from __future__ import annotations

import os
import socket
import socketserver
import struct
import threading
import time
from dataclasses import dataclass, field

from headrace.logs import logger

_log = logger(__name__)

TAKES_S = 0.004
"""How long the service takes for an answer."""
ZONES = 100
REQUEST, ANSWER = struct.Struct("!BI"), struct.Struct("!I")


def cents_per_minute(zone: int) -> int:
    """The tariff of a zone.

    >>> [cents_per_minute(zone) for zone in (0, 1, 99)]
    [2, 9, 5]
    """
    return 2 + 7 * zone % 23


def zone_of(number: str) -> int:
    """The zone of a called number: its last two digits.

    >>> zone_of("customer-00142")
    42
    """
    return int(number[-2:])


def price(zone: int, seconds: int) -> int:
    """Cents of a call. Begun minutes count as whole ones.

    >>> price(1, 61)
    18
    """
    return cents_per_minute(zone) * -(-seconds // 60)


class _Connection(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        self.request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while True:
            asked = _read(self.request, REQUEST.size)
            if asked is None:
                return
            time.sleep(TAKES_S)
            try:
                self.request.sendall(ANSWER.pack(price(*REQUEST.unpack(asked))))
            except OSError as gone:
                _log.debug("who asked is gone: %s", gone)
                return


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that was killed ends its connection in any way; nobody needs to read about it."""


@dataclass
class TariffService:
    """The service, on a port of the loopback address."""

    _server: _Server = field(default_factory=lambda: _Server(("127.0.0.1", 0), _Connection))

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def start(self) -> None:
        """Begin to answer."""
        serve, every = self._server.serve_forever, {"poll_interval": 0.2}
        threading.Thread(target=serve, kwargs=every, name="headrace-demo-tariffs", daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@dataclass
class Tariffs:
    """A connection to the service."""

    port: int
    _socket: socket.socket | None = None

    def price(self, number: str, seconds: int) -> int:
        """Ask for the price of a call to this number. One call after the other."""
        if self._socket is None:
            self._socket = socket.create_connection(("127.0.0.1", self.port), timeout=30)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.sendall(REQUEST.pack(zone_of(number), seconds))
        answer = _read(self._socket, ANSWER.size)
        if answer is None:
            self._socket = None
            raise ConnectionError("the tariff service has ended")
        return int(ANSWER.unpack(answer)[0])


_connections: dict[tuple[int, int], Tariffs] = {}


def connection(port: int) -> Tariffs:
    """The connection of this process. Spark's Python workers are forked, so each process has one of its own."""
    return _connections.setdefault((os.getpid(), port), Tariffs(port))


def _read(peer: socket.socket, size: int) -> bytes | None:
    """So many bytes; None if the other side has gone."""
    got = b""
    while len(got) < size:
        try:
            more = peer.recv(size - len(got))
        except OSError:
            return None
        if not more:
            return None
        got += more
    return got
