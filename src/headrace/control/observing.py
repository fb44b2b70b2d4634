"""From what batches did to what policies see: the utilisation of instances that only work when a batch comes.

An instance is *busy* while its task runs: from its first row to its report. That is wall-clock time, in which the task holds a core: work
of the JVM for it and waiting for the disk count, as they keep the core from others; CPU time of the task's Python process would miss both.

The time that was *available* to it is the time in which its rows came: from the beginning of a batch to the beginning of the next,
for a batch takes what has come since the one before was cut. Over the batches of a period:

    utilisation = busy / available

This is what the instance would need, by what it has: 1 is the most that can be kept up, and an overload shows as what it is. Twice the rows
that can be processed make batches double from one to the next, and utilisation 2 from the first of them on; the share of the running time
would creep up to 1 over ever longer batches. While a query catches up, its batches are busy with rows that came over a longer time, and
utilisation is as low as it will be.

- With a trigger the pause until the next batch is idle time, and counts as available.
- Without one a batch follows a batch, and the query is never idle, however light its load. Spark's own two rates, rows per second that came
  in and that were processed, are then equal, and say nothing. Instances do: what a batch spends on planning, committing and delivering is
  time in which they wait, and as batches grow with the load that time becomes a smaller part of all. At the rate that instances cannot
  exceed, their utilisation is 1; near it batches get long, which is what a target below 1 is for.
- A source that is given to batches in portions (``maxFilesPerTrigger``) breaks that: batches cannot grow. Where a batch leaves rows that
  had come before the batch began, only the busiest instance's own time, and pauses for a trigger, were available.

A query that has no rows to process has no batches either; it is observed all the same, as idle.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from headrace.control.observation import Floats, Observation, OperatorLoad, Owners
from headrace.ids import SLOTS, OperatorId
from headrace.state.routing import Routing

UTILISATION_MAX = 4.0
"""More is not believed: a single batch that was held up for seconds must not multiply instances."""
DRAIN_S = 30.0
"""Rows that were left behind are to be worked off within so many seconds."""
ON_TIME = 1.1
"""A batch that begins within this many trigger intervals after the one before has waited for its trigger."""


@dataclass(frozen=True, eq=False)
class OperatorBatch:
    """One operator's part of a batch; arrays have an entry per instance."""

    operator: OperatorId
    epoch: int
    owners: Owners
    busy_s: Floats
    rows: Floats
    rows_out: Floats
    state_bytes: Floats
    rows_per_slot: Floats
    hosts: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Batch:
    """What a batch did, from the progress that Headrace reports of it."""

    version: int
    begin_s: float
    end_s: float
    operators: tuple[OperatorBatch, ...]
    inputs: Mapping[OperatorId, tuple[OperatorId, ...]]
    rows_left: float = 0.0
    """Rows that waited before the batch began, and that it did not take; 0 also where nobody can tell."""
    trigger_s: float = 0.0
    """The interval at which batches are to begin; 0: one after the other."""
    spark_s: tuple[float, float] | None = None
    """When Spark began with the batch and was done with it, where its part of the progress is known: it works before and after ours."""

    @property
    def epochs(self) -> tuple[int, ...]:
        return tuple(each.epoch for each in self.operators)

    @classmethod
    def read(cls, headrace: Mapping[str, Any]) -> Batch:
        """From ``progress["headrace"]``, as it is or as it comes back from JSON."""
        about = headrace["observation"]
        operators = tuple(_operator(name, body, headrace["instances"]) for name, body in about["routing"].items())
        inputs = {OperatorId(name): tuple(map(OperatorId, each)) for name, each in about["inputs"].items()}
        left = float(headrace["backlog"].get("rowsLeft") or 0)
        return cls(headrace["version"], about["beginS"], about["endS"], operators, inputs, left, about["triggerS"])

    def resting(self, routing: Mapping[OperatorId, Routing]) -> Batch:
        """The same moment, had the batch done nothing by this routing: what a query is that has been quiet since it was changed."""
        operators = tuple(_operator(each.operator, routing[each.operator].to_json(), ()) for each in self.operators)
        return replace(self, begin_s=self.end_s, operators=operators, rows_left=0.0)


