"""Places that hold state: an executor's disk, or the durable tier. Backups of an instance's state lie at a place other than its own.

    place/
      runs/       files, its own state and that of others; a run is immutable, so one copy serves all who name it
      backups/    one description for each instance whose state is kept here; it is written last, so a backup is whole or not there
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
    """What ``checkpoint_state`` gives: processing state and the versions that it reflects. Buffers are their owner's to add."""

    owner: str
    ranges: SlotRanges
    runs: tuple[RunRef, ...]
    """The processing state (theta), newest first."""
    reflected: dict[str, Version]
    """Per upstream instance the newest version of its tuples that the state reflects (tau)."""

    def to_json(self) -> dict[str, Any]:
        return {"owner": self.owner, "ranges": self.ranges, "runs": [r.to_json() for r in self.runs], "reflected": self.reflected}

    @classmethod
    def from_json(cls, body: dict[str, Any]) -> StateCheckpoint:
        ranges = tuple((lo, hi) for lo, hi in body["ranges"])
        return cls(body["owner"], ranges, tuple(RunRef.from_json(r) for r in body["runs"]), body["reflected"])


@dataclass(frozen=True)
class Place:
    """A directory that is gone when its machine is."""

    name: str
    directory: Path

    @classmethod
    def made(cls, name: str, directory: Path) -> Place:
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
        return not self.runs.is_dir()

    def fetch(self, refs: Iterable[RunRef], source: Place) -> int:
        """Copy the files that are not here yet; returns the bytes copied. What is here already costs nothing: checkpoints are deltas."""
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
        """Keep an instance's state, in place of what was kept of it before; returns the bytes copied."""
        self._must_live()
        copied = self.fetch(checkpoint.runs, source)
        temporary = self.backups / f".{checkpoint.owner}.tmp"
        temporary.write_text(json.dumps(checkpoint.to_json()))
        os.replace(temporary, self.backups / f"{checkpoint.owner}.json")
        return copied

    def retrieve_backup(self, owner: str) -> StateCheckpoint:
        self._must_live()
        try:
            return StateCheckpoint.from_json(json.loads((self.backups / f"{owner}.json").read_text()))
        except FileNotFoundError:
            hint = "back it up again, then retry"
            raise PlaceLostError(where=self.name, wanted=f"a backup of {owner}", found="none", hint=hint) from None

    def delete_backup(self, owner: str) -> None:
        """Release a backup; files go with ``sweep``, which knows what else needs them."""
        (self.backups / f"{owner}.json").unlink(missing_ok=True)

    def sweep(self, own: Iterable[RunRef] = ()) -> int:
        """Remove files that neither a backup nor a state of this place's own names; returns how many."""
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
