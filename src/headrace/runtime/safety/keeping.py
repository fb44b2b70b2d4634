"""Keeps the versions of a query: commits them, and knows which of them are durable.

With ``headrace.checkpointSeconds=0`` a version is durable when it is committed: its manifest is written at once. Otherwise the commit
writes a record to the journal, the manifest stays in memory, and the checkpointer makes a version durable from time to time.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from headrace.ids import FIRST_VERSION, NO_VERSION, OperatorId, StoreId, Version
from headrace.runtime.checkpoint import Checkpoint
from headrace.runtime.reports import InstanceReport
from headrace.runtime.safety.copies import Copies
from headrace.runtime.safety.sigma import Sigma
from headrace.state.journal import Record, record_of
from headrace.state.manifest import Manifest


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
    sigma: Sigma
    """Finds the first batch on which each version depends."""
    trims: bool = False
    """True if records of versions on which nothing depends any more are removed; otherwise checkpoints remove records."""
    copies: Copies = field(default_factory=Copies)
    exact_after: Version = NO_VERSION
    """Versions before this one were computed again from an empty state. What they had open is wrong where it has closed since."""
    durable: Version = NO_VERSION
    """The newest durable version."""
    settled: Manifest | None = None
    """The newest version that Spark has committed in its own log. A restart never runs its batch again."""
    _durable_crc: int | None = None
    _pinned: Manifest | None = None
    _trimmed: Version = FIRST_VERSION
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

    def record(self, manifest: Manifest, before: Manifest | None, now_ms: int, rows: Mapping[OperatorId, int]) -> Record:
        """The record of a version in the journal. ``before`` is the version that it builds on."""
        return record_of(manifest, now_ms, rows, self.sigma.note(manifest, before))

    def lag(self) -> int:
        """How many batches would be read again if the newest version were lost."""
        current = self.checkpoint.current
        return 0 if current is None else current.version - max(self.durable, self.sigma.since(current.version) - 1)

    def learn(self, reports: Mapping[OperatorId, list[InstanceReport]], manifest: Manifest) -> None:
        """Note where the runs of a new version are, and forget those that nobody needs."""
        self.copies.learn(reports, manifest.version)
        pinned = self._pinned
        named = {ref.file for each in (manifest, pinned) if each is not None for state in each.stores.values() for ref in state.runs}
        self.copies.keep_only(named)

    def settle(self, version: Version) -> None:
        """Note that Spark has committed a version in its own log: it begins a batch only after that."""
        current = self.checkpoint.current
        if current is not None and current.version == version:
            self.settled = current
            since = self.sigma.since(version)
            if self.trims and since > self._trimmed:
                # The record before is the one that a replay goes on from.
                self.checkpoint.journal.trim(before=Version(since - 1))
                self._trimmed = since

    def capture(self) -> Manifest | None:
        """The newest version that may become durable. Its runs stay on the executors until ``release``. None if it is durable already."""
        with self._lock:
            current = self.checkpoint.current
            is_committed = current is not None and (self.checkpoint.location / "commits" / str(current.version)).exists()
            chosen = current if is_committed else self.settled
            if chosen is None or chosen.version <= self.durable or chosen.version < self.exact_after:
                return None
            self._pinned = chosen
            return chosen

    def release(self) -> None:
        """End a capture."""
        self._pinned = None

    def pinned(self, operator: OperatorId, stores: Mapping[str, object]) -> frozenset[str]:
        """The runs of an operator that a capture holds."""
        with self._lock:
            held = self._pinned
        if held is None:
            return frozenset()
        found = (held.stores.get(StoreId(operator, name)) for name in stores)
        return frozenset(ref.file for state in found if state is not None for ref in state.runs)

    def pinned_files(self) -> frozenset[str]:
        """All runs that a capture holds."""
        held = self._pinned
        return frozenset() if held is None else frozenset(ref.file for state in held.stores.values() for ref in state.runs)

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
