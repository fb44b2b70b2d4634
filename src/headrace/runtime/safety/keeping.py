"""Keeps the versions of a query: commits them, and knows which of them are durable.

With ``headrace.checkpointSeconds=0`` a version is durable when it is committed: its manifest is written at once. Otherwise the commit
writes a record to the journal, the manifest stays in memory, and the checkpointer makes a version durable from time to time.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path

from headrace.ids import NO_VERSION, OperatorId, StoreId, Version
from headrace.runtime.checkpoint import Checkpoint
from headrace.runtime.reports import InstanceReport
from headrace.runtime.safety.copies import Copies
from headrace.state.journal import Record, record_of
from headrace.state.manifest import Manifest


class Pin(StrEnum):
    """Why the runs of a version are kept on the executors."""

    CHECKPOINT = "checkpoint"
    """They are being shipped to the durable store."""
    COPYING = "copying"
    """They are being copied to peers."""
    COPIED = "copied"
    """Peers have copies of all of them. After a loss, later versions are computed again from here."""


def files_of(manifest: Manifest) -> frozenset[str]:
    """The runs of a version."""
    return frozenset(ref.file for state in manifest.stores.values() for ref in state.runs)


@dataclass
class Keeping:
    """Where the state of a query is kept, and up to which version it is durable."""

    checkpoint: Checkpoint
    at_home: bool
    """True if new runs stay on the executors until a checkpoint ships them."""
    working: str | None
    """The folder of working copies; see ``working_folder``. None if tasks read and write the checkpoint's own runs."""
    driver_reads: bool
    """True if the driver can read all state, so that it may do small flushes itself."""
    sync: bool
    """True if what is durable is forced to disk."""
    copies: Copies = field(default_factory=Copies)
    durable: Version = NO_VERSION
    """The newest durable version."""
    settled: Manifest | None = None
    """The newest version that Spark has committed in its own log. A restart never runs its batch again."""
    _durable_crc: int | None = None
    _pins: dict[Pin, Manifest] = field(default_factory=dict)
    """Versions whose runs stay on the executors although later versions no longer need them."""
    _staged: deque[Manifest] = field(default_factory=deque)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self) -> None:
        """Learn which version is durable, when the query starts."""
        versions = self.checkpoint.manifests.versions()
        if versions:
            self.note_durable(self.checkpoint.manifests.read(versions[-1]))

    def note_durable(self, manifest: Manifest) -> None:
        """Note that a version is durable now."""
        self.durable, self._durable_crc = manifest.version, manifest.crc
        self.copies.shipped(manifest)

    def as_durable(self, manifest: Manifest) -> Manifest:
        """The manifest by which a version becomes durable. It follows the durable version before, and has no staged output."""
        return replace(manifest, staged=(), checkpoint_version=self.durable, previous_crc=self._durable_crc)

    def commit(self, manifest: Manifest, record: Record) -> Manifest:
        """Make a version exist: by its manifest, or by its record in the journal."""
        if not self.at_home:
            committed = self.checkpoint.commit(replace(manifest, checkpoint_version=manifest.version), sync=self.sync)
            self.checkpoint.current = None
            self.note_durable(committed)
            return committed
        written = self.checkpoint.commit_record(record, sync=self.sync)
        return self.hold(replace(manifest, crc=written.facts.crc))

    def hold(self, manifest: Manifest) -> Manifest:
        """Take a version as the newest. Its state is on executors."""
        with self._lock:
            self.checkpoint.current = manifest
        return manifest

    def record(self, manifest: Manifest, now_ms: int, rows: Mapping[OperatorId, int]) -> Record:
        """The record of a version in the journal."""
        return record_of(manifest, now_ms, rows)

    def learn(self, reports: Mapping[OperatorId, list[InstanceReport]], manifest: Manifest) -> None:
        """Note where the runs of a new version are, and forget those that nobody needs."""
        self.copies.learn(reports, manifest.version)
        self.copies.keep_only(files_of(manifest) | self.pinned_files())

    def settle(self, version: Version) -> None:
        """Note that Spark has committed a version in its own log: it begins a batch only after that."""
        current = self.checkpoint.current
        if current is not None and current.version == version:
            self.settled = current

    def capture(self) -> Manifest | None:
        """The newest version that may become durable. Its runs stay on the executors until ``release``. None if it is durable already."""
        with self._lock:
            current = self.checkpoint.current
            is_committed = current is not None and (self.checkpoint.location / "commits" / str(current.version)).exists()
            chosen = current if is_committed else self.settled
            if chosen is None or chosen.version <= self.durable:
                return None
            self._pins[Pin.CHECKPOINT] = chosen
            return chosen

    def release(self) -> None:
        """End a capture."""
        self.unpin(Pin.CHECKPOINT)

    def pin(self, name: Pin, manifest: Manifest) -> None:
        """Keep the runs of a version on the executors, instead of those of the version that had this pin."""
        with self._lock:
            self._pins[name] = manifest

    def unpin(self, name: Pin) -> None:
        with self._lock:
            self._pins.pop(name, None)

    def copied(self, live: Collection[str]) -> Manifest | None:
        """The newest version after the durable one that peers have copies of, if these living executors have all of its runs."""
        with self._lock:
            found = self._pins.get(Pin.COPIED)
        if found is None or found.version <= self.durable:
            return None
        there = all(self.copies.is_durable(file) or self.copies.holders_of(file) & set(live) for file in files_of(found))
        return found if there else None

    def pinned(self, operator: OperatorId, stores: Mapping[str, object]) -> frozenset[str]:
        """The runs of an operator that are kept for a checkpoint or for copies."""
        with self._lock:
            held = list(self._pins.values())
        found = (each.stores.get(StoreId(operator, name)) for each in held for name in stores)
        return frozenset(ref.file for state in found if state is not None for ref in state.runs)

    def pinned_files(self) -> frozenset[str]:
        """All runs that are kept for a checkpoint or for copies."""
        with self._lock:
            held = list(self._pins.values())
        return frozenset[str]().union(*(files_of(each) for each in held))

    def drop_staged(self, manifest: Manifest, keep: int = 2) -> None:
        """Remove the staged output of delivered versions, except of the last ones. A restart computes them again if need be."""
        self._staged.append(manifest)
        while len(self._staged) > keep:
            remove_staged(self.checkpoint, self._staged.popleft())


def remove_staged(checkpoint: Checkpoint, manifest: Manifest) -> None:
    """Remove a version's staged output."""
    for staged in manifest.staged:
        if staged.folder == "staged":
            (Path(checkpoint.directory) / staged.folder / staged.file).unlink(missing_ok=True)
