"""Gaps: state that was lost and not computed again (Borealis' gap recovery), each as a small durable note.

    checkpoint/headrace/gaps/000000000043-e3x1a2b3c4d-0.json     a gap that was found when version 43 was made
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.errors import CorruptStateError
from headrace.ids import OperatorId, Version, WriterId
from headrace.state.disk import disk_errors, sync_file
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
    """The gaps of one checkpoint."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def write(self, gap: Gap, writer: WriterId) -> None:
        """Note a gap durably."""
        with disk_errors(self.directory, "to note a gap"):
            self.directory.mkdir(exist_ok=True)
            taken = len(os.listdir(self.directory))
            with open(self.directory / f"{gap.found_by:012d}-e{writer}-{taken}.json", "x") as file:
                json.dump(gap.to_json(), file)
                file.flush()
                os.fsync(file.fileno())
            sync_file(self.directory)

    def read(self) -> list[Gap]:
        """All gaps, oldest first."""
        try:
            with disk_errors(self.directory, "to list the gaps"):
                names = sorted(name for name in os.listdir(self.directory) if name.endswith(".json"))
        except FileNotFoundError:
            return []
        return [self._read(self.directory / name) for name in names]

    def _read(self, path: Path) -> Gap:
        try:
            with disk_errors(path, "to read a gap"):
                return Gap.from_json(json.loads(path.read_bytes()))
        except (ValueError, KeyError, TypeError) as broken:
            raise CorruptStateError(path=str(path), wanted="the note of a gap", found="something else", hint="remove the file") from broken
