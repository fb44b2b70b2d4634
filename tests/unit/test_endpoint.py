"""The control endpoint answers and stays small, whatever other users of the machine send. Real sockets, no Spark."""

from __future__ import annotations

import http.client
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.errors import QueryError
from headrace.runtime.checkpoint import Checkpoint
from headrace.runtime.control_server import ANSWERS_MAX, CONNECTIONS_MAX
from headrace.runtime.elastic import LiveRouting
from headrace.runtime.endpoint import Endpoint, ask
from headrace.state.routing import Routing

CLIENT_SECONDS_MAX = 60
SLOW = 300


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[Endpoint]:
    checkpoint = Checkpoint(str(tmp_path / "ckpt"))
    checkpoint.directory.mkdir(parents=True)
    routing = {"aggregate": Routing.even(2)}
    made = Endpoint(checkpoint, LiveRouting(checkpoint, routing, threading.Lock()), lambda: None)
    made.open()
    yield made
    made.close()
    join_threads()


def join_threads() -> None:
    """Wait until endpoints that were closed are gone; closing does not wait."""
    for thread in threading.enumerate():
        if thread.name.startswith("headrace-control"):
            thread.join(CLIENT_SECONDS_MAX)


def about(endpoint: Endpoint) -> tuple[int, str]:
    body = json.loads(endpoint.path.read_text())
    return body["port"], body["token"]


def connected(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=CLIENT_SECONDS_MAX)


def said(connection: socket.socket) -> bytes:
    """Everything that the endpoint sends until it closes the connection."""
    got = b""
    try:
        while part := connection.recv(65536):
            got += part
    except ConnectionResetError:
        pass
    return got


def status(port: int, headers: dict[str, str], body: str = '{"do": "status"}', method: str = "POST") -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=CLIENT_SECONDS_MAX)
    connection.request(method, "/", body, headers)
    code = connection.getresponse().status
    connection.close()
    return code


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def settled(measure: Callable[[], int], wanted: int) -> int:
    """What a measure comes to: threads and descriptors that end are gone a moment later, and later still on a busy machine."""
    until_s = time.monotonic() + 10
    while measure() != wanted and time.monotonic() < until_s:
        time.sleep(0.02)
    return measure()


def test_slow_connections_without_a_token_exhaust_nothing(endpoint: Endpoint) -> None:
    port, _ = about(endpoint)
    checkpoint = Checkpoint(str(endpoint.path.parent.parent))
    before, threads = descriptors(), threading.active_count()
    slow = [connected(port) for _ in range(SLOW)]
    try:
        for each in slow:
            try:
                each.sendall(b"POST / HTTP/1.1\r\nHost: ")
            except (BrokenPipeError, ConnectionResetError):
                continue  # It was refused already.
        # Each of ours is a descriptor too; what is beyond is the endpoint's. One more may be on its way to being refused.
        assert descriptors() - before - SLOW <= CONNECTIONS_MAX + 1
        assert threading.active_count() <= threads + ANSWERS_MAX
        assert ask(checkpoint, {"do": "status"})["routing"].keys() == {"aggregate"}
        # The endpoint closes all of them by itself.
        answers = [said(each) for each in slow]
    finally:
        for each in slow:
            each.close()
    assert {answer.split(b" ", 2)[1] for answer in answers if answer} == {b"408", b"503"}
    assert settled(descriptors, before) == before
    assert settled(threading.active_count, threads) == threads


def test_a_request_that_drips_is_ended_however_steadily_it_drips(endpoint: Endpoint) -> None:
    port, token = about(endpoint)
    with connected(port) as drip:
        host = f"Host: 127.0.0.1:{port}"
        drip.sendall(f"POST / HTTP/1.1\r\n{host}\r\nAuthorization: Bearer {token}\r\nContent-Length: 90000\r\n\r\n".encode())
        drip.settimeout(0.05)
        got = b""
        while True:
            try:
                got += drip.recv(65536)
                break
            except TimeoutError:
                drip.sendall(b" ")  # Less than a minute's worth of them: a limit between two bytes would never be reached.
        assert got.startswith(b"HTTP/1.1 408 ")


def test_the_token_is_looked_at_before_the_body_is_read(endpoint: Endpoint) -> None:
    port, token = about(endpoint)
    with connected(port) as connection:
        # The body never comes; an endpoint that reads it first has no answer.
        connection.sendall(f"POST / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer x\r\nContent-Length: 50\r\n\r\n".encode())
        assert said(connection).startswith(b"HTTP/1.1 403 ")
    assert status(port, {"Authorization": f"Bearer {token}"}) == 200


def test_a_web_page_cannot_use_it_even_with_the_token(endpoint: Endpoint) -> None:
    port, token = about(endpoint)
    right = {"Authorization": f"Bearer {token}"}
    assert status(port, {**right, "Host": f"localhost:{port}"}) == 200
    assert status(port, {**right, "Host": f"evil.example:{port}"}) == 403
    assert status(port, {**right, "Origin": "http://evil.example"}) == 403
    assert status(port, right, method="GET") == 405
    assert status(port, {**right, "Content-Length": "999999999"}, "") == 413
    assert status(port, {**right, "X": "y" * 100_000}) == 431
    assert status(port, right, "[" * 90_000) == 400
    assert status(port, right) == 200


def test_an_endpoint_that_was_closed_frees_its_port_and_its_descriptors(tmp_path: Path) -> None:
    checkpoint = Checkpoint(str(tmp_path / "ckpt"))
    checkpoint.directory.mkdir(parents=True)
    before = descriptors()
    for _ in range(5):
        made = Endpoint(checkpoint, LiveRouting(checkpoint, {"aggregate": Routing.even(2)}, threading.Lock()), lambda: None)
        made.open()
        port, _ = about(made)
        waiting = connected(port)
        made.close()
        made.close()
        said(waiting)
        waiting.close()
        with pytest.raises(QueryError, match="found none"):
            ask(checkpoint, {"do": "status"})
        join_threads()
    assert settled(descriptors, before) == before
