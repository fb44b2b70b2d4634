"""Places: directories that stand for the disks of machines in SEEP's primitives. Only tests use them.

An instance's state is at its own place, and its backup is at another one.

    place/
      runs/       state files of the place's own instance and of backups; runs are immutable, so backups can share a file
      backups/    one JSON file per instance that is backed up here; it is written last, so a backup is complete or absent
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.errors import CorruptStateError, PlaceLostError
from headrace.ids import Version
from headrace.state.run import RunRef
from headrace.state.slots import SlotRanges


@dataclass(frozen=True)
class StateCheckpoint:
    """A checkpoint of an instance: its processing state, and the versions that the state reflects. Buffers are not included."""

    owner: str
    ranges: SlotRanges
    runs: tuple[RunRef, ...]
    """The processing state (theta), newest first."""
    reflected: dict[str, Version]
    """For each upstream instance, the newest version of its tuples that the state reflects (tau)."""

    def to_json(self) -> dict[str, Any]:
        return {"owner": self.owner, "ranges": self.ranges, "runs": [r.to_json() for r in self.runs], "reflected": self.reflected}

    @classmethod
    def from_json(cls, body: dict[str, Any]) -> StateCheckpoint:
        ranges = tuple((lo, hi) for lo, hi in body["ranges"])
        return cls(body["owner"], ranges, tuple(RunRef.from_json(r) for r in body["runs"]), body["reflected"])


@dataclass(frozen=True)
class Place:
    """A directory that stands for a machine's disk. A test removes the directory to simulate the loss of the machine."""

    name: str
    directory: Path

    @classmethod
    def made(cls, name: str, directory: Path) -> Place:
        """A new place, with its folders."""
        place = cls(name, directory)
        place.runs.mkdir(parents=True, exist_ok=True)
        place.backups.mkdir(exist_ok=True)
        return place

    @property
    def runs(self) -> Path:
        return self.directory / "runs"

    @property
    def backups(self) -> Path:
        return self.directory / "backups"

    @property
    def lost(self) -> bool:
        """True if the directory is gone."""
        return not self.runs.is_dir()

    def fetch(self, refs: Iterable[RunRef], source: Place) -> int:
        """Copy the files that are not here yet from another place; returns the bytes copied. So a backup copies only what is new."""
        copied = 0
        for file, length in {ref.file: ref.bytes for ref in refs}.items():
            if (self.runs / file).exists():
                continue
            self._must_live()
            temporary = self.runs / f".{file}.tmp"
            try:
                shutil.copyfile(source.runs / file, temporary)
            except FileNotFoundError:
                source._must_live()
                raise CorruptStateError(
                    where=source.name, wanted=f"the state file {file}", found="no such file", path=str(source.runs / file)
                ) from None
            os.replace(temporary, self.runs / file)
            copied += length
        return copied

    def store_backup(self, checkpoint: StateCheckpoint, source: Place) -> int:
        """Store a backup of an instance, and replace its earlier one; returns the bytes copied."""
        self._must_live()
        copied = self.fetch(checkpoint.runs, source)
        temporary = self.backups / f".{checkpoint.owner}.tmp"
        temporary.write_text(json.dumps(checkpoint.to_json()))
        os.replace(temporary, self.backups / f"{checkpoint.owner}.json")
        return copied

    def retrieve_backup(self, owner: str) -> StateCheckpoint:
        """The backup of an instance; raise an error if there is none."""
        self._must_live()
        try:
            return StateCheckpoint.from_json(json.loads((self.backups / f"{owner}.json").read_text()))
        except FileNotFoundError:
            hint = "back it up again, then retry"
            raise PlaceLostError(where=self.name, wanted=f"a backup of {owner}", found="none", hint=hint) from None

    def delete_backup(self, owner: str) -> None:
        """Delete a backup. Its files stay until ``sweep``, because other backups may need them."""
        (self.backups / f"{owner}.json").unlink(missing_ok=True)

    def sweep(self, own: Iterable[RunRef] = ()) -> int:
        """Remove files that no backup needs and that are not in ``own``, the state of the place's own instance; returns how many."""
        kept = {ref.file for ref in own}
        for path in self.backups.glob("*.json"):
            kept |= {ref.file for ref in StateCheckpoint.from_json(json.loads(path.read_text())).runs}
        stale = [path for path in self.runs.glob("*.arrow") if path.name not in kept]
        for path in stale:
            path.unlink(missing_ok=True)
        return len(stale)

    def _must_live(self) -> None:
        if self.lost:
            raise PlaceLostError(where=self.name, wanted="a place that is there", found="that it is gone")
