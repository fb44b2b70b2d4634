"""A small HTTP server for the control endpoint. Other users of this machine cannot exhaust it.

One thread reads all connections, so a slow client only uses a descriptor for a few seconds:

- At most ``CONNECTIONS_MAX`` connections are open. A further one is answered with 503 and closed.
- A whole request, headers and body, must arrive within ``READ_SECONDS_MAX`` seconds.
- Headers are checked before the body is read. The token must be right. ``Host`` and ``Origin`` must show that no web page sent the request,
  not even one whose host name resolves to 127.0.0.1 (DNS rebinding).
- At most ``ANSWERS_MAX`` requests are answered at the same time, each in its own thread, because a change waits for the current batch.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import http.client
import io
import json
import logging
import socket
import threading
from collections.abc import Callable
from email.message import Message
from http import HTTPStatus
from typing import Any

from headrace.errors import HeadraceError
from headrace.logs import logger, suppressed

LOOPBACK = "127.0.0.1"
CONNECTIONS_MAX = 32
BACKLOG = 128
"""Connections that the kernel queues until they are accepted. They have no descriptor yet."""
ANSWERS_MAX = 8
READ_SECONDS_MAX = 3.0
ACCEPT_PAUSE_S = 0.1
HEADER_BYTES_MAX = 16_384
REQUEST_BYTES_MAX = 100_000

Answer = dict[str, Any]
_log = logger(__name__)


class _Refused(Exception):
    """A request is refused, with this HTTP status."""

    def __init__(self, status: HTTPStatus, why: str) -> None:
        super().__init__(why)
        self.status, self.why = status, why


class ControlServer:
    """Listens on a port of the loopback address, from its construction until `close`."""

    def __init__(self, token: str, answer: Callable[[Answer], Answer]) -> None:
        self._token, self._answer = token, answer
        self._socket = socket.create_server((LOOPBACK, 0), backlog=BACKLOG)
        self.port = int(self._socket.getsockname()[1])
        self._socket.setblocking(False)
        self._open: set[asyncio.Task[None]] = set()
        self._reading: set[asyncio.Task[Any]] = set()
        """Tasks that wait for the rest of a request."""
        self._answering = 0
        self._loop = asyncio.new_event_loop()
        self._ended = asyncio.Event()
        threading.Thread(target=self._run, name="headrace-control", daemon=True).start()

    def close(self) -> None:
        """Refuse new connections. Requests that have arrived are still answered. Does not wait for them."""
        self._call(self._ended.set)

    def _call(self, function: Callable[..., object], *args: object) -> None:
        """Call a function in the thread of the loop, or nothing if the loop has ended."""
        with suppressed(_log, "the control endpoint has ended", RuntimeError, level=logging.DEBUG):
            self._loop.call_soon_threadsafe(function, *args)

    def _run(self) -> None:
        with contextlib.closing(self._loop):
            self._loop.run_until_complete(self._serve())

    async def _serve(self) -> None:
        with self._socket:
            accepting = asyncio.create_task(self._accept())
            await self._ended.wait()
            accepting.cancel()
            await asyncio.gather(accepting, return_exceptions=True)
        for task in self._reading:
            task.cancel()
        if self._open:
            _, late = await asyncio.wait(self._open, timeout=READ_SECONDS_MAX)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    async def _accept(self) -> None:
        waiting = False
        while True:
            try:
                connection, _ = await self._loop.sock_accept(self._socket)
            except OSError as refused:
                # The process has no descriptor left. Other threads may close some.
                _log.log(logging.DEBUG if waiting else logging.WARNING, "no connection can be accepted for now: %s", refused)
                waiting = True
                await asyncio.sleep(ACCEPT_PAUSE_S)
                continue
            waiting = False
            if len(self._open) >= CONNECTIONS_MAX:
                with connection, suppressed(_log, "a refused client has gone", OSError, level=logging.DEBUG):
                    connection.send(_message(HTTPStatus.SERVICE_UNAVAILABLE, {"error": f"{CONNECTIONS_MAX} connections are open already"}))
                continue
            task = asyncio.create_task(self._connected(connection))
            self._open.add(task)
            task.add_done_callback(self._open.discard)

    async def _connected(self, connection: socket.socket) -> None:
        with connection:
            reader, writer = await asyncio.open_connection(sock=connection, limit=HEADER_BYTES_MAX)
            try:
                status, answer = await self._replied(reader)
                writer.write(_message(status, answer))
                writer.close()
                async with asyncio.timeout(READ_SECONDS_MAX):
                    await writer.wait_closed()
            except (OSError, EOFError, TimeoutError) as gone:
                # The client has gone, or does not read the answer.
                _log.debug("an answer was not read: %s: %s", type(gone).__name__, gone)
            finally:
                writer.transport.abort()

    async def _replied(self, reader: asyncio.StreamReader) -> tuple[HTTPStatus, Answer]:
        reading = asyncio.create_task(self._read(reader))
        self._reading.add(reading)
        reading.add_done_callback(self._reading.discard)
        try:
            request = await asyncio.wait_for(reading, READ_SECONDS_MAX)
            if self._answering >= ANSWERS_MAX:
                raise _Refused(HTTPStatus.SERVICE_UNAVAILABLE, f"{ANSWERS_MAX} requests are being answered")
            return HTTPStatus.OK, await self._answered(request)
        except _Refused as refused:
            return refused.status, {"error": refused.why}
        except TimeoutError:
            return HTTPStatus.REQUEST_TIMEOUT, {"error": f"the request took more than {READ_SECONDS_MAX:g} seconds to arrive"}
        except HeadraceError as error:
            return HTTPStatus.BAD_REQUEST, {"error": str(error)}
        except (ValueError, RecursionError) as error:
            return HTTPStatus.BAD_REQUEST, {"error": f"control endpoint: wanted a JSON object; found {error}"}

    async def _read(self, reader: asyncio.StreamReader) -> Answer:
        try:
            first, _, rest = (await reader.readuntil(b"\r\n\r\n")).partition(b"\r\n")
            headers = http.client.parse_headers(io.BytesIO(rest))
        except (asyncio.LimitOverrunError, http.client.HTTPException):
            raise _Refused(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "the headers are too long") from None
        self._check(headers)
        if not first.startswith(b"POST / HTTP/1."):
            raise _Refused(HTTPStatus.METHOD_NOT_ALLOWED, "wanted POST /")
        length = int(headers.get("Content-Length", "0"))
        if "Transfer-Encoding" in headers or not 0 <= length <= REQUEST_BYTES_MAX:
            raise _Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"wanted Content-Length, at most {REQUEST_BYTES_MAX:,} bytes")
        request = json.loads(await reader.readexactly(length))
        return request if isinstance(request, dict) else {}

    def _check(self, headers: Message) -> None:
        """Refuse requests without the token, and requests that a web page sends."""
        given = headers.get("Authorization", "")
        if not hmac.compare_digest(given.encode(errors="replace"), f"Bearer {self._token}".encode()):
            raise _Refused(HTTPStatus.FORBIDDEN, "the token is not this query's")
        if headers.get("Host", "") not in (f"{LOOPBACK}:{self.port}", f"localhost:{self.port}") or "Origin" in headers:
            raise _Refused(HTTPStatus.FORBIDDEN, f"wanted a request to {LOOPBACK}:{self.port}, not from a web page")

    async def _answered(self, request: Answer) -> Answer:
        """Compute the answer in a daemon thread, so that the end of the program does not wait for it."""
        done: asyncio.Future[Answer] = self._loop.create_future()

        def settle(answer: Answer | None, error: BaseException | None) -> None:
            self._answering -= 1
            if done.cancelled():
                return
            if error is not None:
                done.set_exception(error)
            elif answer is not None:
                done.set_result(answer)

        def work() -> None:
            answer: Answer | None = None
            error: BaseException | None = None
            try:
                answer = self._answer(request)
            except HeadraceError as refused:
                error = refused
            except Exception as failed:
                _log.warning("a control request failed: %s", request.get("do"), exc_info=True)
                error = HeadraceError(where="control endpoint", found=f"{type(failed).__name__}: {failed}")
            self._call(settle, answer, error)

        self._answering += 1
        threading.Thread(target=work, name="headrace-control-answer", daemon=True).start()
        return await done


def _message(status: HTTPStatus, answer: Answer) -> bytes:
    body = json.dumps(answer).encode()
    head = f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    return f"{head}Connection: close\r\n\r\n".encode() + body
