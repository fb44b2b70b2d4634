"""Makes versions durable in the background, from time to time (SEEP 3.2, Floe V).

    capture the newest version that Spark has committed -> ship the runs that the durable store lacks -> commit its manifest -> trim

A version is durable when its manifest is written, which names only runs that were shipped. Runs that versions in between wrote and merged
away are never shipped. Batches go on meanwhile. If shipping fails, nothing has changed, and the next attempt ships what is missing.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from headrace.errors import CheckpointError, HeadraceError
from headrace.ids import Version
from headrace.logs import log_fields, logger
from headrace.runtime.failpoints import fail_point
from headrace.runtime.lending import Files
from headrace.runtime.safety.keeping import Keeping
from headrace.runtime.safety.shipping import Ship, rounds, ship
from headrace.runtime.whereabouts import DRIVER
from headrace.spark.executors import Executor, Executors
from headrace.spark.gateway import GONE
from headrace.state.manifest import Manifest
from headrace.state.run import RunRef

ATTEMPTS_MAX = 3
"""How often executors are asked to ship a run."""
SWEEP_EVERY = 16
"""Files that no durable version names are looked for once in this many checkpoints."""
RETAINED = "spark.sql.streaming.minBatchesToRetain"
"""The setting of how many batches Spark keeps the offsets of."""
LOOK_S = 0.05
"""How often to look whether a checkpoint is due or asked for."""
_log = logger(__name__)


@dataclass(frozen=True)
class Checkpointed:
    """One checkpoint, for the progress."""

    version: Version
    at_s: float
    """When it was durable, by the wall clock."""
    took_s: float
    shipped_bytes: int
    state_bytes: int

    def to_json(self) -> dict[str, Any]:
        return {
            "version": self.version,
            "ageMs": round((time.time() - self.at_s) * 1000),
            "tookMs": round(self.took_s * 1000, 1),
            "bytesShipped": self.shipped_bytes,
            "bytesState": self.state_bytes,
        }


@dataclass
class Checkpointer:
    """Makes the state of a query durable every few seconds, and when asked to."""

    keeping: Keeping
    session: SparkSession
    files: Files
    executors: Executors | None
    """None with a local master: then all runs are on the driver's disk."""
    interval_s: float
    versions_to_keep: int
    lag_max: int
    """A checkpoint is taken at once if this many versions are not durable: Spark keeps the offsets of a limited number of batches."""
    last: Checkpointed | None = None
    _asked: threading.Event = field(default_factory=threading.Event)
    _ended: threading.Event = field(default_factory=threading.Event)
    _working: threading.Lock = field(default_factory=threading.Lock)
    _thread: threading.Thread | None = None
    _failed: str = ""
    _taken: int = 0
    _hinted: bool = False

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="headrace-checkpoint", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread, after the checkpoint that it is taking."""
        self._ended.set()
        self._asked.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def lag(self) -> int:
        """How many batches would be read again after a loss."""
        return self.keeping.lag()

    def catch_up(self) -> None:
        """Called before a batch: ask for a checkpoint if many versions are not durable, and wait for it if far too many are."""
        if self.lag() >= self.lag_max // 2:
            self._hint()
            self._asked.set()
        if self.lag() >= self.lag_max:
            self.take()

    def _hint(self) -> None:
        """Log once why a checkpoint is taken, if otherwise there are none."""
        if self.keeping.trims and not self._hinted:
            self._hinted = True
            text = "state depends on the last %d batches, and Spark keeps the offsets of so few that checkpoints are taken; raise %s"
            _log.warning(text, self.lag(), RETAINED)

    def take(self) -> Version:
        """Make the newest version that Spark has committed durable, now. Returns the newest durable version."""
        with self._working:
            captured = self.keeping.capture()
            if captured is not None:
                try:
                    self._make_durable(captured)
                finally:
                    self.keeping.release()
        return self.keeping.durable

    def _run(self) -> None:
        last_s = time.monotonic()
        with log_fields(query=self.keeping.checkpoint.location):
            while not self._ended.is_set():
                asked = self._asked.wait(min(LOOK_S, self.interval_s))
                if self._ended.is_set():
                    return
                if not asked and time.monotonic() - last_s < self.interval_s:
                    continue
                self._asked.clear()
                last_s = time.monotonic()
                try:
                    self.take()
                    self._failed = ""
                except (HeadraceError, PySparkException, OSError, *GONE) as failed:
                    # Spark may be shutting down, or the store may be away for a while. Nothing is lost: versions stay in the journal.
                    text = f"{type(failed).__name__}: {failed}"
                    if text != self._failed:
                        _log.warning("no checkpoint was taken; trying again in %g s: %s", self.interval_s, text, exc_info=True)
                    self._failed = text

    def _make_durable(self, manifest: Manifest) -> None:
        began_s, keeping = time.monotonic(), self.keeping
        runs = {ref.file: ref for state in manifest.stores.values() for ref in state.runs}
        lacking = [ref for file, ref in runs.items() if not keeping.copies.is_durable(file)]
        fail_point("checkpoint-begin", manifest.version)
        self._ship(lacking)
        fail_point("checkpoint-shipped", manifest.version)
        checkpoint = keeping.checkpoint
        checkpoint.fence.check(f"making version {manifest.version} durable")
        durable = checkpoint.manifests.commit(keeping.as_durable(manifest), sync=keeping.sync)
        keeping.note_durable(durable)
        fail_point("checkpoint-committed", manifest.version)
        # The record of the durable version stays, because the next one names its checksum.
        checkpoint.journal.trim(before=durable.version)
        checkpoint.remember(durable)
        checkpoint.collect_garbage(self.versions_to_keep)
        self._taken += 1
        if self._taken % SWEEP_EVERY == 0:
            # What checkpoints that broke off have shipped, and output that failed attempts have staged.
            checkpoint.sweep()
        took_s, shipped = time.monotonic() - began_s, sum(ref.bytes for ref in lacking)
        self.last = Checkpointed(durable.version, time.time(), took_s, shipped, sum(ref.bytes for ref in runs.values()))
        _log.info("durable after %.0f ms, %d bytes shipped", took_s * 1000, shipped, version=durable.version)

    def _ship(self, refs: list[RunRef]) -> None:
        if not refs:
            return
        if self.executors is None:
            shipped = set(Ship(self.files, ()).ship(refs))
        else:
            shipped = set()
            for _ in range(ATTEMPTS_MAX):
                # If an executor is busy for long, Spark may run its task elsewhere, where the runs are not.
                for portion in rounds(self._loads([ref for ref in refs if ref.file not in shipped], self.executors)):
                    shipped |= ship(self.session, self.files, portion)
        lacking = [ref.file for ref in refs if ref.file not in shipped]
        if lacking:
            raise CheckpointError(
                where=str(self.keeping.checkpoint.location),
                wanted="to ship all runs of a version to the durable store",
                found=f"{len(lacking)} that no executor could ship, such as {lacking[0]}",
                hint="the next batch computes lost runs again",
            )

    def _loads(self, refs: list[RunRef], executors: Executors) -> dict[Executor, list[RunRef]]:
        """Which executor ships which runs: of those that have a run, the one with the least to ship."""
        live = {each.id: each for each in executors.live()}
        loads: dict[Executor, list[RunRef]] = {}
        for ref in sorted(refs, key=lambda ref: -ref.bytes):
            holders = [live[each] for each in self.keeping.copies.holders_of(ref.file) if each in live and each != DRIVER]
            if holders:
                least = min(holders, key=lambda each: (sum(r.bytes for r in loads.get(each, ())), each.id))
                loads.setdefault(least, []).append(ref)
        return loads
