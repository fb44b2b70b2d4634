"""Turns the reports of micro-batches into observations: the utilisation of instances that only work while a batch runs.

An instance is *busy* while its task runs, from its first row to its report. This is wall-clock time, in which the task holds a core. It
includes the JVM's work for the task and waiting for the disk; the CPU time of the task's Python process would miss both.

The time *available* to an instance is the time in which its rows arrived: from the beginning of a batch to the beginning of the next,
because a batch takes the rows that arrived since the one before. Over the batches of a period:

    utilisation = busy / available

Utilisation compares what the instance needs with what it has. 1 is the most that can be sustained. With twice the rows that can be
processed, each batch takes twice as long as the one before, and utilisation is 2 from the first of them on. The share of the running time
would only creep up to 1. While a query catches up, batches are busy with rows that arrived over a longer time, so utilisation is already
as low as it will be.

- With a trigger, the pause until the next batch counts as available.
- Without a trigger, batches follow one another, and the query is never idle. Spark's two rates, rows per second in and processed, are then
  equal at any load. Instances still show the load: they wait while a batch is planned, committed and delivered, and as batches grow with
  the load, that becomes a smaller part of the time. At the highest rate that instances can sustain, utilisation is 1. Batches get long
  near it, which is why targets are below 1.
- With limited batches (``maxFilesPerTrigger``), batches cannot grow. If a batch leaves rows that had arrived before it began, only the time
  of its stages and pauses for a trigger count as available. An operator that is busy 2% of that time has a utilisation of 2%.

The stages of a batch run one after another, so each operator's utilisation alone says little: `Path` has the shares of all stages. If
operators run at the same time, in jobs of their own, they share the cores, and their shares are scaled to the time that passed.

A query without rows has no batches. It is observed as idle.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from headrace.control.batch_report import BatchReport, InstanceWork, sources_of
from headrace.control.critical_path import fixed_s
from headrace.control.observation import Floats, Observation, OperatorLoad, Owners, Path
from headrace.ids import SLOTS, InputId, OperatorId, RoutingEpoch, SourceId, Version
from headrace.state.routing import Routing

UTILISATION_MAX = 4.0
"""Higher utilisations are cut to this, so that a single batch that was delayed for seconds does not multiply instances."""
DRAIN_S = 30.0
"""Rows that were left behind should be processed within this many seconds."""
FITTED = 60
"""The fixed cost of a batch is fitted to this many batches."""
ON_TIME = 1.1
"""A batch has waited for its trigger if it begins within this many trigger intervals after the one before."""


@dataclass(frozen=True, eq=False)
class OperatorBatch:
    """One operator's part of a batch; arrays have an entry per instance."""

    operator: OperatorId
    epoch: RoutingEpoch
    owners: Owners
    busy_s: Floats
    rows: Floats
    rows_out: Floats
    state_bytes: Floats
    rows_per_slot: Floats
    hosts: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Batch:
    """The report of a batch, with the work of its tasks summed up per instance."""

    version: Version
    begin_s: float
    end_s: float
    operators: tuple[OperatorBatch, ...]
    inputs: Mapping[OperatorId, tuple[InputId, ...]]
    rows_left: float = 0.0
    """Rows that were waiting before the batch began and that it did not take; 0 if unknown."""
    trigger_s: float = 0.0
    """The trigger interval; 0 if batches follow one another."""
    spark_s: tuple[float, float] | None = None
    """When Spark began and ended its work on the batch, which includes ours; None if Spark's part of the progress is not known."""
    work_s: float = 0.0
    """Wall-clock time of the batch's jobs and of its delivery; 0 if unknown."""

    @property
    def epochs(self) -> tuple[RoutingEpoch, ...]:
        """The routing epoch of each operator. It changes when the operator's routing does."""
        return tuple(each.epoch for each in self.operators)

    @property
    def rows(self) -> float:
        """Rows that the operators got."""
        return sum(float(each.rows.sum()) for each in self.operators)

    @property
    def busiest_s(self) -> float:
        """How long the busiest instances worked, of all operators one after another."""
        return sum(float(each.busy_s.max()) for each in self.operators)

    @property
    def around_s(self) -> float:
        """The time of the jobs and of the delivery in which the busiest instances did not work: scan, combine, delivery."""
        return max(0.0, self.work_s - self.busiest_s)

    @classmethod
    def of(cls, report: BatchReport) -> Batch:
        """Sum up the work of a report's tasks per operator and instance."""
        operators = tuple(_operator(name, routing, report.instances) for name, routing in report.routing.items())
        times_s = report.begin_s, report.end_s
        batch = cls(report.version, *times_s, operators, report.inputs, report.rows_left, report.trigger_s, work_s=report.work_s)
        return batch._with_dropped(report.offered) if any(share > 1 for share in report.offered.values()) else batch

    def _with_dropped(self, offered: Mapping[OperatorId, float]) -> Batch:
        """The batch as it would have been if no rows had been dropped: policies size a query for the load that is offered."""
        whole = tuple(_scaled(each, offered.get(each.operator, 1.0)) for each in self.operators)
        more_s = sum(float(each.busy_s.max()) for each in whole) - self.busiest_s
        return replace(self, operators=whole, work_s=self.work_s + more_s if self.work_s else 0.0)

    def resting(self, routing: Mapping[OperatorId, Routing]) -> Batch:
        """A batch without work, at the end of this one and with this routing. It stands for a query that was idle since its change."""
        operators = tuple(_operator(each.operator, routing[each.operator], ()) for each in self.operators)
        return replace(self, begin_s=self.end_s, operators=operators, rows_left=0.0, work_s=0.0)


