"""Watches both lanes from outside, by their checkpoints, and records what happens."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.control.batch_report import BatchReport
from headrace.control.observing import Batch
from headrace.dashboard.queries import Queries, Shown
from headrace.demo.calls import HOT_FROM, HOT_SHARE, HOT_UNTIL, CallWriter
from headrace.demo.captions import many
from headrace.demo.commits import CommitLog, Finished
from headrace.demo.folder import DemoFolder
from headrace.demo.lane import ELASTIC, STATIC
from headrace.demo.measure import Arrival, Done, Mark, Point, Recording
from headrace.ids import SLOTS
from headrace.runtime.checkpoint import Checkpoint

HEAT_BATCHES = 5
"""The heat map shows the rows of so many batches."""


@dataclass(frozen=True, eq=False)
class Heat:
    """The rows of each slot lately, and who owns it."""

    rows: npt.NDArray[np.float64]
    owners: npt.NDArray[np.int64]


@dataclass
class Watcher:
    """Reads what the lanes have written since the last look."""

    folder: DemoFolder
    writer: CallWriter
    queries: Queries
    """The monitor's queries. The elastic lane is added when it has a checkpoint."""
    shown: Shown | None = None
    begin_s: float = 0.0
    """When the demo began, by the clock; 0 while the lanes warm up."""
    marks: list[Mark] = field(default_factory=list)
    _batches: dict[int, Batch] = field(default_factory=dict)
    _busy: dict[int, float | None] = field(default_factory=dict)
    _changes: int = 0

    def __post_init__(self) -> None:
        self.logs = {lane: CommitLog(self.folder.checkpoint(lane)) for lane in (STATIC, ELASTIC)}

    def update(self) -> None:
        for log in self.logs.values():
            log.update()
        if self.shown is None:
            checkpoint = Checkpoint(str(self.folder.checkpoint(ELASTIC)))
            if not checkpoint.is_there:
                return
            self.shown = self.queries.add(checkpoint)
        self.shown.refresh()
        self._busy.update({each["v"]: each.get("busy") for each in self.shown.points})
        for body in self.shown.progress():
            if "headrace" in body and int(body["headrace"]["version"]) not in self._batches:
                self._take(body)
        self._note_changes()

    def _take(self, body: dict[str, Any]) -> None:
        report = BatchReport.from_json(body["headrace"])
        # A batch that only delivered its results again, after a crash, has no work of instances to show.
        if not report.replayed:
            self._batches[report.version] = Batch.of(report)

    def _note_changes(self) -> None:
        assert self.shown is not None
        # What the demo has asked for has a mark of its own.
        changes = [each for each in self.shown.events if each["kind"] == "change" and not str(each["why"]).startswith("rebalance")]
        for each in changes[self._changes :]:
            before, after, why = each["instancesBefore"], each["instances"], _short(str(each["why"]))
            text = f"{many(each['slotsMoved'], 'slot')} moved" if before == after else f"{before} → {after} instances"
            self.note("moved" if before == after else "change", f"{text}: {why}", each["t"])
        self._changes = len(changes)

    def note(self, kind: str, text: str, at_s: float) -> None:
        """Remember something that happened at this time of the clock."""
        self.marks.append(Mark(round(at_s - self.begin_s, 2), kind, text))

    def note_hot(self, seconds: float) -> None:
        """Note when the hot customer comes and goes."""
        for kind, part, text in (
            ("hot", HOT_FROM, f"a hot key: one customer now makes {HOT_SHARE:.0%} of all calls"),
            ("cool", HOT_UNTIL, "the hot customer is as before"),
        ):
            at_s = self.begin_s + part * seconds
            if self.writer.second >= part * seconds and not any(mark.kind == kind for mark in self.marks):
                self.note(kind, text, at_s)

    def answered(self, lane: str) -> int:
        """How many calls a lane has answered."""
        finished = self.logs[lane].finished
        return self._rows(finished[-1], self._cumulated()) if finished else 0

    @property
    def heat(self) -> Heat | None:
        """The heat map of the elastic lane; None if there is nothing to show."""
        newest = [self._batches[version] for version in sorted(self._batches)[-HEAT_BATCHES:]]
        if not newest:
            return None
        rows = np.zeros(SLOTS)
        for batch in newest:
            rows += batch.operators[0].rows_per_slot
        return Heat(rows, newest[-1].operators[0].owners)

    def recording(self, seconds: float) -> Recording:
        """Everything until now, with times since the beginning."""
        arrivals = tuple(Arrival(a.at_s - self.begin_s, a.rows) for a in list(self.writer.arrivals))
        done = {lane: self._done(log.finished) for lane, log in self.logs.items()}
        points = tuple(self._point(version) for version in sorted(self._batches))
        warm = sum(a.rows for a in arrivals if a.at_s < 0)
        marks = tuple(sorted(self.marks, key=lambda mark: mark.at_s))
        return Recording(seconds, arrivals, done[STATIC], done[ELASTIC], points, marks, warm)

    def _cumulated(self) -> list[int]:
        return [0, *np.cumsum([a.rows for a in list(self.writer.arrivals)]).tolist()]

    def _rows(self, finished: Finished, cumulated: list[int]) -> int:
        """The calls until the end of a batch. Files were published in order, each with the calls of a tick."""
        return cumulated[min(finished.upto, len(cumulated) - 1)] if self.writer.by_files else finished.upto

    def _done(self, finished: list[Finished]) -> tuple[Done, ...]:
        cumulated = self._cumulated()
        return tuple(Done(each.at_s - self.begin_s, self._rows(each, cumulated)) for each in finished)

    def _point(self, version: int) -> Point:
        batch = self._batches[version]
        operator = batch.operators[0]
        total, slot = float(operator.rows.sum()), int(operator.rows_per_slot.argmax())
        busy = self._busy.get(version)
        if not total or not operator.rows_per_slot.any():
            return Point(batch.end_s - self.begin_s, len(operator.rows), busy)
        hot, owner = operator.rows_per_slot[slot] / total, operator.rows[operator.owners[slot]] / total
        return Point(batch.end_s - self.begin_s, len(operator.rows), busy, slot, float(hot), float(owner), int(total))


def _short(why: str) -> str:
    """The beginning of a reason.

    >>> _short("elastic-manager: Utilisation 152% > 90% (scan and combine 2%, sum 150%): scale out 1 → 3 (expected 52%)")
    'Utilisation 152% > 90%'
    """
    return why.removeprefix("elastic-manager: ").split(" (")[0].split(": ")[0]
