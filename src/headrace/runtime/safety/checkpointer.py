"""Makes versions durable in the background, from time to time (SEEP 3.2, Floe V, Borealis 5.2).

    capture the newest version that Spark has committed -> ship what the durable store lacks -> commit its manifest -> trim

A capture freezes a version: compaction keeps the runs of later versions apart from its own. Each instance then ships what it has gained
since the last checkpoint, merged into one run per store (``portions.py``). A version is durable when its manifest is written, which names
only runs that were shipped. Batches go on meanwhile.

Borealis captures a unit in one task, and its backup pastes it in another. Here shipping a unit is the capture. The manifest is the paste,
of all units at once, because it names one version. The units are shipped in the order of ``headrace.checkpointOrder``, in rounds of bounded
size, each of which waits for a moment without a batch, but not for long. If a checkpoint breaks off, nothing has changed; the units that it
has shipped count for the next one, which ships only what they have gained since.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from headrace.compile.dataflow import Dataflow
from headrace.control.availability.scheduling import FIRST, RoundRobinTurn, ScheduleConfig
from headrace.control.availability.units import UnitId
from headrace.errors import CheckpointError, FencedError, HeadraceError
from headrace.ids import Version
from headrace.logs import log_fields, logger
from headrace.runtime.failpoints import fail_point
from headrace.runtime.guard import Guard
from headrace.runtime.lending import Files
from headrace.runtime.safety.keeping import Keeping
from headrace.runtime.safety.loads import PARCEL_S, Loads
from headrace.runtime.safety.portions import EarlyShipments, Portion, composed, delta_name, portions_of
from headrace.runtime.safety.shipping import ROUND_BYTES, Parcel, Ship, Shipped, rounds, ship
from headrace.runtime.whereabouts import DRIVER
from headrace.spark.executors import Executor, Executors
from headrace.spark.gateway import GONE
from headrace.state.manifest import Manifest
from headrace.state.sequence import run_version

ATTEMPTS_MAX = 3
"""How often executors are asked to ship a parcel."""
SWEEP_EVERY = 16
"""Files that no durable version names are looked for once in this many checkpoints."""
RETAINED = "spark.sql.streaming.minBatchesToRetain"
"""The setting of how many batches Spark keeps the offsets of."""
LOOK_S = 0.05
"""How often to look whether a checkpoint is due or asked for."""
IDLE_LOOK_S = 0.002
IDLE_WAIT_SHARE = 0.25
"""A checkpoint waits for moments without a batch for at most this share of the interval, in all its rounds together."""
IDLE_WAIT_S_MAX = 5.0
SPEED_FIRST = 100e6
"""Bytes per second that are assumed before anything was shipped."""
WHOLE_BYTES = 1 << 62
HERE = Executor(DRIVER, "", cores=1)
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
    waited_s: float = 0.0
    """How long it waited for moments without a batch."""
    units: int = 0
    new_bases: int = 0
    """Units whose durable runs were replaced by the home's, instead of adding a delta."""

    def to_json(self) -> dict[str, Any]:
        return {
            "version": self.version,
            "ageMs": round((time.time() - self.at_s) * 1000),
            "tookMs": round(self.took_s * 1000, 1),
            "waitedMs": round(self.waited_s * 1000, 1),
            "bytesShipped": self.shipped_bytes,
            "bytesState": self.state_bytes,
            "units": self.units,
            "newBases": self.new_bases,
        }