def _scaled(each: OperatorBatch, factor: float) -> OperatorBatch:
    """The work of an operator with so many times the rows."""
    rows = each.rows * factor, each.rows_out * factor, each.rows_per_slot * factor
    return replace(each, busy_s=each.busy_s * factor, rows=rows[0], rows_out=rows[1], rows_per_slot=rows[2])


def _operator(name: OperatorId, routing: Routing, tasks: Sequence[InstanceWork]) -> OperatorBatch:
    count = routing.instances
    # During a window recreation each side has a task of its own. Its work counts for the old or the new owner.
    owner_of = [*range(count), *(side % count for each in routing.recreations for side in (each.old, each.new))]
    busy_s, rows_in, rows_out, state_bytes = np.zeros((4, count))
    per_slot, hosts = np.zeros(SLOTS), [""] * count
    for task in tasks:
        if task.operator != name:
            continue
        at = owner_of[task.instance]
        busy_s[at] += task.busy_s
        rows_in[at] += task.rows
        rows_out[at] += task.rows_out
        state_bytes[at] += task.state_bytes
        hosts[at] = task.host
        for slot, rows in task.rows_per_slot:
            per_slot[slot] += rows
    return OperatorBatch(name, routing.epoch, routing.table(), busy_s, rows_in, rows_out, state_bytes, per_slot, tuple(hosts))


def observe(batches: Sequence[Batch], at_s: float, period_s: float) -> Observation | None:
    """The observation at a moment; None if there were too few batches since the start or since the last change.

    The first batch with a routing is not measured, because it compiles code, starts workers or fetches state.
    """
    found = _window(batches, at_s, period_s)
    if found is None:
        return None
    before, window = found
    last = batches[-1]
    span_s = last.begin_s - before.begin_s if window else at_s - before.end_s
    left = window[-1].rows_left if window else 0.0
    fixed = _fixed_s(batches[-FITTED:])
    around_s = sum(max(0.0, batch.around_s - fixed) for batch in window)
    available_s = _available_s(before, window, span_s, fixed, around_s) if window else span_s
    overlap = _overlap(window)
    loads = tuple(_load(at, last, window, span_s, available_s * overlap) for at in range(len(last.operators)))
    path = Path(min(UTILISATION_MAX, around_s / max(available_s, 1e-9)), {}).with_loads(loads)
    # Sources offer the rows that were taken, and those that were left behind.
    taken = _rows_from_outside(window)
    more = left - window[0].rows_left + left * span_s / DRAIN_S if window else 0.0
    inputs, sources = _sources(loads, last.inputs, max(0.0, 1 + more / taken) if taken else 1.0)
    # Before the time of the jobs was reported, a path cannot be known.
    known = any(batch.work_s for batch in window) or not window
    return Observation(at_s, loads, inputs, sources, path if known else None)


