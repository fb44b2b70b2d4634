"""One cell of a table: an engine, a query, a rate and a dictionary, for some seconds. Every result is kept for the check.

    start -> the head fills the state -> the gun -> settle -> measured seconds -> all offered fragments delivered -> stop

The latency of a fragment is the time from its creation, which follows the clock, until ``foreachBatch`` has the results of its batch:
the changed counts as an Arrow table.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

import headrace as hr
from benchmarks.word_frequency.query import Offer, counts, read, results
from benchmarks.word_frequency.windows import Window
from headrace.bench.model import OURS
from headrace.bench.runner import PROVIDER, PROVIDER_DEFAULT, PROVIDERS, LaneDied
from headrace.spark.streaming import ProgressTexts

HEAD_S_MAX = 300
OVERRUN_S_MAX = 60
"""How long an engine that cannot keep up may take to deliver the outstanding fragments."""
_POLL_S = 0.1
_BEFORE_TRIGGER_S = 0.4
CLOSED_BATCHES_MIN = 3


@dataclass(frozen=True)
class Cell:
    """The parameters of a cell."""

    engine: str
    window: Window
    words: int
    pool: str
    head: int
    rate: float = 0.0
    """Fragments per second; 0 means as many as the query can process, ``rows`` per batch."""
    rows: int = 0
    seconds: float = 10.0
    settle_s: float = 2.0
    interval_s: float = 0.0
    """The time between the beginnings of batches, each of which is a checkpoint; 0 means no pause."""
    sync: bool = True
    """Headrace only: sync each version to disk."""
    recovers: bool = False
    """True if the query fails at the end and restarts from its checkpoint."""

    @property
    def name(self) -> str:
        return self.engine if self.sync else f"{self.engine}, no sync"

    @property
    def step_s(self) -> float:
        """The event time of a closed-loop batch: one advance of a sliding window."""
        return float(self.window.advance_s) if self.window.slides else 1.0

    def offer(self, folder: Path) -> Offer:
        # The head covers a whole sliding window, so that the number of open windows is at its maximum.
        span_s = float(self.window.size_s or 0) if self.window.slides else 0.0
        density = self.rate or self.rows / self.step_s
        offered = int(self.rate * (self.settle_s + self.seconds)) if self.rate and not self.recovers else 2**62
        return Offer(Path(self.pool), self.head, folder / "gun", self.rate, self.rows, density, span_s, offered)


@dataclass(frozen=True)
class Batch:
    """Fragments ``begin`` to ``end``, not included, were delivered at ``at_s``."""

    begin: int
    end: int
    at_s: float
    duration_ms: float | None
    """By Spark's progress; None for a batch that the stop interrupted."""


@dataclass
class Outcome:
    """The measurements of a cell."""

    cell: Cell
    fired_s: float = 0.0
    batches: list[Batch] = field(default_factory=list)
    delivered: list[pa.Table] = field(default_factory=list)
    """Results, in the order of batches."""
    phases_ms: list[dict[str, float]] = field(default_factory=list)
    """Headrace's phases of each batch; those of the slowest instance are named ``instance/...``."""
    keys_touched: list[int] = field(default_factory=list)
    failed_s: float | None = None
    """Fragments that are delivered later do not count for the latency."""
    recovery_s: float | None = None
    overran: bool = False
    """True if fragments were still outstanding when the time was up."""