@dataclass
class Checkpointer:
    """Makes the state of a query durable every few seconds, and when asked to."""

    keeping: Keeping
    flow: Dataflow
    session: SparkSession
    files: Files
    executors: Executors | None
    """None with a local master: then all runs are on the driver's disk."""
    guard: Guard | None
    """Finds executors that hang; None with a local master."""
    interval_s: float
    versions_to_keep: int
    lag_max: int
    """A checkpoint is taken at once if this many versions are not durable: Spark keeps the offsets of a limited number of batches."""
    schedule: ScheduleConfig
    is_idle: Callable[[], bool]
    """True while no batch runs."""
    last: Checkpointed | None = None
    _early: EarlyShipments = field(default_factory=EarlyShipments)
    _turn: RoundRobinTurn = FIRST
    _speed: float = SPEED_FIRST
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

    def take(self, *, waits: bool = False) -> Version:
        """Make the newest version that Spark has committed durable. Returns the newest durable version.

        With ``waits``, each round waits a little for a moment without a batch.
        """
        with self._working:
            captured = self.keeping.capture(self._ended.is_set)
            if captured is not None:
                try:
                    self._make_durable(captured, waits)
                finally:
                    self.keeping.release(self._early.versions())
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
                    self.take(waits=True)
                    self._failed = ""
                except FencedError as fenced:
                    # Another query has taken over. The next batch ends this one.
                    _log.warning("no further checkpoint is taken: %s", fenced)
                    return
                except (HeadraceError, PySparkException, OSError, *GONE) as failed:
                    # Spark may be shutting down, or the store may be away for a while. Nothing is lost: versions stay in the journal.
                    text = f"{type(failed).__name__}: {failed}"
                    if text != self._failed:
                        _log.warning("no checkpoint was taken; trying again in %g s: %s", self.interval_s, text, exc_info=True)
                    self._failed = text

    def _make_durable(self, captured: Manifest, waits: bool) -> None:
        began_s, keeping, base = time.monotonic(), self.keeping, self.keeping.base
        portions = portions_of(captured, base, self.flow, keeping.recreated, self._early)
        fail_point("checkpoint-begin", captured.version)
        shipped, waited_s = self._ship(captured, portions, waits)
        fail_point("checkpoint-shipped", captured.version)
        checkpoint, names = keeping.checkpoint, self._names(captured, portions)
        stores = composed(captured, base, ((each, each.arrived(shipped.refs, names[each.unit])) for each in portions))
        checkpoint.fence.check(f"making version {captured.version} durable")
        durable = checkpoint.manifests.commit(keeping.as_durable(replace(captured, stores=stores)), sync=keeping.sync)
        keeping.note_durable(durable)
        self._early = EarlyShipments()
        fail_point("checkpoint-committed", captured.version)
        # The record of the durable version stays, because the next one names its checksum.
        checkpoint.fence.check("removing old records of the journal")
        checkpoint.journal.trim(before=durable.version)
        checkpoint.remember(durable)
        checkpoint.collect_garbage(self.versions_to_keep)
        self._taken += 1
        if self._taken % SWEEP_EVERY == 0:
            # What checkpoints that broke off have shipped, and output that failed attempts have staged.
            checkpoint.sweep()
        took_s, state = time.monotonic() - began_s, {ref.file: ref.bytes for each in captured.stores.values() for ref in each.runs}
        bases = sum(each.base is None for each in portions)
        self.last = Checkpointed(durable.version, time.time(), took_s, shipped.bytes, sum(state.values()), waited_s, len(portions), bases)
        _log.info("durable after %.0f ms, %d bytes shipped", took_s * 1000, shipped.bytes, version=durable.version)

    def _names(self, captured: Manifest, portions: list[Portion]) -> dict[UnitId, str]:
        writer = self.keeping.checkpoint.fence.writer
        return {each.unit: delta_name(each, captured.version, writer, self._taken) for each in portions}

    def _ship(self, captured: Manifest, portions: list[Portion], waits: bool) -> tuple[Shipped, float]:
        """Ship all portions. Returns what has arrived, and how long it waited for moments without a batch."""
        shipped, waited_s, names = Shipped(), 0.0, self._names(captured, portions)
        whole = self.schedule.method == "whole"
        try:
            for _ in range(ATTEMPTS_MAX):
                # If an executor is busy for long, Spark may run its task elsewhere, where the runs are not.
                loads, self._turn = self._loads(portions, names, shipped).in_order(self.schedule, self._turn, self._speed)
                for number, load in enumerate(rounds(loads, ROUND_BYTES if not whole else WHOLE_BYTES)):
                    if waits and not whole:
                        waited_s += self._await_idle(min(IDLE_WAIT_SHARE * self.interval_s, IDLE_WAIT_S_MAX) - waited_s)
                    self._ship_round(load, shipped)
                    fail_point(f"checkpoint-round{number}", captured.version)
        finally:
            self._note_early(captured, portions, names, shipped)
        left = self._loads(portions, names, shipped)
        missing = [*left.parcels, *left.lost]
        if missing:
            raise CheckpointError(
                where=self.keeping.checkpoint.location,
                wanted="to ship all runs of a version to the durable store",
                found=f"{len(missing)} that no executor could ship, such as {missing[0]}",
                hint="the next batch computes lost runs again",
            )
        return shipped, waited_s

    def _ship_round(self, load: dict[Executor, list[Parcel]], shipped: Shipped) -> None:
        began_s, before = time.monotonic(), shipped.bytes
        if self.executors is None or self.guard is None:
            for name, refs, length in Ship(self.files, ()).ship([parcel for each in load.values() for parcel in each]):
                shipped.add(name, refs, length)
        else:
            with self.guard.working("shipping a checkpoint"):
                ship(self.session, self.files, load, shipped)
        length = shipped.bytes - before
        if length:
            # Executors ship side by side, so the time is that of the one with the most parcels.
            parcels = max(len(each) for each in load.values())
            moving_s = max(time.monotonic() - began_s - PARCEL_S * parcels, PARCEL_S)
            self._speed = (self._speed + length / moving_s / len(load)) / 2

    def _await_idle(self, seconds_max: float) -> float:
        """Wait for a moment without a batch. Returns how long that took."""
        began_s = time.monotonic()
        while not self.is_idle() and not self._ended.is_set() and time.monotonic() - began_s < seconds_max:
            time.sleep(IDLE_LOOK_S)
        return time.monotonic() - began_s

    def _note_early(self, captured: Manifest, portions: list[Portion], names: dict[UnitId, str], shipped: Shipped) -> None:
        for each in portions:
            whole = names[each.unit] in shipped.refs or all(raw.name in shipped.refs for raw in each.raw(self.keeping.copies))
            if whole:
                self._early.note(each, captured.version, each.arrived(shipped.refs, names[each.unit]))

    def _loads(self, portions: list[Portion], names: dict[UnitId, str], shipped: Shipped) -> Loads:
        """What is left to ship, and who ships it."""
        live = {each.id: each for each in self.executors.live()} if self.executors is not None else {DRIVER: HERE}
        loads = Loads(self.keeping.copies, live, shipped)
        for portion in portions:
            loads.add(portion, names[portion.unit], self._redo_s(portion))
        return loads

    def _redo_s(self, portion: Portion) -> float:
        """How long the work took that a loss of this portion makes to be done again. A portion of all instances counts all."""
        after = max((run_version(ref.seq) for ref in portion.early), default=self.keeping.durable)
        return self.keeping.busy_s(portion.id.operator, None if portion.base is None else portion.instance, after)
