"""Load shedding in a running query: which plan of drops a batch gets, and the plans themselves, made ahead in a thread.

    batch ends --measured--> costs --> plans for batches of many sizes        in a thread of its own
    batch begins --rows expected--> look up the plan --> drops, in the manifest and in the journal

A batch takes the rows that came while the batch before it ran. A row waits for at most that batch and then for its own. So batches that
take half the deadline keep it. Rows are dropped only as far as that needs, and never more than the user allows.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from headrace.compile.dataflow import Dataflow, places_of, source_of
from headrace.compile.shedding import Dropping
from headrace.control.governor import Entry, Outcome, logged
from headrace.control.shedding.costs import Costs, ShedBatch, fitted
from headrace.control.shedding.table import Goals, PlanTable, planned, probed_place
from headrace.control.wording import percent
from headrace.errors import QueryError
from headrace.graph.shedding import By
from headrace.ids import InputId, OperatorId, Version
from headrace.logs import logger
from headrace.runtime.progress import BatchProgress
from headrace.runtime.shed_report import Shed
from headrace.state.drops import SCALE, Drop, Drops, ShedId
from headrace.state.manifest import Manifest

_log = logger(__name__)

DEADLINE_S = 30.0
"""The deadline if the user gives none."""
HEADROOM = 0.9
"""Batches are planned to take this share of what they may, because predictions err."""
BATCHES_MAX = 40
"""The costs are fitted to the last so many batches."""
COSTS_DIFFER = 0.04
"""Plans are made anew when a cost has changed by this share."""
MIX_DIFFERS = 0.1
QUANTUM = SCALE // 200
"""Thresholds are multiples of half a percent, so that few plans of Spark's differ in them."""
TOLD = 0.05
"""A change of the share that is kept is logged from here on."""
RATES_KEPT = 3
"""The rate is that of the last so many batches."""
WORTHS_FADE = 0.5
"""The weight of what rows were worth before, against the last batch."""
DRAIN_S = 10.0
"""Rows that were left behind should be processed within this many seconds."""


@dataclass(frozen=True)
class ShedSettings:
    """What the user asked for, apart from the places."""

    weights: tuple[float, ...]
    """By sink."""
    deadline_s: float | None
    trigger_s: float
    where: str

    @property
    def budget_s(self) -> float:
        """How long a batch may take, so that rows keep the deadline. Raises an error if the trigger alone takes longer."""
        deadline_s = self.deadline_s or DEADLINE_S
        budget_s = max(deadline_s / 2 if self.trigger_s <= deadline_s / 2 else 0.0, min(self.trigger_s, deadline_s - self.trigger_s))
        if budget_s <= 0:
            raise QueryError(
                where=self.where,
                wanted=f"a deadline beyond the trigger interval of {self.trigger_s:g} s, for which rows wait",
                found=f"{deadline_s:g} s",
                hint="give a shorter trigger interval, or none",
            )
        return HEADROOM * budget_s


