"""A proxy on the loopback address between a store's client and its server. It adds time to requests, and faults that tests ask for."""

from __future__ import annotations

import asyncio
import contextlib
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

_KEY = re.compile(rb"<Key>([^<]*)</Key>")
_CONTENTS = re.compile(rb"<Contents>.*?</Contents>", re.DOTALL)
BUSY = b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


@dataclass(frozen=True)
class Request:
    """One request as it goes through the proxy."""

    method: str
    target: str
    number: int
    """How many requests came before it."""

    @property
    def is_list(self) -> bool:
        return self.method == "GET" and "list-type=" in self.target


@dataclass(frozen=True)
class Fault:
    """What happens to a request beside the usual delay."""

    delay_s: float = 0.0
    busy: bool = False
    """It is answered with status 503, and does not reach the server."""
    silent: bool = False
    """It reaches the server, which does what it says, but the answer is lost: the connection is closed."""
    hangs: bool = False
    """It never reaches the server, and there is no answer until the client gives up."""
    torn: bool = False
    """Half of it reaches the server, then the connection breaks."""


Rule = Callable[[Request], Fault | None]


@dataclass
class Proxy:
    """Forwards requests to a port of this machine. Its fields may be changed while it runs."""

    to: int
    delay_s: float = 0.0
    """Added to every request."""
    rule: Rule = lambda request: None
    lag_s: float = 0.0
    """Lists lack objects that were written within so many seconds."""
    port: int = 0
    requests: list[Request] = field(default_factory=list)
    _written: dict[str, float] = field(default_factory=dict)
    _loop: asyncio.AbstractEventLoop | None = None

    async def serve(self, ready: threading.Event) -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._client, "127.0.0.1", 0, limit=1 << 20)
        self.port = server.sockets[0].getsockname()[1]
        ready.set()
        async with server:
            await self._end.wait()

    def close(self) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._end.set)

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await _head(reader):
                if not await self._request(head, reader, writer):
                    break
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def _request(self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Forward one request. False if the connection ends with it."""
        method, target = (each.decode() for each in head.split(b" ", 2)[:2])
        request = Request(method, target, len(self.requests))
        self.requests.append(request)
        if re.search(rb"(?i)^expect: *100-continue", head, re.MULTILINE):
            head = re.sub(rb"(?im)^expect:[^\r]*\r\n", b"", head)
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = await _body(head, reader)
        fault = self.rule(request) or Fault()
        await asyncio.sleep(self.delay_s + fault.delay_s)
        if fault.hangs:
            await reader.read()
            return False
        if fault.busy:
            writer.write(BUSY)
            return False
        own_reader, own_writer = await asyncio.open_connection("127.0.0.1", self.to, limit=1 << 20)
        try:
            own_writer.write(_closing(head))
            if fault.torn:
                own_writer.write(body[: len(body) // 2])
                await own_writer.drain()
                return False
            own_writer.write(body)
            await own_writer.drain()
            answer = await own_reader.read()
        finally:
            own_writer.close()
        if method == "PUT":
            self._written[target.partition("?")[0]] = time.monotonic()
        if fault.silent:
            return False
        writer.write(self._lagging(answer, target) if request.is_list and self.lag_s else answer)
        await writer.drain()
        return False

    def _lagging(self, answer: bytes, target: str) -> bytes:
        """An answer to a list without what was written lately."""
        head, _, body = answer.partition(b"\r\n\r\n")
        bucket, now = target.partition("?")[0].strip("/"), time.monotonic()

        def kept(match: re.Match[bytes]) -> bytes:
            key = _KEY.search(match[0])
            written = self._written.get(f"/{bucket}/{key[1].decode()}", 0.0) if key else 0.0
            return b"" if now - written < self.lag_s else match[0]

        body = _CONTENTS.sub(kept, body)
        head = re.sub(rb"(?im)^content-length:[^\r]*", b"Content-Length: %d" % len(body), head)
        return head + b"\r\n\r\n" + body


async def _head(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return b""


async def _body(head: bytes, reader: asyncio.StreamReader) -> bytes:
    """The body of a request, as it was sent."""
    found = re.search(rb"(?im)^content-length: *(\d+)", head)
    if found is not None:
        return await reader.readexactly(int(found[1]))
    if not re.search(rb"(?im)^transfer-encoding: *chunked", head):
        return b""
    body = b""
    while True:
        size = await reader.readuntil(b"\r\n")
        length = int(size.split(b";")[0], 16)
        body += size + await reader.readexactly(length + 2)
        if not length:
            return body


def _closing(head: bytes) -> bytes:
    """The head of a request after which the server closes the connection, so that its answer ends there."""
    head = re.sub(rb"(?im)^connection:[^\r]*\r\n", b"", head)
    return head[:-2] + b"Connection: close\r\n\r\n"


@contextlib.contextmanager
def proxied(port: int, **settings: Any) -> Iterator[Proxy]:
    """A proxy to a port for as long as the block."""
    proxy, ready = Proxy(port, **settings), threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(proxy.serve(ready)), name="store-proxy", daemon=True)
    thread.start()
    ready.wait()
    try:
        yield proxy
    finally:
        proxy.close()
        thread.join()
