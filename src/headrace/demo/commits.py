"""What a lane has finished, read from the logs that Spark keeps in every query's checkpoint.

Both lanes are measured in the same way, and the demo's clock does not depend on the process that it kills: a batch is finished when
`commits/N` exists, and `offsets/N` says how far it has read.

    commits/N                   written last: its time is the end of the batch
    offsets/N                   the end of the batch in each source
    sources/0/M, M.compact      for files: which ones the source took, by the number M that offsets refer to
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Finished:
    """A batch that is finished."""

    version: int
    at_s: float
    """When it was finished, by the clock."""
    upto: int
    """What was read until its end, from the beginning of the stream on: files, or records of Kafka."""


@dataclass
class CommitLog:
    """Reads the batches of one checkpoint as they are finished."""

    checkpoint: Path
    finished: list[Finished] = field(default_factory=list)
    _logged: int = -1
    _files: int = 0

    def update(self) -> list[Finished]:
        """Read what is new, and return all finished batches."""
        while True:
            version = len(self.finished)
            try:
                # Modified when it was written. A batch that ran again after a crash was finished by its last run.
                at_s = (self.checkpoint / "commits" / str(version)).stat().st_mtime
                end = json.loads((self.checkpoint / "offsets" / str(version)).read_text(encoding="utf-8").splitlines()[2])
                upto = self._upto(end)
            except FileNotFoundError:
                return self.finished
            self.finished.append(Finished(version, at_s, upto))

    def _upto(self, end: dict[str, Any]) -> int:
        if "logOffset" not in end:
            return sum(sum(partitions.values()) for partitions in end.values())
        while self._logged < end["logOffset"]:
            self._files += self._taken(self._logged + 1)
            self._logged += 1
        return self._files

    def _taken(self, number: int) -> int:
        """How many files an entry of the source's log has. Every tenth entry also has those of all entries before."""
        folder = self.checkpoint / "sources" / "0"
        compact = folder / f"{number}.compact"
        lines = (compact if compact.exists() else folder / str(number)).read_text(encoding="utf-8").splitlines()[1:]
        return sum(json.loads(line)["batchId"] == number for line in lines if line)
