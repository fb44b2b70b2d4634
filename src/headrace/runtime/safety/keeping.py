"""Keeps the versions of a query: commits them, and knows which of them are durable.

With ``headrace.checkpointSeconds=0`` a version is durable when it is committed: its manifest is written at once. Otherwise the commit
writes a record to the journal, the manifest stays in memory, and the checkpointer makes a version durable from time to time.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from headrace.ids import FIRST_VERSION, NO_VERSION, OperatorId, StoreId, Version
from headrace.runtime.checkpoint import Checkpoint
from headrace.runtime.reports import InstanceReport
from headrace.runtime.safety.copies import Copies
from headrace.runtime.safety.sigma import Sigma
from headrace.state.journal import Record, record_of
from headrace.state.manifest import Manifest

LOOK_S = 0.02
"""How often to look whether Spark has committed a version."""
Unit = tuple[OperatorId, int]
"""An instance of an operator."""


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
    sigma: Sigma
    """Finds the first batch on which each version depends."""
    trims: bool = False
    """True if records of versions on which nothing depends any more are removed; otherwise checkpoints remove records."""
    forgets: bool = False
    """True if state that is lost begins empty."""
    copies: Copies = field(default_factory=Copies)
    exact_after: Version = NO_VERSION
    """Versions before this one were computed again from an empty state. What they had open is wrong where it has closed since."""
    base: Manifest | None = None
    """The manifest of the newest durable version; None if there is none."""
    recreated: set[OperatorId] = field(default_factory=set)
    """Operators that had window recreations since the last durable version. For a while, two owners keep rows of a slot."""
    shipped_upto: frozenset[Version] = frozenset()
    """Versions up to which a checkpoint that broke off has shipped some units. What it shipped counts for the next one."""
    _busy_s: dict[Unit, dict[Version, float]] = field(default_factory=dict)
    """By operator and instance: how long each version took that is not durable yet."""
    _pins: dict[Pin, Manifest] = field(default_factory=dict)
    """Versions whose runs stay on the executors although later versions no longer need them."""
    _making: int = 0
    _maker: int | None = None
    """The thread that made the last version. It is in a batch, as long as Spark has not committed that version."""
    _wanted: bool = False
    """True if a checkpoint waits for a version to capture."""
    _trimmed: Version = FIRST_VERSION
    _staged: deque[Manifest] = field(default_factory=deque)
    _lock: threading.Condition = field(default_factory=threading.Condition)

    @property
    def durable(self) -> Version:
        """The newest durable version."""
        return NO_VERSION if self.base is None else self.base.version

    def begin(self) -> None:
        """Learn which version is durable, when the query starts."""
        versions = self.checkpoint.manifests.versions()
        if versions:
            self.note_durable(self.checkpoint.manifests.read(versions[-1]))

    def note_durable(self, manifest: Manifest) -> None:
        """Note that a version is durable now."""
        with self._lock:
            self.base, self.shipped_upto = manifest, frozenset()
            self.recreated = _recreating(manifest)
            self._busy_s = {unit: {v: s for v, s in each.items() if v > manifest.version} for unit, each in self._busy_s.items()}
        self.copies.shipped(manifest)

    def as_durable(self, manifest: Manifest) -> Manifest:
        """The manifest by which a version becomes durable. It follows the durable version before, and has no staged output."""
        return replace(manifest, staged=(), checkpoint_version=self.durable, previous_crc=self.base.crc if self.base else None)

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
            self.recreated |= _recreating(manifest)
        return manifest

    @contextlib.contextmanager
    def making(self) -> Iterator[None]:
        """Inside, a version is made and committed. Its tasks merge runs by the boundaries of now, so no version before it can be captured
        meanwhile. Inside, versions that were lost may be made again."""
        with self._lock:
            self._making, self._maker = self._making + 1, threading.get_ident()
        try:
            yield
        finally:
            with self._lock:
                self._making -= 1
                self._lock.notify_all()

    def boundaries(self) -> tuple[Version, ...]:
        """Versions that compaction must not merge across: those that are durable, captured now, or shipped in part."""
        if not self.at_home:
            return ()
        with self._lock:
            captured = (self._pins[Pin.CHECKPOINT].version,) if Pin.CHECKPOINT in self._pins else ()
            return tuple(sorted({self.durable, *captured, *self.shipped_upto}))

    def record(self, manifest: Manifest, before: Manifest | None, now_ms: int, rows: Mapping[OperatorId, int]) -> Record:
        """The record of a version in the journal. ``before`` is the version that it builds on."""
        return record_of(manifest, now_ms, rows, self.sigma.note(manifest, before), forgets=self.forgets)

    def lag(self) -> int:
        """How many batches would be read again if the newest version were lost."""
        current = self.checkpoint.current
        return 0 if current is None else current.version - max(self.durable, self.sigma.since(current.version) - 1)

    def learn(self, reports: Mapping[OperatorId, list[InstanceReport]], manifest: Manifest) -> None:
        """Note where the runs of a new version are, and forget those that nobody needs."""
        self.copies.learn(reports, manifest.version)
        if self.at_home:
            with self._lock:
                for report in (report for each in reports.values() for report in each):
                    self._busy_s.setdefault((report.operator, int(report.instance)), {})[manifest.version] = report.wall_s
        self.copies.keep_only(files_of(manifest) | self.pinned_files())

    def busy_s(self, operator: OperatorId, instance: int | None, after: Version) -> float:
        """How long an instance, or with None all, worked for versions after this one: what a loss makes to be done again."""
        with self._lock:
            mine = [each for (op, at), each in self._busy_s.items() if op == operator and instance in (None, at)]
            return sum(seconds for each in mine for version, seconds in each.items() if version > after)

    def settle(self, version: Version) -> None:
        """Note that Spark has committed a version in its own log: it begins a batch only after that. A restart never runs it again.

        If a checkpoint waits, the version is captured now, before the next one builds on it.
        """
        with self._lock:
            current = self.checkpoint.current
            if current is None or current.version != version:
                return
            if self._wanted and version > self.durable and version >= self.exact_after:
                self._pins[Pin.CHECKPOINT] = current
                self._lock.notify_all()
        since = self.sigma.since(version)
        if self.trims and since > self._trimmed:
            # The record before is the one that a replay goes on from.
            self.checkpoint.journal.trim(before=Version(since - 1))
            self._trimmed = since

    def capture(self, given_up: Callable[[], bool] = lambda: False) -> Manifest | None:
        """The newest version that may become durable. Its runs stay on the executors until ``release``. None if it is durable already.

        It waits until Spark has committed the version, and while another version is made: that one's tasks may merge runs across it. The
        thread that runs the batch does not wait for itself, and gets None.
        """
        with self._lock:
            self._wanted = True
            try:
                while Pin.CHECKPOINT not in self._pins and not given_up():
                    current = self.checkpoint.current
                    if current is not None and (current.version <= self.durable or current.version < self.exact_after):
                        return None
                    if not self._making and (current is None or self._is_committed(current)):
                        if current is not None:
                            self._pins[Pin.CHECKPOINT] = current
                        return current
                    if self._maker == threading.get_ident():
                        return None
                    self._lock.wait(LOOK_S)
            finally:
                self._wanted = False
            return self._pins.get(Pin.CHECKPOINT)

    def _is_committed(self, manifest: Manifest) -> bool:
        return self.checkpoint.spark_log.has_commit(manifest.version)

    def release(self, shipped_upto: Iterable[Version] = ()) -> None:
        """End a capture. If it broke off, ``shipped_upto`` are the versions up to which units were shipped."""
        with self._lock:
            self._pins.pop(Pin.CHECKPOINT, None)
            self.shipped_upto = frozenset(each for each in shipped_upto if each > self.durable)

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
        gone = [self._staged.popleft() for _ in range(len(self._staged) - keep)]
        if gone:
            self.checkpoint.collect_soon(lambda: remove_staged(self.checkpoint, *gone))


def _recreating(manifest: Manifest) -> set[OperatorId]:
    return {name for name, routing in manifest.routing.items() if routing.recreations}


def remove_staged(checkpoint: Checkpoint, *manifests: Manifest) -> None:
    """Remove the staged output of versions."""
    checkpoint.store.delete(*(f"staged/{each.file}" for manifest in manifests for each in manifest.staged if each.folder == "staged"))