def _operator(name: str, body: dict[str, Any], reports: Sequence[Mapping[str, Any]]) -> OperatorBatch:
    routing = Routing.from_json(body)
    count = routing.instances
    # While windows are recreated their sides are tasks of their own, which are work of the old and of the new owner.
    owner_of = [*range(count), *(side % count for each in routing.recreations for side in (each.old, each.new))]
    sums = {key: np.zeros(count) for key in ("wallSeconds", "rows", "rowsOut", "stateBytes")}
    per_slot, hosts = np.zeros(SLOTS), [""] * count
    for report in reports:
        if report["operator"] != name:
            continue
        at = owner_of[report["instance"]]
        for key, values in sums.items():
            values[at] += report[key]
        hosts[at] = report["executor"] or report["host"]
        for slot, rows in report["rowsPerSlot"].items():
            per_slot[int(slot)] += rows
    busy, rows_in, rows_out, state = sums.values()
    return OperatorBatch(OperatorId(name), routing.epoch, routing.table(), busy, rows_in, rows_out, state, per_slot, tuple(hosts))


def observe(batches: Sequence[Batch], at_s: float, period_s: float) -> Observation | None:
    """What the batches say at a moment; None as long as there were too few of them since the start or since the last change.

    The first batch by a routing only tells when the others began: it compiles code, starts workers or fetches state.
    """
    found = _window(batches, at_s, period_s)
    if found is None:
        return None
    before, window = found
    last = batches[-1]
    span_s = last.begin_s - before.begin_s if window else at_s - before.end_s
    left = window[-1].rows_left if window else 0.0
    paused_s = _paused_s(before, window) if left > 0 else None
    loads = tuple(_load(at, last, window, span_s, paused_s) for at in range(len(last.operators)))
    # Sources offer what was taken, and what was left behind meanwhile or before.
    taken = _rows_from_outside(window)
    more = left - window[0].rows_left + left * span_s / DRAIN_S if window else 0.0
    inputs, sources = _sources(loads, last.inputs, max(0.0, 1 + more / taken) if taken else 1.0)
    return Observation(at_s, loads, inputs, sources)


def _window(batches: Sequence[Batch], at_s: float, period_s: float) -> tuple[Batch, Sequence[Batch]] | None:
    """The batches to look at, as few as make up the period, and the one before them; all by one routing."""
    for first in range(len(batches), 0, -1):
        before = batches[first - 1]
        if before.epochs != batches[-1].epochs:
            return None
        idle = first == len(batches) and at_s - before.end_s >= period_s
        if idle or batches[-1].begin_s - before.begin_s >= period_s:
            return before, batches[first:]
    return None


def _paused_s(before: Batch, window: Sequence[Batch]) -> float:
    """How long the batches of the window waited for their triggers."""
    paused = 0.0
    for earlier, batch in itertools.pairwise([before, *window]):
        if batch.trigger_s > 0 and batch.begin_s - earlier.begin_s <= ON_TIME * batch.trigger_s:
            paused += max(0.0, batch.begin_s - earlier.end_s)
    return paused


def _load(at: int, last: Batch, window: Sequence[Batch], span_s: float, paused_s: float | None) -> OperatorLoad:
    now = last.operators[at]
    each = [batch.operators[at] for batch in window]
    none = np.zeros(len(now.busy_s))
    busy = sum((one.busy_s for one in each), none)
    available_s = span_s if paused_s is None else paused_s + sum(float(one.busy_s.max()) for one in each)
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
    """Rows of the operator that read most of the sources' rows."""
    readers = {name for batch in window for name, each in batch.inputs.items() if any(OUTSIDE in source for source in each)}
    totals = [sum(float(one.rows.sum()) for batch in window for one in batch.operators if one.operator == name) for name in readers]
    return max(totals, default=0.0)


OUTSIDE = "sources of "
"""All that an operator reads from sources counts as one source of its own, for reports do not tell sources apart."""


def _sources(
    loads: tuple[OperatorLoad, ...], inputs: Mapping[OperatorId, tuple[OperatorId, ...]], wanted: float
) -> tuple[dict[OperatorId, tuple[OperatorId, ...]], dict[OperatorId, float]]:
    """Who reads whom, and what sources offer: what was taken from them, and more where rows are left behind."""
    of = {load.operator: load for load in loads}
    found = {load.operator: inputs.get(load.operator, (OperatorId(OUTSIDE + load.operator),)) for load in loads}
    rates: dict[OperatorId, float] = {}
    for name, each in found.items():
        inner = sum(float(of[source].rows_out_per_s.sum()) for source in each if source in of)
        for source in each:
            if source not in of:
                rates[source] = max(0.0, float(of[name].rows_in_per_s.sum()) - inner) * wanted
    return found, rates
