"""The control endpoint: change a running query from another terminal.

It is HTTP on the loopback address (``runtime/control_server.py``), on a port that the kernel picks. Port and token are in a file on the
driver's machine that only its owner can read: in the checkpoint's folder, or in one of the user's (``runtime/private.py``). A request
is one JSON object, such as ``{"do": "rescale", "instances": 4}``. The answer has ``routing`` and ``changes``, or ``error`` with the
message that the same call would raise in the program.
"""

from __future__ import annotations

import http.client
import json
import os
import secrets
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.control.governor import Entry
from headrace.errors import QueryError
from headrace.logs import logger, suppressed
from headrace.runtime.autoscale import Autoscaler, decisions_of, required_autoscaler, to_json
from headrace.runtime.checkpoint import Checkpoint
from headrace.runtime.control_server import LOOPBACK, ControlServer
from headrace.runtime.elastic import Changes, LiveRouting
from headrace.runtime.preview import preview

if TYPE_CHECKING:
    # Asking a running query must work without Spark.
    from headrace.runtime.leaving import Departures

FILE = "control.json"
ANSWER_SECONDS_MAX = 600
"""How long to wait for an answer. A change waits for the current batch, which may be long."""
BUSY_SECONDS_MAX = 15
"""How long to send a request again while the endpoint is busy with other connections."""
BUSY_PAUSE_S = 0.1
_log = logger(__name__)


class Endpoint:
    """Answers requests while its query runs."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        elastic: LiveRouting,
        progress: Callable[[], dict[str, Any] | None],
        autoscaler: Autoscaler | None = None,
        departures: Departures | None = None,
        shed_entries: Callable[[], tuple[Entry, ...]] | None = None,
    ) -> None:
        self.shed_entries = shed_entries
        self.replacing: Callable[[dict[str, Any]], dict[str, Any]] | None = None
        """Answers requests to replace the query's plan. Whoever made the query sets it."""
        self.elastic, self.progress, self.autoscaler, self.departures = elastic, progress, autoscaler, departures
        self.query, self._folder = checkpoint.location, checkpoint.private
        self.token = secrets.token_urlsafe(32)
        self._server: ControlServer | None = None
        self._closing = threading.Lock()

    def open(self) -> None:
        """Start to listen, and write port and token to the file."""
        self._server = server = ControlServer(self.token, self.answer)
        self.path = self._folder() / FILE
        temporary = self.path.with_suffix(f".{os.getpid()}.tmp")
        # The file is created with its permissions. If they were set afterwards, others could read it in between.
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "w") as file:
            json.dump({"port": server.port, "token": self.token, "process": os.getpid()}, file)
        temporary.replace(self.path)

    def close(self) -> None:
        """Stop listening, and remove the file. Call it before the checkpoint is released, as the next query writes a file there too."""
        with self._closing:
            server, self._server = self._server, None
            if server is None:
                return
            # If the file cannot be removed, the next query on this checkpoint replaces it.
            with suppressed(_log, f"{self.path} cannot be removed", OSError, query=self.query):
                self.path.unlink(missing_ok=True)
        server.close()

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Do what a request asks for, like the method of that name of the query's handle."""
        operator, protocol = request.get("operator"), request.get("protocol")
        changes: Changes = []
        match request:
            case {"do": "rescale", "instances": int() as instances}:
                changes = self.elastic.rescale(operator, instances, protocol)
            case {"do": "move", "slots": list() as slots, "to": int() as to}:
                changes = self.elastic.move([tuple(each) if isinstance(each, list) else each for each in slots], to, operator, protocol)
            case {"do": "spread", "slots": list() as slots}:
                changes = self.elastic.spread([tuple(each) if isinstance(each, list) else each for each in slots], operator)
            case {"do": "rebalance"}:
                changes = self.elastic.rebalance(operator, protocol)
            case {"do": "auto"}:
                required_autoscaler(self.autoscaler).resume(operator)
            case {"do": "decommission", "executor": str() as executor} if self.departures is not None:
                return {"leaving": self.departures.decommission(executor), "routing": self._routing(), "homes": self.elastic.homes()}
            case {"do": "decisions"}:
                return {"decisions": to_json(decisions_of(self.autoscaler, None if self.shed_entries is None else self.shed_entries()))}
            case {"do": "replace" | "replaced"} if self.replacing is not None:
                return self.replacing(request)
            case {"do": "status"}:
                return {"routing": self._routing(), "homes": self.elastic.homes(), "progress": self.progress(), "policy": self._policy()}
            case {"do": "preview", "change": dict() as change}:
                return {"preview": preview(self.elastic, change)}
            case {"do": "executors"}:
                return {"executors": self._executors(), "copies": self._copies()}
            case _:
                wanted = "rescale with instances, move with slots and to, spread with slots, rebalance, auto, decommission with executor,"
                wanted += " preview with change, executors, decisions, replace with file, or status"
                raise QueryError(where="control endpoint", wanted=wanted, found=json.dumps(request)[:200])
        return {"routing": self._routing(), "homes": self.elastic.homes(), "changes": [each.to_json() for each in changes]}

    def _policy(self) -> dict[str, Any] | None:
        """The policy's settings, the operators that it leaves alone, and since when others cool down; None without a policy."""
        if self.autoscaler is None:
            return None
        governor = self.autoscaler.decisions.governor
        left = {name: governor.settings.cooldown_s - (time.time() - at_s) for name, at_s in governor.changed_at_s.items()}
        cooling = {name: round(seconds, 1) for name, seconds in left.items() if seconds > 0}
        return {**governor.settings.to_json(), "overridden": sorted(governor.overridden), "coolingS": cooling}

    def _executors(self) -> list[dict[str, Any]] | None:
        """The executors, with what is known of each; None on a local master."""
        placement = self.elastic.placement
        if placement is None:
            return None
        heard, silent = placement.guard.questions.heard_s(), placement.guard.questions.silent_s()
        homes = [home for each in self.elastic.homes().values() for home in each]
        states = (("leaving", placement.leaving), ("avoided", placement.avoided), ("released", placement.released))
        return [
            {
                "id": each.id,
                "host": each.host,
                "cores": each.cores,
                "instances": homes.count(each.id),
                "state": next((name for name, ids in states if each.id in ids), "live"),
                "heardS": heard.get(each.id),
                "silentS": silent.get(each.id),
            }
            for each in placement.executors.live()
        ]

    def _copies(self) -> list[dict[str, Any]] | None:
        """Where each instance's state has copies; None if the query keeps none."""
        replicas = None if self.departures is None else self.departures.replicas
        return None if replicas is None else replicas.places()

    def _routing(self) -> dict[str, Any]:
        return {name: routing.to_json() for name, routing in self.elastic.routing.items()}


