"""Records a query's history in its checkpoint (`runtime/history_files.py`), beside the batches.

    batch ends --append to a ring--> this thread --(with Spark's part of the progress)--> points, events, whole progresses

The batch path only appends to the ring. If the disk is slow or full, the query goes on, and the history has holes: the ring keeps the
newest batches, and what was dropped is counted in the next event.
"""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.control.observing import FITTED, Batch, observe
from headrace.logs import logger, suppressed
from headrace.runtime.history_events import Seen, events_of
from headrace.runtime.history_files import HistoryWriter, Line
from headrace.runtime.progress import BatchProgress
from headrace.runtime.spark_query import SparkQuery
from headrace.runtime.spark_tab import SparkTab
from headrace.spark.gateway import GONE
from headrace.spark.streaming import ProgressTexts

RING = 500
"""Batches that wait to be written."""
SPARK_S = 1.0
"""How long to wait for Spark's part of a batch's progress, which comes a little after the batch."""
LOOK_S = 0.1
PERIOD_S = 5.0
"""Utilisation is that of the last so many seconds, if the query has no policy with a period of its own."""
CLOSE_SECONDS_MAX = 10.0
_log = logger(__name__)


@dataclass
class History:
    """The recorder of one query."""

    query: str
    """The checkpoint's location."""
    folder: Path
    spark: SparkQuery
    period_s: float = PERIOD_S
    _ring: deque[BatchProgress] = field(default_factory=lambda: deque(maxlen=RING))
    _woken: threading.Event = field(default_factory=threading.Event)
    _ended: threading.Event = field(default_factory=threading.Event)
    _batches: list[Batch] = field(default_factory=list)
    """The last batches, as policies see them, for the utilisation."""
    _thread: threading.Thread | None = None
    _dropped: int = 0
    """Batches that the ring had no place for."""
    _told: int = 0
    """Those among them that an event has told of."""

    def offer(self, progress: BatchProgress) -> None:
        """Take a batch that has ended. This is all that happens on the batch path."""
        if self._ended.is_set():
            return
        if len(self._ring) == RING:
            self._dropped += 1
        self._ring.append(progress)
        self._woken.set()

    def start(self, about: Callable[[], Line]) -> None:
        """Begin to write. ``about`` describes the query; the thread calls it once."""
        self._thread = threading.Thread(target=self._run, args=(about,), name="headrace-history", daemon=True)
        self._thread.start()

    def stop(self, failure: Callable[[], BaseException | None]) -> None:
        """Write what is left, and how the query ended."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        self._failure = failure
        self._ended.set()
        self._woken.set()
        thread.join(CLOSE_SECONDS_MAX)

    def _run(self, about: Callable[[], Line]) -> None:
        with suppressed(_log, "the history of the query is not written", Exception, query=self.query):
            writer = HistoryWriter(self.folder)
            writer.open()
            try:
                body = about()
                writer.about(body)
                writer.add([], [{"t": body["startedS"], "kind": "start", "runId": body["runId"]}], [])
                self._write(writer)
            finally:
                writer.close()
        # If writing has failed for good, nothing may pile up in the ring.
        self._ended.set()
        self._ring.clear()

    def _write(self, writer: HistoryWriter) -> None:
        texts, seen, newest = ProgressTexts(self.spark.handle), Seen(), -1
        pending: deque[tuple[float, BatchProgress]] = deque()
        spark: dict[int, dict[str, Any]] = {}
        tab = SparkTab.of(self.spark.session)
        while not self._ended.is_set() or self._ring or pending:
            self._woken.wait(LOOK_S if tab.tell() or pending else None)
            self._woken.clear()
            while self._ring:
                pending.append((time.monotonic(), self._ring.popleft()))
            for text in self._texts(texts, newest):
                body = json.loads(text)
                newest = int(body["batchId"])
                spark[newest] = body
            ready = []
            last = self._ended.is_set()
            while pending and (last or pending[0][1].version in spark or pending[0][0] < time.monotonic() - SPARK_S):
                progress = pending.popleft()[1]
                ready.append((progress, part := spark.pop(progress.version, None)))
                tab.add(part, progress.operators())
            spark = {version: body for version, body in spark.items() if not pending or version >= pending[0][1].version}
            if ready:
                with suppressed(_log, "a part of the query's history is not written", OSError, query=self.query):
                    writer.add(*self._lines(ready, seen))
        tab.tell()
        with suppressed(_log, "the end of the query is not in its history", OSError, query=self.query):
            failed = self._failure()
            writer.add([], [{"t": round(time.time(), 3), "kind": "end", "error": None if failed is None else str(failed)}], [])

    def _texts(self, texts: ProgressTexts, newest: int) -> list[str]:
        try:
            return texts.after(newest)
        except GONE:
            return []

    def _lines(self, ready: list[tuple[BatchProgress, dict[str, Any] | None]], seen: Seen) -> tuple[list[Line], list[Line], list[Line]]:
        """Points, events and whole progresses of these batches."""
        points, events, whole = [], [], []
        for progress, spark in ready:
            body = merged(progress, spark, self.spark)
            whole.append(body)
            points.append(self._point(progress, body))
            events += events_of(progress, body["headrace"], seen)
        lost, self._told = self._dropped - self._told, self._dropped
        if lost:
            events.append({"t": points[-1]["t"], "kind": "history", "dropped": lost})
        return points, events, whole

    def _point(self, progress: BatchProgress, body: Mapping[str, Any]) -> Line:
        ours = body["headrace"]
        begin_s, end_s, _ = progress.times_s
        latency, spark = ours["latencyMs"], body.get("durationMs", {})
        point: Line = {
            "t": round(end_s, 3),
            "b": round(begin_s, 3),
            "v": progress.version,
            "n": 1,
            "rows": ours["rows"],
            "out": ours["rowsOut"],
            "late": sum(each["rowsLate"] for each in ours["instances"]),
            "ms": ours["batchMs"],
            "lat": latency["arrivalMax"],
            "latMin": latency["arrivalMin"],
            "ev": latency["eventTimeMax"],
            "wait": ours["backlog"]["rows"],
            "share": delivered_share(ours),
            "wm": ours["watermarkMs"] if body.get("eventTime", {}).get("watermark") else None,
            "fetched": sum(each["bytesFetched"] for each in ours["instances"]),
            "phases": ours["phasesMs"],
            "spark": {name: value for name, value in spark.items() if value},
            **self._operators(progress),
        }
        return point

    def _operators(self, progress: BatchProgress) -> Line:
        """The query's utilisation as policies see it. By operator: instances, rows in and out, mean and greatest utilisation, state."""
        batch = Batch.of(progress.report())
        if not progress.replayed:
            self._batches = [*self._batches[-FITTED:], batch]
        seen = observe(self._batches, batch.end_s, self.period_s)
        loads = {} if seen is None else {load.operator: load for load in seen.operators}
        found = {}
        for each in batch.operators:
            runs = progress.manifest.runs_of(each.operator)
            rows = progress.manifest.counters.keys.get(each.operator, sum(ref.rows for ref in runs))
            load = loads.get(each.operator)
            busy = (None, None) if load is None else (round(float(load.cpu.mean()), 4), round(float(load.cpu.max()), 4))
            size = sum({ref.file: ref.bytes for ref in runs}.values())
            found[str(each.operator)] = [len(each.busy_s), int(each.rows.sum()), int(each.rows_out.sum()), *busy, rows, size]
        path = None if seen is None else seen.path
        return {"busy": None if path is None else round(path.utilisation, 4), "ops": found}


def delivered_share(ours: Mapping[str, Any]) -> float:
    """The share of the rows that counted: none came too late, and none was dropped. With drops, the sinks' shares by weight."""
    share: float = ours["shareDelivered"]
    sinks = (ours["shedding"] or {}).get("sinks", [])
    weight = sum(each["weight"] for each in sinks)
    return round(share * (sum(each["weight"] * each["delivered"] for each in sinks) / weight if weight else 1.0), 5)


def merged(ours: BatchProgress, spark: dict[str, Any] | None, query: SparkQuery) -> dict[str, Any]:
    """The whole progress of a batch: Spark's part, if it is known, and Headrace's."""
    handle = query.handle
    whole = spark or {"id": str(handle.id), "runId": str(handle.runId), "name": handle.name, "batchId": ours.version}
    whole["stateOperators"] = ours.operators()
    if ours.observed:
        whole["observedMetrics"] = {**whole.get("observedMetrics", {}), **ours.observed}
    if ours.event_time():
        whole["eventTime"] = {**whole.get("eventTime", {}), **ours.event_time()}
    whole["headrace"] = ours.headrace() | {"latencyMs": ours.latency(whole.get("eventTime", {}))}
    return whole