class Shedder:
    """Chooses what each batch drops, and learns from what batches cost."""

    def __init__(self, flow: Dataflow, settings: ShedSettings, instances: Callable[[], Mapping[OperatorId, int]]) -> None:
        self.flow, self.settings, self._instances = flow, settings, instances
        self._reads, feeding = places_of(flow)
        self._sources = {place: source_of(flow, place) for place in flow.sheds}
        sinks = {str(at): (weight, places) for at, (weight, places) in enumerate(zip(settings.weights, feeding, strict=True))}
        losses = {place: step.max_loss for place, step in flow.sheds.items()}
        self.goals = Goals(losses, sinks, settings.budget_s, settings.deadline_s)
        self.entries: tuple[Entry, ...] = ()
        """The log of decisions, oldest first."""
        self._undrained: list[Entry] = []
        self._table: PlanTable | None = None
        """Replaced as a whole by the planning thread."""
        self._chosen: tuple[Version, Drops | None] | None = None
        self._told: dict[ShedId, float] = {}
        self._expected_s, self._lookup_us = 0.0, 0.0
        self._worths: dict[ShedId, tuple[float, ...]] = {}
        self._rates: deque[float] = deque(maxlen=RATES_KEPT)
        self._last: BatchProgress | None = None
        self._batches: deque[ShedBatch] = deque(maxlen=BATCHES_MAX)
        self._plans, self._shed_batches = 0, 0
        self._costs: tuple[Costs, Mapping[OperatorId, int]] | None = None
        """The last costs, and the numbers of instances that they hold for."""
        self._woken, self._ended = threading.Event(), False
        for source, identity in flow.identities.items():
            _log.info("rows of %s that may be dropped are identified by %s", source, identity)

    def start(self) -> None:
        threading.Thread(target=self._run, name="headrace-shedding", daemon=True).start()

    def stop(self) -> None:
        self._ended = True
        self._woken.set()

    def log(self) -> tuple[Entry, ...]:
        """The decisions, oldest first."""
        return self.entries

    def drain(self) -> tuple[Entry, ...]:
        """The log entries since the last call."""
        drained, self._undrained = tuple(self._undrained), []
        return drained

    # Before a batch.

    def choose(self, version: Version) -> Drops | None:
        """What a version drops. Asked again about the same version, it gives the same answer."""
        if self._chosen is None or self._chosen[0] != version:
            self._chosen = version, self._looked_up(version)
        return self._chosen[1]

    def _looked_up(self, version: Version) -> Drops | None:
        table, expected = self._table, self._rows_expected(time.time())
        if table is None or not expected:
            self._expected_s = 0.0
            return None
        began = time.perf_counter()
        found, probed = table.look_up(expected), None
        plan, keep, holds = found if found is not None else (0, {}, True)
        if found is not None:
            probed, self._shed_batches = probed_place(self._shed_batches, list(self.goals.max_loss)), self._shed_batches + 1
            keep = table.probe(expected, probed) if probed is not None and holds else keep
        self._lookup_us = (time.perf_counter() - began) * 1e6
        drops = None if found is None else Drops(plan, {place: self._drop(place, share) for place, share in keep.items() if share < 1})
        self._expected_s = table.seconds(expected, keep)
        if found is None or probed is None:
            self._tell(version, table, expected, plan, keep, holds)
        return drops if drops is not None and drops.places else None

    def _drop(self, place: ShedId, keep: float) -> Drop:
        worths = self._worths.get(place, ())
        if self.flow.sheds[place].by is By.WORTH and worths:
            cut = worths[min(len(worths) - 1, int((1 - keep) * (len(worths) - 1)))]
            above, equal = (sum(test) / len(worths) for test in ([w > cut for w in worths], [w == cut for w in worths]))
            return Drop(_threshold((keep - above) / equal if equal else 1.0), cut)
        # The whole place may be dropped only if the user allows it, so rounding must not go below.
        least = 1 - self.goals.max_loss[place]
        return Drop(max(_threshold(keep), round(least * SCALE)))

    def _rows_expected(self, now_s: float) -> float:
        """How many rows the next batch will have: those that wait, or those that came since the last batch began."""
        last = self._last
        if last is None:
            return 0.0
        rate = sum(self._rates) / len(self._rates) if self._rates else 0.0
        begin_s, end_s, _ = last.times_s
        if last.backlog.rows_left:
            # Batches are limited. They must be so short that as many rows are processed as come, and those that were left besides.
            return max(float(last.rows), (rate + last.backlog.rows_left / DRAIN_S) * self.goals.budget_s)
        if last.backlog.rows is not None:
            # What waited at the end of the last batch is known, and a little has come since.
            return last.backlog.rows + rate * (now_s - end_s) / 2
        return rate * (now_s - begin_s)

    def _tell(self, version: Version, table: PlanTable, rows: float, plan: int, keep: Mapping[ShedId, float], holds: bool) -> None:
        """Log what a batch drops, if that differs from what the last ones dropped."""
        now = {place: keep.get(place, 1.0) for place in self.goals.max_loss}
        before = {place: self._told.get(place, 1.0) for place in now}
        begins_or_ends = any((now[place] < 1) != (before[place] < 1) for place in now)
        if not begins_or_ends and all(abs(now[place] - before[place]) < TOLD for place in now):
            return
        self._told = now
        dropped = ", ".join(f"{percent(1 - share)} of {place}" for place, share in now.items() if share < 1)
        costs, budget_s = table.costs, self.goals.budget_s
        whole_s = table.seconds(rows, {})
        why = f"{rows:,.0f} rows would take {whole_s:.2f} s, and a batch may take {budget_s:.2f} s"
        if self.goals.deadline_s is not None:
            why += f" for the deadline of {self.goals.deadline_s:g} s"
        why += f" (fixed {costs.fixed_s:.2f} s, scan {costs.scan_s * 1e6:.2f} µs a row, "
        why += ", ".join(f"{place} {cost * 1e6:.2f} µs a row" for place, cost in costs.kept_s.items()) + ")"
        if not holds:
            why += "; more must not be dropped, so batches take longer"
        what = f"plan {plan}: drop {dropped}" if dropped else "drop nothing"
        entry = Entry(time.time(), None, what, Outcome.PERFORMED, f"Batch {version}: {why}", 0, 0, last_s=time.time())
        self.entries = logged(self.entries, entry)
        self._undrained.append(entry)
        _log.info("%s; %s", what, entry.why)

    # After a batch.

    def shed(self, manifest: Manifest, dropping: Dropping) -> Shed:
        """What a version dropped, for its progress."""
        counted = dict(dropping.counted)
        arrived, kept = {p: each.arrived for p, each in counted.items()}, {p: each.kept for p, each in counted.items()}
        offered = {}
        for op, places in self._reads.items():
            left = sum(kept.get(place, 0) for place in places)
            if left:
                offered[op] = sum(arrived.get(place, 0) for place in places) / left
        weights = {sink: weight for sink, (weight, _) in self.goals.sinks.items()}
        delivered = self.goals.delivered(arrived, kept)
        expected_s = self._expected_s if dropping.counted else 0.0
        return Shed(manifest.drops, counted, delivered, weights, self.goals.deadline_s, expected_s, self._lookup_us, offered)

    def offer(self, progress: BatchProgress, shed: Shed) -> None:
        """Learn from a batch that has ended. The loop calls this, and does not wait for plans."""
        begin_s, end_s, _ = progress.times_s
        last, self._last = self._last, progress
        if progress.replayed or not shed.counted:
            return
        if last is not None:
            span_s = begin_s - last.times_s[0]
            more = (progress.backlog.rows_left or 0) - (last.backlog.rows_left or 0)
            self._rates.append(max(0.0, (self._scanned(shed) + more) / max(span_s, 1e-3)))
        for place, each in shed.counted.items():
            # A batch shows a sample of its rows, so the batches before count too.
            earlier = self._worths.get(place, ()) or each.worths
            if each.worths:
                self._worths[place] = tuple((1 - WORTHS_FADE) * a + WORTHS_FADE * b for a, b in zip(each.worths, earlier, strict=True))
        # What Spark does between two batches that follow one another belongs to the cost of a batch.
        gap_s = begin_s - last.times_s[1] if last is not None else 0.0
        gap_s = gap_s if gap_s < max(0.5, self.settings.trigger_s / 10) and not self.settings.trigger_s else 0.0
        report = progress.report()
        busiest: dict[OperatorId, float] = {}
        for work in report.instances:
            busiest[work.operator] = max(busiest.get(work.operator, 0.0), work.busy_s)
        arrived = {place: float(each.arrived) for place, each in shed.counted.items()}
        kept = {place: float(each.kept) for place, each in shed.counted.items()}
        counts = {op: routing.instances for op, routing in progress.routing.items()}
        took_s, cold = end_s - begin_s + gap_s, last is None
        self._batches.append(ShedBatch(took_s, report.work_s, self._scanned(shed), arrived, kept, busiest, counts, cold))
        self._woken.set()

    def _scanned(self, shed: Shed) -> float:
        """The rows of the sources: of each the most that arrived at one place."""
        most: dict[InputId, int] = {}
        for place, each in shed.counted.items():
            source = self._sources[place]
            most[source] = max(most.get(source, 0), each.arrived)
        return float(sum(most.values()))

    # In the thread.

    def _run(self) -> None:
        while True:
            self._woken.wait()
            self._woken.clear()
            if self._ended:
                return
            try:
                self.plan()
            except Exception:
                # The query goes on with the plans that it has.
                _log.warning("plans of drops could not be made", exc_info=True)

    def plan(self) -> None:
        """Fit the costs to the last batches, and make plans anew if they have changed."""
        now, batches = dict(self._instances()), list(self._batches)
        before = self._costs[0] if self._costs is not None and self._costs[1] == now else None
        costs = fitted(batches, self._reads, now, before)
        if costs is None:
            return
        self._costs = costs, now
        scanned = sum(each.scanned for each in list(self._batches)[-RATES_KEPT:])
        arrived = {p: sum(each.arrived.get(p, 0.0) for each in list(self._batches)[-RATES_KEPT:]) for p in self.goals.max_loss}
        if not scanned or not self._is_new(costs, scanned, arrived):
            return
        table = planned(costs, self.goals, scanned, arrived, self._plans + 1)
        self._plans += max(1, len(table.levels))
        self._table = table

    def _is_new(self, costs: Costs, scanned: float, arrived: Mapping[ShedId, float]) -> bool:
        table = self._table
        if table is None or table.costs.kept_s.keys() != costs.kept_s.keys() or table.costs.differs(costs, COSTS_DIFFER):
            return True
        return any(abs(rows / scanned - table.arrived[place] / table.scanned) > MIX_DIFFERS for place, rows in arrived.items())


def _threshold(keep: float) -> int:
    """The threshold that keeps this share, rounded to a quantum.

    >>> _threshold(0.6377), _threshold(1.2), _threshold(0.0)
    (640000, 1000000, 0)
    """
    return max(0, min(SCALE, round(keep * SCALE / QUANTUM) * QUANTUM))
