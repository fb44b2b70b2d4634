"""Buffer state: the tuples that an operator has sent and may have to send again (SEEP's beta). Only tests use it.

Tuples are kept in batches, one per version, which is SEEP's logical clock. One column holds the key hash. A batch is kept in memory, or
as an Arrow file after ``spill``, until the state that reflects it is backed up (``trim``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

from headrace.errors import require
from headrace.ids import NO_VERSION, InstanceId, Version
from headrace.state.blocks import open_arrow, write_arrow
from headrace.state.layout import hashes
from headrace.state.routing import Routing


@dataclass(frozen=True)
class Spilled:
    """A batch of tuples on disk."""

    path: Path
    bytes: int
    crc: int

    def read(self) -> pa.RecordBatch:
        return open_arrow(self.path, self.bytes, self.crc)


@dataclass
class Buffer:
    """The output of one operator to all instances of one downstream operator."""

    batches: dict[Version, pa.RecordBatch | Spilled] = field(default_factory=dict)
    """By version, ascending."""

    def append(self, version: Version, tuples: pa.RecordBatch) -> None:
        """Add the tuples of a version, which must be newer than all others."""
        newest = max(self.batches, default=NO_VERSION)
        require(version > newest, f"versions grow: {version} comes after {newest}")
        self.batches[version] = tuples

    def trim(self, version: Version) -> None:
        """Drop all tuples up to this version, because a backed-up state reflects them."""
        for old in [v for v in self.batches if v <= version]:
            gone = self.batches.pop(old)
            if isinstance(gone, Spilled):
                gone.path.unlink(missing_ok=True)

    def replay(self, after: Version, routing: Routing, instance: InstanceId) -> Iterator[tuple[Version, pa.RecordBatch]]:
        """The tuples of one instance that are newer than version ``after``, by version."""
        for version, kept in self.batches.items():
            if version > after:
                yield version, tuples_of(_rows(kept), routing, instance)

    def partitioned(self, routing: Routing) -> dict[InstanceId, list[tuple[Version, pa.RecordBatch]]]:
        """All tuples, by the instance that the routing sends them to, and by version."""
        return {each: list(self.replay(NO_VERSION, routing, each)) for each in map(InstanceId, range(routing.instances))}

    def spill(self, directory: Path) -> int:
        """Write the tuples that are in memory to disk, and free the memory; returns the bytes written."""
        written = 0
        for version, kept in self.batches.items():
            if isinstance(kept, pa.RecordBatch):
                path = directory / f"buffer-{version:012d}.arrow"
                path.unlink(missing_ok=True)
                length, crc = write_arrow(path, kept, sync=False)
                self.batches[version] = Spilled(path, length, crc)
                written += length
        return written


def tuples_of(tuples: pa.RecordBatch, routing: Routing, instance: InstanceId) -> pa.RecordBatch:
    """The tuples that the routing sends to one instance."""
    mine = routing.owners[routing.units.of_hashes(hashes(tuples))] == instance
    return tuples if bool(mine.all()) else tuples.take(pa.array(np.flatnonzero(mine)))


def _rows(kept: pa.RecordBatch | Spilled) -> pa.RecordBatch:
    return kept.read() if isinstance(kept, Spilled) else kept