def ask(checkpoint: Checkpoint, request: dict[str, Any]) -> dict[str, Any]:
    """Send a request to the query that runs on a checkpoint."""
    path: Path = checkpoint.private() / FILE
    where = checkpoint.location
    try:
        about = json.loads(path.read_text())
        port, token, process = int(about["port"]), str(about["token"]), about["process"]
    except FileNotFoundError:
        hint = "start it first; control works only on the driver's machine; headrace dashboard shows what it did"
        raise QueryError(where=where, wanted="a query that runs on this checkpoint", found="none on this machine", hint=hint) from None
    except PermissionError:
        wanted = "the user who started the query, or root"
        raise QueryError(where=where, wanted=wanted, found="a user who may not read the query's token") from None
    except (ValueError, KeyError, TypeError):
        wanted, hint = "port and token of the query that runs on this checkpoint", "restart the query; it writes the file again"
        raise QueryError(where=str(path), wanted=wanted, found="a file with other content", hint=hint) from None
    deadline = time.monotonic() + BUSY_SECONDS_MAX
    while True:
        try:
            status, answer = _sent(port, token, request)
        except (ConnectionResetError, BrokenPipeError, http.client.RemoteDisconnected) as gone:
            # The endpoint may have had too many connections. If its process has died, the next attempt is refused.
            if time.monotonic() > deadline:
                raise _gone(where, process, gone) from None
        except (OSError, http.client.HTTPException, ValueError) as gone:
            raise _gone(where, process, gone) from None
        else:
            if status != HTTPStatus.SERVICE_UNAVAILABLE or time.monotonic() > deadline:
                break
        time.sleep(BUSY_PAUSE_S)
    if "error" in answer:
        raise QueryError(answer["error"])
    return answer


def _sent(port: int, token: str, request: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=ANSWER_SECONDS_MAX)
    try:
        connection.request("POST", "/", json.dumps(request), {"Authorization": f"Bearer {token}"})
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


def _gone(where: str, process: Any, why: Exception) -> QueryError:
    reason = why.strerror or str(why) if isinstance(why, OSError) else str(why)
    found = f"one whose process {process} does not answer ({reason.lower()})"
    hint = "the query was killed, or its driver runs on another machine: control works only on the driver's machine"
    return QueryError(where=where, wanted="a query that runs on this checkpoint", found=found, hint=hint)
