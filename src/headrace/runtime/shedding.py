"""Load shedding in a running query: which plan of drops a batch gets, and the plans themselves, made ahead in a thread.

    batch ends --run times of its jobs--> costs --> plans                       in a thread of its own
    batch begins --rows expected, time left--> look up the plan --> drops, in the manifest and in the journal

Rows are dropped only as far as the deadline needs it, and never more than the user allows. How long a batch may take says
``control/shedding/pacing.py``.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from headrace.compile.dataflow import Dataflow
from headrace.compile.shed_shape import origins_of, places_of, shape_of, sources_of
from headrace.compile.shedding import Dropping
from headrace.control.governor import Entry, Outcome, logged
from headrace.control.shedding.costs import BATCHES_MAX, Costs, ShedBatch, assumed, fitted, remembered
from headrace.control.shedding.pacing import Pacing
from headrace.control.shedding.table import Goals, Mix, PlanTable, planned, probed_place
from headrace.control.wording import percent
from headrace.errors import QueryError
from headrace.graph.shedding import By
from headrace.ids import InputId, OperatorId, Version
from headrace.logs import logger, suppressed
from headrace.runtime.progress import BatchProgress
from headrace.runtime.shed_report import Shed
from headrace.spark.task_times import run_times_s
from headrace.state.drops import SCALE, Counted, Drop, Drops, ShedId
from headrace.state.manifest import Manifest

_log = logger(__name__)

DEADLINE_S = 30.0
"""The deadline if the user gives none."""
COSTS_DIFFER = 0.04
"""Plans are made anew when a cost has changed by this share."""
MIX_DIFFERS = 0.05
MEMORY = "shedding.json"
"""The file beside the manifests with the costs, for the next start."""
UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError)
KEPT_EVERY_S = 10.0
"""How often the costs are written at most."""
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
        return budget_s


@dataclass(frozen=True)
class _Ended:
    """A batch that has ended, before Spark was asked how long its tasks ran."""

    progress: BatchProgress
    shed: Shed
    cold: bool


class Shedder:
    """Chooses what each batch drops, and learns from what batches cost."""

    def __init__(self, flow: Dataflow, settings: ShedSettings, instances: Callable[[], Mapping[OperatorId, int]], directory: Path) -> None:
        self.flow, self.settings, self._instances = flow, settings, instances
        self._context = flow.session.sparkContext
        self._reads, feeding = places_of(flow)
        self._sources, self._origins = sources_of(flow), origins_of(flow)
        self._shape = shape_of(flow, self._context.defaultParallelism)
        sinks = {str(at): (weight, places) for at, (weight, places) in enumerate(zip(settings.weights, feeding, strict=True))}
        losses = {place: step.max_loss for place, step in flow.sheds.items()}
        self.goals = Goals(losses, sinks, settings.deadline_s)
        self.pacing = Pacing(settings.deadline_s or DEADLINE_S, settings.budget_s, waits=settings.trigger_s > 0)
        self.entries: tuple[Entry, ...] = ()
        """The log of decisions, oldest first."""
        self._undrained: list[Entry] = []
        self._memory = directory / MEMORY
        self._kept_s = 0.0
        self._chosen: tuple[Version, Drops | None] | None = None
        self._told: dict[ShedId, float] = {}
        self._expected_s, self._lookup_us, self._budget_s = 0.0, 0.0, 0.0
        self._worths: dict[ShedId, tuple[float, ...]] = {}
        self._rates: deque[float] = deque(maxlen=RATES_KEPT)
        self._last: BatchProgress | None = None
        self._ended_batches: deque[_Ended] = deque()
        """Those of which nothing was learned yet."""
        self._batches: deque[ShedBatch] = deque(maxlen=BATCHES_MAX)
        self._plans, self._shed_batches = 0, 0
        self._costs: Costs | None = None
        self._table: PlanTable | None = None
        """Replaced as a whole by the planning thread."""
        self._woken, self._ended, self._planning = threading.Event(), False, threading.Lock()
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

    def wants_count(self, version: Version) -> bool:
        """True for the first batch since this start, until its plan is chosen. How many rows it has must be counted."""
        return self._last is None and (self._chosen is None or self._chosen[0] != version)

    def choose(self, version: Version, counted: Mapping[ShedId, Counted] | None = None) -> Drops | None:
        """What a version drops. Asked again about it, this gives the same answer. ``counted``: the rows that come, if they were counted."""
        if self._chosen is None or self._chosen[0] != version:
            self._chosen = version, self._looked_up(version, counted)
        return self._chosen[1]

    def _looked_up(self, version: Version, counted: Mapping[ShedId, Counted] | None) -> Drops | None:
        now_s = time.time()
        expected = self._rows_expected(now_s) if counted is None else self._scanned(counted)
        table = self._first_table(counted) if self._table is None and counted else self._table
        if table is None or not expected:
            self._expected_s = 0.0
            return None
        budget_s = self._budget_s = self.pacing.budget_s(now_s)
        began = time.perf_counter()
        found, probed = table.look_up(expected, budget_s), None
        plan, keep, holds = found if found is not None else (0, {}, True)
        self._lookup_us = (time.perf_counter() - began) * 1e6
        if found is not None:
            probed, self._shed_batches = probed_place(self._shed_batches, list(self.goals.max_loss)), self._shed_batches + 1
            keep = table.probe(expected, budget_s, probed) if probed is not None and holds else keep
        drops = None if found is None else Drops(plan, {place: self._drop(place, share) for place, share in keep.items() if share < 1})
        self._expected_s = table.seconds(expected, keep)
        if found is None or probed is None:
            self._tell(version, table, expected, plan, keep, holds)
        return drops if drops is not None and drops.places else None

    def _first_table(self, counted: Mapping[ShedId, Counted]) -> PlanTable | None:
        """Plans for the first batch since this start: by what the last start has learned, or else by what is assumed.

        None if nothing was learned, and the user did not give a deadline.
        """
        with suppressed(_log, "the costs of the last start are not known", *UNREADABLE, level=logging.DEBUG):
            self._costs = remembered(json.loads(self._memory.read_text()), self._shape)
        if self._costs is None and self.goals.deadline_s is None:
            return None
        known = self._costs or assumed(self._shape, self.goals.max_loss)
        # Dropping rows makes up for none of the time in which code is compiled.
        self._table = planned(replace(known, fixed_s=0.0), self.goals, self._mix(counted), self._plans + 1)
        self._plans += len(self._table.rooms)
        return self._table

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
            return max(float(last.rows), (rate + last.backlog.rows_left / DRAIN_S) * self.pacing.whole_s)
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
        costs, budget_s = table.costs, self._budget_s
        whole_s = table.seconds(rows, {})
        why = f"{rows:,.0f} rows would take {whole_s:.2f} s, and a batch may take {budget_s:.2f} s"
        if self.goals.deadline_s is not None:
            why += f" for the deadline of {self.goals.deadline_s:g} s"
        why += f" (fixed {costs.fixed_s:.2f} s, scan {costs.scan_s * 1e6:.2f} µs a row, hand-over {costs.handed_s * 1e6:.2f} µs, "
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
        shown = (self.goals.deadline_s, expected_s, self._lookup_us)
        return Shed(manifest.drops, counted, delivered, weights, *shown, offered, dropping.tags)

    def offer(self, progress: BatchProgress, shed: Shed) -> None:
        """Learn from a batch that has ended. The loop calls this, and does not wait for plans."""
        begin_s, end_s, _ = progress.times_s
        last, self._last = self._last, progress
        self.pacing.ended(begin_s, end_s)
        if progress.replayed or not shed.counted:
            return
        if last is not None:
            span_s = begin_s - last.times_s[0]
            more = (progress.backlog.rows_left or 0) - (last.backlog.rows_left or 0)
            self._rates.append(max(0.0, (self._scanned(shed.counted) + more) / max(span_s, 1e-3)))
            self.pacing.judge(end_s - begin_s, shed.expected_s)
        for place, each in shed.counted.items():
            # A batch shows a sample of its rows, so the batches before count too.
            earlier = self._worths.get(place, ()) or each.worths
            if each.worths:
                self._worths[place] = tuple((1 - WORTHS_FADE) * a + WORTHS_FADE * b for a, b in zip(each.worths, earlier, strict=True))
        self._ended_batches.append(_Ended(progress, shed, cold=last is None))
        self._woken.set()

    def _mix(self, counted: Mapping[ShedId, Counted]) -> Mix:
        """What came with each row of the sources in a batch."""
        scanned, most = max(1.0, self._scanned(counted)), self._most_by_source(counted)
        origins = tuple((most.get(source, 0) / scanned, origin) for source, origin in self._origins.items())
        arrived = {place: each.arrived / scanned for place, each in counted.items()}
        return Mix(origins, {place: arrived.get(place, 0.0) for place in self.goals.max_loss})

    def _scanned(self, counted: Mapping[ShedId, Counted]) -> float:
        """The rows of the sources."""
        return float(sum(self._most_by_source(counted).values()))

    def _most_by_source(self, counted: Mapping[ShedId, Counted]) -> dict[InputId, int]:
        """By source: the most rows that arrived at one of its places."""
        most: dict[InputId, int] = {}
        for place, each in counted.items():
            source = self._sources[place]
            most[source] = max(most.get(source, 0), each.arrived)
        return most

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
        with self._planning:
            last: _Ended | None = None
            while self._ended_batches:
                last = self._ended_batches.popleft()
                self._batches.append(self._measured(last))
            costs = fitted(list(self._batches), self._shape, dict(self._instances()), self._costs)
            if costs is None:
                return
            self._costs = costs
            self._keep(costs)
            if last is not None and self._is_new(costs, mix := self._mix(last.shed.counted)):
                table = planned(costs, self.goals, mix, self._plans + 1)
                self._plans += len(table.rooms)
                self._table = table

    def _measured(self, ended: _Ended) -> ShedBatch:
        """A batch with the run times of its tasks, as Spark knows them."""
        progress, shed = ended.progress, ended.shed
        begin_s, end_s, _ = progress.times_s
        busy: dict[OperatorId, float] = {}
        busiest: dict[OperatorId, float] = {}
        for work in progress.report().instances:
            busy[work.operator] = busy.get(work.operator, 0.0) + work.busy_s
            busiest[work.operator] = max(busiest.get(work.operator, 0.0), work.busy_s)
        kept = {place: float(each.kept) for place, each in shed.counted.items()}
        shares = {place: each.kept / each.arrived if each.arrived else 1.0 for place, each in shed.counted.items()}
        scanned = self._scanned(shed.counted)
        handed = scanned * self._mix(shed.counted).handed(shares)
        counts = {op: routing.instances for op, routing in progress.routing.items()}
        tasks = run_times_s(self._context, shed.tags)
        return ShedBatch(end_s - begin_s, scanned, handed, kept, tasks, busy, busiest, counts, ended.cold)

    def _is_new(self, costs: Costs, mix: Mix) -> bool:
        table = self._table
        return table is None or table.costs.differs(costs, COSTS_DIFFER) or table.mix.differs(mix, MIX_DIFFERS)

    def _keep(self, costs: Costs) -> None:
        """Write the costs for the next start, now and then. Without them it assumes some."""
        if time.monotonic() - self._kept_s < KEPT_EVERY_S:
            return
        self._kept_s = time.monotonic()
        with suppressed(_log, "the costs of batches are not kept for the next start", OSError):
            temporary = self._memory.with_suffix(".tmp")
            temporary.write_text(json.dumps(costs.to_json()))
            temporary.rename(self._memory)


def _threshold(keep: float) -> int:
    """The threshold that keeps this share.

    >>> _threshold(0.6377), _threshold(1.2), _threshold(0.0)
    (637700, 1000000, 0)
    """
    return max(0, min(SCALE, round(keep * SCALE)))
