"""The control endpoint: change a running query from another terminal.

HTTP on loopback, on a port that the kernel picks. Port and token lie in a file of the checkpoint that only its owner can read; whoever
can read it could change the checkpoint itself. One request is one JSON object, ``{"do": "rescale", "instances": 4}``; the answer has
``routing``, or ``error`` with the message that the same call would raise in the program.
"""

from __future__ import annotations

import hmac
import http.client
import json
import os
import secrets
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from headrace.errors import HeadraceError, QueryError
from headrace.runtime.autoscale import Autoscaler, of_query, to_json
from headrace.runtime.checkpoint import Checkpoint
from headrace.runtime.elastic import LiveRouting

FILE = "control.json"
LOOPBACK = "127.0.0.1"
REQUEST_BYTES_MAX = 100_000
ANSWER_SECONDS_MAX = 600
"""A change waits for the batch that runs, and a batch may be long."""


class Endpoint:
    """Listens while its query runs."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        elastic: LiveRouting,
        progress: Callable[[], dict[str, Any] | None],
        autoscaler: Autoscaler | None = None,
    ) -> None:
        self.elastic, self.progress, self.autoscaler = elastic, progress, autoscaler
        self.path = checkpoint.directory / FILE
        self.token = secrets.token_urlsafe(32)
        self._server: ThreadingHTTPServer | None = None
        self._closing = threading.Lock()

    def open(self) -> None:
        self._server = server = ThreadingHTTPServer((LOOPBACK, 0), _handler(self))
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, name="headrace-control", daemon=True).start()
        temporary = self.path.with_suffix(f".{os.getpid()}.tmp")
        # Made with its rights, not given them afterwards: between the two anybody could read it.
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            json.dump({"port": server.server_port, "token": self.token, "process": os.getpid()}, file)
        temporary.replace(self.path)

    def close(self) -> None:
        """Any thread may call it, any number of times, as long as the checkpoint is this query's: the next one has a file there too."""
        with self._closing:
            server, self._server = self._server, None
            if server is None:
                return
            self.path.unlink(missing_ok=True)
        # The server looks up from its work now and then only, and nobody has to wait for that.
        threading.Thread(target=_end, args=(server,), name="headrace-control-end", daemon=True).start()

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Do what is asked, as the method of the query's handle would."""
        operator, protocol = request.get("operator"), request.get("protocol")
        match request:
            case {"do": "rescale", "instances": int() as instances}:
                self.elastic.rescale(operator, instances, protocol)
            case {"do": "move", "slots": list() as slots, "to": int() as to}:
                self.elastic.move([tuple(each) if isinstance(each, list) else each for each in slots], to, operator, protocol)
            case {"do": "spread", "slots": list() as slots}:
                self.elastic.spread([tuple(each) if isinstance(each, list) else each for each in slots], operator)
            case {"do": "rebalance"}:
                self.elastic.rebalance(operator, protocol)
            case {"do": "auto"}:
                of_query(self.autoscaler).resume(operator)
            case {"do": "decisions"}:
                return {"decisions": to_json(of_query(self.autoscaler).log)}
            case {"do": "status"}:
                return {"routing": self._routing(), "homes": self.elastic.homes(), "progress": self.progress()}
            case _:
                wanted = "rescale with instances, move with slots and to, spread with slots, rebalance, auto, decisions, or status"
                raise QueryError(where="control endpoint", wanted=wanted, found=json.dumps(request)[:200])
        return {"routing": self._routing()}

    def _routing(self) -> dict[str, Any]:
        return {name: routing.to_json() for name, routing in self.elastic.routing.items()}


def _end(server: ThreadingHTTPServer) -> None:
    server.shutdown()
    server.server_close()


def _handler(endpoint: Endpoint) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = 30

        def do_POST(self) -> None:
            given = self.headers.get("Authorization", "")
            if not hmac.compare_digest(given.encode(), f"Bearer {endpoint.token}".encode()):
                self._send(403, {"error": "the token is not this query's"})
                return
            try:
                length = int(self.headers.get("Content-Length", "0"))
                if not 0 <= length <= REQUEST_BYTES_MAX:
                    raise ValueError(f"a request of {length} bytes")
                request = json.loads(self.rfile.read(length))
                answer = endpoint.answer(request if isinstance(request, dict) else {})
            except HeadraceError as error:
                self._send(400, {"error": str(error)})
            except ValueError as error:
                self._send(400, {"error": f"control endpoint: wanted a JSON object; found {error}"})
            else:
                self._send(200, answer)

        def _send(self, code: int, answer: dict[str, Any]) -> None:
            body = json.dumps(answer).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    return Handler


def ask(checkpoint: Checkpoint, request: dict[str, Any]) -> dict[str, Any]:
    """Send a request to the query that runs on a checkpoint."""
    path: Path = checkpoint.directory / FILE
    where = str(checkpoint.location)
    try:
        about = json.loads(path.read_text())
        port, token, process = int(about["port"]), str(about["token"]), about["process"]
    except FileNotFoundError:
        raise QueryError(where=where, wanted="a query that runs on this checkpoint", found="none", hint="start it first") from None
    except PermissionError:
        wanted = "to be who started the query, or root"
        raise QueryError(where=where, wanted=wanted, found="that its token is not readable for you") from None
    except (ValueError, KeyError, TypeError):
        wanted, hint = "port and token of the query that runs on this checkpoint", "restart the query; it writes the file anew"
        raise QueryError(where=str(path), wanted=wanted, found="a file that says something else", hint=hint) from None
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=ANSWER_SECONDS_MAX)
    try:
        connection.request("POST", "/", json.dumps(request), {"Authorization": f"Bearer {token}"})
        response = connection.getresponse()
        answer: dict[str, Any] = json.loads(response.read())
    except (OSError, http.client.HTTPException, ValueError) as gone:
        found = f"that its process {process} does not answer ({gone})"
        hint = "it has ended without a farewell, or runs on another machine: control works on the driver's machine"
        raise QueryError(where=where, wanted="a query that runs on this checkpoint", found=found, hint=hint) from None
    finally:
        connection.close()
    if "error" in answer:
        raise QueryError(answer["error"])
    return answer
