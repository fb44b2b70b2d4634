"""Changes of the routing that no version contains yet. They are kept in a small file of the checkpoint, with a checksum."""

from __future__ import annotations

import json
import zlib
from typing import Any

from headrace.errors import InvariantError, StorageError
from headrace.ids import OperatorId
from headrace.logs import logger
from headrace.state.durable import DurableStore
from headrace.state.routing import Routing

_log = logger(__name__)


class NotedRouting:
    """By operator: the routing from the next batch on.

    A change that no version contains has not affected the state. So if the file is damaged, the routing of the newest version is right. The
    checksum makes sure that half a change is never used.
    """

    def __init__(self, store: DurableStore, key: str) -> None:
        self.store, self.key = store, key

    def read(self) -> dict[OperatorId, Routing]:
        """The changed routings by operator. If the file cannot be read: none, and a warning in the log."""
        try:
            return self._read()
        except ValueError as broken:
            text = "%s: ignored, it is damaged (%s); the query continues with the routing of its newest version"
            _log.warning(text, self.store.where(self.key), broken)
            return {}

    def damage(self) -> str:
        """What is wrong with the file; an empty text if nothing is."""
        try:
            self._read()
        except ValueError as broken:
            return str(broken)
        return ""

    def write(self, routing: dict[OperatorId, Routing]) -> None:
        body = {name: each.to_json() for name, each in routing.items()}
        self.store.put(self.key, json.dumps({"crc": body_crc(body), "routing": body}).encode(), sync=False)

    def _read(self) -> dict[OperatorId, Routing]:
        try:
            outer = json.loads(self.store.get(self.key))
            body = outer["routing"]
            if outer["crc"] != body_crc(body):
                raise ValueError("another checksum than it carries")
            return {OperatorId(name): Routing.from_json(each) for name, each in body.items()}
        except FileNotFoundError:
            return {}
        except (OSError, StorageError, ValueError, KeyError, TypeError, AttributeError, InvariantError) as broken:
            raise ValueError(str(broken)) from broken


def body_crc(body: Any) -> int:
    """A checksum of JSON data that does not depend on spaces or the order of keys."""
    return zlib.crc32(json.dumps(body, sort_keys=True).encode())