def _window(batches: Sequence[Batch], at_s: float, period_s: float) -> tuple[Batch, Sequence[Batch]] | None:
    """The fewest last batches that cover the period, and the one before them. All have the same routing; None if there are too few."""
    for first in range(len(batches), 0, -1):
        before = batches[first - 1]
        if before.epochs != batches[-1].epochs:
            return None
        idle = first == len(batches) and at_s - before.end_s >= period_s
        if idle or batches[-1].begin_s - before.begin_s >= period_s:
            return before, batches[first:]
    return None


def _fixed_s(batches: Sequence[Batch]) -> float:
    """What jobs and delivery cost however few rows a batch has. The first batch is left out, because it compiles code."""
    known = [batch for batch in batches if batch.work_s and batch.version > 0]
    return fixed_s([batch.rows for batch in known], [batch.around_s for batch in known])


def _overlap(window: Sequence[Batch]) -> float:
    """How many operators worked at the same time on average. Operators in jobs of their own share the cores."""
    work_s = sum(batch.work_s for batch in window)
    return max(1.0, sum(batch.busiest_s for batch in window if batch.work_s) / work_s) if work_s else 1.0


def _available_s(before: Batch, window: Sequence[Batch], span_s: float, fixed: float, around_s: float) -> float:
    """The time in which stages could work on the rows of these batches.

    If a batch left rows behind, batches are limited, and the time of the stages is all there is, besides pauses for a trigger.
    """
    if window[-1].rows_left > 0:
        return _paused_s(before, window) + around_s + sum(batch.busiest_s for batch in window) / _overlap(window)
    # With a trigger, the fixed cost must fit between two of them. Without, batches get longer until it does not matter.
    return max(span_s - fixed * len(window), span_s / 10) if window[-1].trigger_s else span_s


def _paused_s(before: Batch, window: Sequence[Batch]) -> float:
    """How long the batches of the window waited for their triggers."""
    paused = 0.0
    for earlier, batch in itertools.pairwise([before, *window]):
        if batch.trigger_s > 0 and batch.begin_s - earlier.begin_s <= ON_TIME * batch.trigger_s:
            paused += max(0.0, batch.begin_s - earlier.end_s)
    return paused


def _load(at: int, last: Batch, window: Sequence[Batch], span_s: float, available_s: float) -> OperatorLoad:
    now = last.operators[at]
    each = [batch.operators[at] for batch in window]
    none = np.zeros(len(now.busy_s))
    busy = sum((one.busy_s for one in each), none)
    return OperatorLoad(
        now.operator,
        np.minimum(UTILISATION_MAX, busy / max(available_s, 1e-9)),
        now.owners,
        rows_per_slot=sum((one.rows_per_slot for one in each), np.zeros(SLOTS)) / span_s,
        rows_in_per_s=sum((one.rows for one in each), none) / span_s,
        rows_out_per_s=sum((one.rows_out for one in each), none) / span_s,
        queue_rows=none + (window[-1].rows_left / len(none) if window else 0.0),
        state_bytes=now.state_bytes,
        hosts=now.hosts,
    )


def _rows_from_outside(window: Sequence[Batch]) -> float:
    """Rows that were read from sources: those of the operator that read the most."""
    readers = {name for batch in window for name, each in batch.inputs.items() if any(isinstance(source, SourceId) for source in each)}
    totals = [sum(float(one.rows.sum()) for batch in window for one in batch.operators if one.operator == name) for name in readers]
    return max(totals, default=0.0)


def _sources(
    loads: tuple[OperatorLoad, ...], inputs: Mapping[OperatorId, tuple[InputId, ...]], wanted: float
) -> tuple[dict[OperatorId, tuple[InputId, ...]], dict[SourceId, float]]:
    """The inputs of each operator, and the rows per second of each source: the rows taken, times ``wanted``.

    An operator without a load counts as a source, because policies cannot change it.
    """
    of = {load.operator: load for load in loads}
    found = {name: tuple(each if each in of else SourceId(each) for each in inputs.get(name, (sources_of(name),))) for name in of}
    rates: dict[SourceId, float] = {}
    for name, each in found.items():
        inner = sum(float(of[source].rows_out_per_s.sum()) for source in each if not isinstance(source, SourceId))
        for source in each:
            if isinstance(source, SourceId):
                rates[source] = max(0.0, float(of[name].rows_in_per_s.sum()) - inner) * wanted
    return found, rates