class Run:
    """Runs a cell on a session."""

    def __init__(self, spark: SparkSession, cell: Cell, folder: Path) -> None:
        self.spark, self.cell, self.folder = spark, cell, folder
        self.outcome = Outcome(cell)
        self._times_s: dict[int, float] = {}
        """When each batch was first delivered."""
        self._last_s: dict[int, float] = {}
        """When each batch was last delivered: after a failure it may be delivered again."""
        self._durations_ms: dict[int, float] = {}
        self._tables: dict[int, pa.Table] = {}
        self._query: Any = None
        self._progress: Any = None

    def run(self) -> Outcome:
        """Run the whole cell. The settings of the session are restored."""
        before = self.spark.conf.get(PROVIDER)
        self.folder.mkdir(parents=True)
        offer = self.cell.offer(self.folder)
        try:
            self._start(offer)
            if not self._until(lambda: self._reached() >= offer.head, HEAD_S_MAX):
                raise LaneDied(f"the dictionary was not counted within {HEAD_S_MAX} s")
            self._fire(offer)
            if self.cell.rate:
                self._open_loop(offer)
            else:
                self._closed_loop()
            if self.cell.recovers:
                self._recover(offer)
            self._stop()
        finally:
            if self._query is not None:
                self._query.stop()
            self.spark.conf.set(PROVIDER, str(before))
        self.outcome.batches = self._batches()
        self.outcome.delivered = [table for _, table in sorted(self._tables.items())]
        return self.outcome

    def _start(self, offer: Offer) -> None:
        self.spark.conf.set(PROVIDER, PROVIDERS.get(self.cell.engine, PROVIDER_DEFAULT))
        fragments = read(self.spark, offer)
        counted = counts(hr.stream(fragments) if self.cell.engine == OURS else fragments, self.cell.window)
        writer = counted.writeStream.outputMode(self.cell.window.mode).foreachBatch(self._keep)
        writer = writer.option("checkpointLocation", str(self.folder / "checkpoint"))
        if self.cell.engine == OURS:
            writer = writer.option("headrace.durable", str(self.cell.sync).lower())
        self._query = writer.trigger(processingTime=f"{int(self.cell.interval_s * 1000)} milliseconds").start()
        found: Any = self.spark.streams.get(str(self._query.id))
        if found is None:
            raise LaneDied(str(self._query.exception()))
        # Headrace's handle builds its progress from the whole history at each call; Spark's handle is cheaper.
        self._progress = ProgressTexts(found)

    def _keep(self, counted: DataFrame, batch: int) -> None:
        table = results(counted).toArrow()
        self._last_s[batch] = time.time()
        self._times_s.setdefault(batch, self._last_s[batch])
        self._tables[batch] = table

    def _fire(self, offer: Offer) -> None:
        self.outcome.fired_s = time.time()
        waiting = offer.gun.with_suffix(".new")
        waiting.write_text(repr(self.outcome.fired_s))
        waiting.rename(offer.gun)

    def _open_loop(self, offer: Offer) -> None:
        self._sleep_until(self.outcome.fired_s + self.cell.settle_s + self.cell.seconds)
        if self.cell.recovers:
            return
        self.outcome.overran = not self._until(lambda: self._reached() >= offer.head + offer.limit, OVERRUN_S_MAX)

    def _closed_loop(self) -> None:
        """Wait for this long, and for at least this many batches."""
        enough = self.cell.settle_s + self.cell.seconds
        self._until(lambda: time.time() - self.outcome.fired_s > enough and len(self._times_s) > CLOSED_BATCHES_MIN, OVERRUN_S_MAX + enough)

    def _recover(self, offer: Offer) -> None:
        """Stop just before a batch would begin, which is the worst case, and return the time from the restart to the first results."""
        every_s = self.cell.interval_s
        if every_s:
            self._sleep_until((time.time() // every_s + 1) * every_s - _BEFORE_TRIGGER_S)
        self.outcome.failed_s = time.time()
        self._stop()
        began_s = time.time()
        self._start(offer)
        self._until(lambda: any(at_s > began_s for at_s in list(self._last_s.values())), HEAD_S_MAX)
        self.outcome.recovery_s = min(at_s for at_s in self._last_s.values() if at_s > began_s) - began_s

    def _stop(self) -> None:
        progress = [json.loads(each) for each in self._progress.recent()]
        self._durations_ms |= {int(each["batchId"]): float(each["durationMs"]["triggerExecution"]) for each in progress}
        if self.cell.engine == OURS and not self.outcome.phases_ms:
            self._note_phases()
        self._query.stop()

    def _batches(self) -> list[Batch]:
        """The fragments of each delivered batch, from Spark's offset log. The progress of an interrupted batch may never come."""
        log = self.folder / "checkpoint" / "offsets"
        ends = {batch: int(json.loads((log / str(batch)).read_text().splitlines()[-1])["n"]) for batch in sorted(self._times_s)}
        return [
            Batch(ends.get(batch - 1, 0), end, self._times_s[batch], self._durations_ms.get(batch))
            for batch, end in ends.items()
            if end > ends.get(batch - 1, 0)
        ]

    def _note_phases(self) -> None:
        for told in (each["headrace"] for each in self._query.recentProgress):
            slowest = max(told["instances"], key=lambda each: each["wallSeconds"], default={"phasesMs": {}})
            inner = {f"instance/{name}": ms for name, ms in slowest["phasesMs"].items()}
            self.outcome.phases_ms.append({**told["phasesMs"], **inner})
            self.outcome.keys_touched.append(sum(each["keysTouched"] for each in told["instances"]))

    def _reached(self) -> int:
        last = json.loads(self._progress.last() or "{}")
        if last.get("batchId") not in self._times_s:
            return -1
        return int(last["sources"][0]["endOffset"]["n"])

    def _sleep_until(self, moment_s: float) -> None:
        while (left_s := moment_s - time.time()) > 0:
            time.sleep(min(left_s, 1.0))
            self._raise_if_dead()

    def _until(self, holds: Any, seconds_max: float) -> bool:
        deadline_s = time.monotonic() + seconds_max
        while not holds():
            self._raise_if_dead()
            if time.monotonic() > deadline_s:
                return False
            time.sleep(_POLL_S)
        return True

    def _raise_if_dead(self) -> None:
        if not self._query.isActive:
            raise LaneDied(str(self._query.exception() or "the query stopped by itself"))
