"""A checkpoint with a history that no query wrote, and requests to a monitor of it."""

from __future__ import annotations

import http.client
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from headrace.dashboard.queries import Queries
from headrace.dashboard.server import Server
from headrace.runtime.history_files import HistoryWriter

for _needed in ("starlette", "uvicorn"):
    pytest.importorskip(_needed, reason="the monitor needs starlette and uvicorn: run make setup")

BEGIN_S = 1_700_000_000.0


def point(at: int, **more: Any) -> dict[str, Any]:
    """A batch of a second with 1,000 rows."""
    body: dict[str, Any] = {"t": BEGIN_S + at, "b": BEGIN_S + at - 0.5, "v": at, "n": 1, "rows": 1000, "out": 10, "late": 0, "ms": 500.0}
    body |= {"lat": 1500.0, "latMin": 500.0, "ev": None, "wait": 0, "share": 1.0, "wm": None, "busy": 0.5, "fetched": 0}
    return body | {"phases": {"job": 400.0}, "spark": {}} | {"ops": {"sum": [2, 1000, 10, 0.3, 0.5, 77, 1234]}} | more


def checkpoint(
    folder: Path,
    points: int = 20,
    name: str = "sums",
    events: tuple[dict[str, Any], ...] = (),
    batches: tuple[dict[str, Any], ...] = (),
) -> Path:
    """A checkpoint with so many batches in its history."""
    (folder / "headrace").mkdir(parents=True)
    (folder / "headrace" / "query.json").write_text("{}")
    writer = HistoryWriter(folder / "headrace" / "history")
    writer.open()
    writer.about({"name": name, "startedS": BEGIN_S, "graph": {"nodes": [], "edges": [], "width": 1, "height": 1}, "operators": {}})
    start = {"t": BEGIN_S, "kind": "start", "runId": "1"}
    writer.add([point(at) for at in range(1, points + 1)], [start, *events, {"t": BEGIN_S + points, "kind": "end", "error": None}], batches)
    writer.close()
    return folder


@dataclass
class Client:
    """Sends requests to a server as a browser or another program would."""

    server: Server
    headers: dict[str, str] = field(default_factory=dict)

    def send(self, method: str, path: str, body: Any = None, **headers: str | None) -> tuple[int, dict[str, str], str]:
        """Status, headers and text of the answer. A header that is None is not sent."""
        connection = http.client.HTTPConnection(self.server.host, self.server.port, timeout=30)
        every = {"Host": f"{self.server.host}:{self.server.port}", **self.headers, **{n.replace("_", "-"): v for n, v in headers.items()}}
        try:
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            text = b"" if body is None else (body if isinstance(body, bytes) else json.dumps(body).encode())
            for name, value in {**every, **({"Content-Length": str(len(text))} if method != "GET" else {})}.items():
                if value is not None:
                    connection.putheader(name, value)
            connection.endheaders(text)
            answer = connection.getresponse()
            return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read().decode()
        finally:
            connection.close()

    def get(self, path: str) -> Any:
        status, _, text = self.send("GET", path)
        assert status == 200, text
        return json.loads(text)

    @property
    def origin(self) -> str:
        return f"http://{self.server.host}:{self.server.port}"

    def bearer(self) -> Client:
        return Client(self.server, {"Authorization": f"Bearer {self.server.token}"})


def served(*checkpoints: Path) -> Server:
    """A monitor of these checkpoints. The caller stops it."""
    server = Server(Queries(map(str, checkpoints)))
    server.start()
    return server
