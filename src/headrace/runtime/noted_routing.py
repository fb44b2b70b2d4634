"""Changes of the routing that no version has yet, in a small file of the checkpoint with a checksum."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

from headrace.errors import InvariantError
from headrace.ids import OperatorId
from headrace.logs import logger
from headrace.state.disk import disk_errors
from headrace.state.routing import Routing

_log = logger(__name__)


class NotedRouting:
    """Per operator, who is to own which slots from the next batch on.

    A change that no version has did nothing to the state. So where the file is damaged, the newest version's routing is right without
    it, and its recreations are those by which its runs were written. What must not happen is that half a change is believed.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> dict[OperatorId, Routing]:
        """The changes; none, with a warning, if they cannot be read."""
        try:
            return self._read()
        except ValueError as broken:
            _log.warning("%s: ignored, it is damaged (%s); the query goes on by the routing of its newest version", self.path, broken)
            return {}

    def damage(self) -> str:
        """What is wrong with the file, or nothing."""
        try:
            self._read()
        except ValueError as broken:
            return str(broken)
        return ""

    def write(self, routing: dict[OperatorId, Routing]) -> None:
        body = {name: each.to_json() for name, each in routing.items()}
        temporary = self.path.with_name(f".{self.path.name}.tmp")
        with disk_errors(self.path, "to note a change of the routing"):
            temporary.write_text(json.dumps({"crc": body_crc(body), "routing": body}))
            temporary.replace(self.path)

    def _read(self) -> dict[OperatorId, Routing]:
        try:
            outer = json.loads(self.path.read_bytes())
            body = outer["routing"]
            if outer["crc"] != body_crc(body):
                raise ValueError("another checksum than it carries")
            return {OperatorId(name): Routing.from_json(each) for name, each in body.items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, KeyError, TypeError, AttributeError, InvariantError) as broken:
            raise ValueError(str(broken)) from broken


def body_crc(body: Any) -> int:
    """The checksum of what a file of JSON says, however it is laid out."""
    return zlib.crc32(json.dumps(body, sort_keys=True).encode())
