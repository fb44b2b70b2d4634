"""Gaps: state that was lost and not computed again (Borealis' gap recovery), each as a small durable note.

checkpoint/headrace/gaps/000000000043-e3x1a2b3c4d-0.json     a gap that was found when version 43 was made
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from headrace.errors import CorruptStateError
from headrace.ids import OperatorId, Version, WriterId
from headrace.state.durable import DurableStore
from headrace.state.slots import SlotRanges


@dataclass(frozen=True)
class Gap:
    """What some slots of an operator have forgotten: the changes of versions ``first`` to ``last``."""

    operator: OperatorId
    slots: SlotRanges
    first: Version
    last: Version
    rows: int | None
    """The rows that these versions brought to the slots; None if that is not known."""
    found_by: Version
    """The version that goes on without them."""

    def to_json(self) -> dict[str, Any]:
        return {
            "operator": self.operator,
            "slots": [list(each) for each in self.slots],
            "firstVersion": self.first,
            "lastVersion": self.last,
            "rows": self.rows,
            "foundBy": self.found_by,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Gap:
        return cls(
            OperatorId(data["operator"]),
            tuple((lo, hi) for lo, hi in data["slots"]),
            Version(data["firstVersion"]),
            Version(data["lastVersion"]),
            data["rows"],
            Version(data["foundBy"]),
        )


class GapLog:
    """The gaps of one checkpoint, in the durable store."""

    PREFIX = "gaps/"

    def __init__(self, store: DurableStore) -> None:
        self.store = store

    def write(self, gap: Gap, writer: WriterId) -> None:
        """Note a gap durably."""
        number = sum(key.startswith(f"{self.PREFIX}{gap.found_by:012d}-e{writer}") for key in self.store.keys(self.PREFIX))
        self.store.put_if_absent(f"{self.PREFIX}{gap.found_by:012d}-e{writer}-{number}.json", json.dumps(gap.to_json()).encode())

    def read(self) -> list[Gap]:
        """All gaps, oldest first."""
        return [self._read(key) for key in sorted(self.store.keys(self.PREFIX)) if key.endswith(".json")]

    def _read(self, key: str) -> Gap:
        try:
            return Gap.from_json(json.loads(self.store.get(key)))
        except (ValueError, KeyError, TypeError) as broken:
            path = self.store.where(key)
            raise CorruptStateError(path=path, wanted="the note of a gap", found="something else", hint="remove the file") from broken
