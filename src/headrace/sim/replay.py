"""Replays the recorded progress of a real query, to show what another policy or other thresholds would have decided.

Lines of progress JSON (``json.dumps`` of each of ``query.recentProgress``) become batch reports, observations and decisions, by the same
functions as in a running query. The query is observed after each batch, and once a period while no batch came.

A decision that would have been performed changes later observations: each slot costs what was recorded, and an instance costs what its
slots do. This is right as long as utilisation was below 1. The record does not show what an overload would have cost with more instances,
so a heavy overload looks smaller than it was.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

import numpy as np

from headrace.control.batch_report import BatchReport
from headrace.control.decisions import MoveSlots, Rescale, owners_after
from headrace.control.elastic import Elastic
from headrace.control.governor import Entry, Governor, Outcome, entry_of, logged
from headrace.control.observation import Observation, OperatorLoad, Owners, loads_of
from headrace.control.observing import Batch, observe
from headrace.errors import QueryError
from headrace.ids import OperatorId
from headrace.state.routing import Routing
from headrace.state.slots import ranges_of

IDLE_S_MIN = 0.1
"""Gaps between batches that are shorter than this are not idle time, because Spark polls its sources more often."""


@dataclass(frozen=True)
class ReplayedMoment:
    """The observation at a moment, as it would have been, and the number of instances after the decisions."""

    at_s: float
    observation: Observation
    instances: dict[OperatorId, int]


@dataclass
class Replayed:
    """The outcome of a replay: the log of decisions, and what was observed at each moment."""

    log: tuple[Entry, ...] = ()
    moments: list[ReplayedMoment] = field(default_factory=list)

    @property
    def performed(self) -> list[Entry]:
        return [entry for entry in self.log if entry.outcome is Outcome.PERFORMED]


def read_batches(lines: Iterable[str]) -> list[Batch]:
    """Read batches from lines of JSON: the progress of a query, or only ``progress["headrace"]``.

    Batches that a restart only delivered again are left out, because they did no work.
    """
    found = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            progress = json.loads(line)
        except ValueError as wrong:
            raise _no_progress(f"line {number}", wrong) from None
        found += batches_of([progress], f"line {number}")
    return sorted(found, key=lambda batch: batch.version)


def batches_of(progresses: Iterable[Mapping[str, Any]], where: str = "replay") -> list[Batch]:
    """The batches of recorded progresses, oldest first, without those that a restart only delivered again."""
    found = []
    try:
        for progress in progresses:
            report = BatchReport.from_json(progress.get("headrace", progress))
            if not report.replayed:
                found.append(replace(Batch.of(report), spark_s=_spark_s(progress)))
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as wrong:
        raise _no_progress(where, wrong) from None
    return sorted(found, key=lambda batch: batch.version)


def _no_progress(where: str, wrong: Exception) -> QueryError:
    hint = "write json.dumps(progress) of each of query.recentProgress to a line of its own"
    return QueryError(where=where, wanted="the progress of a Headrace query, as JSON", found=f"{type(wrong).__name__}: {wrong}", hint=hint)


def _spark_s(progress: Mapping[str, Any]) -> tuple[float, float] | None:
    """When Spark began and ended its work on a batch; None if the record does not have Spark's part."""
    took_ms = progress.get("durationMs", {}).get("triggerExecution")
    if took_ms is None:
        return None
    begin_s = datetime.fromisoformat(progress["timestamp"]).timestamp()
    return begin_s, begin_s + took_ms / 1000


def moments(batches: Sequence[Batch], period_s: float) -> Iterator[tuple[int, float]]:
    """The moments at which the query is observed: the number of batches that have ended, and the time in seconds."""
    for count, batch in enumerate(batches, 1):
        yield count, batch.end_s
        if count < len(batches):
            following = batches[count]
            done_s = batch.spark_s[1] if batch.spark_s else batch.end_s
            until_s = following.spark_s[0] if following.spark_s else following.begin_s
            # Spark's work before and after a batch is not idle time.
            ticks = int((until_s - batch.end_s) // period_s) if until_s - done_s > IDLE_S_MIN else 0
            yield from ((count, batch.end_s + period_s * tick) for tick in range(1, ticks + 1))


def replay(batches: Sequence[Batch], settings: Elastic) -> Replayed:
    """Let a policy decide on recorded batches."""
    most = max((len(each.busy_s) for batch in batches for each in batch.operators), default=1)
    settings = settings.on(most)
    policy = settings.chosen()
    memory, governor, found = policy.first, Governor(settings), Replayed()
    owners: dict[OperatorId, tuple[Owners, int]] = {}
    for count, at_s in moments(batches, settings.period_s):
        recorded = observe(batches[:count], at_s, settings.period_s)
        if recorded is None:
            continue
        loads = tuple(as_if(load, *owners.get(load.operator, (load.owners, load.instances))) for load in recorded.operators)
        seen = replace(recorded, operators=loads, path=None if recorded.path is None else recorded.path.with_loads(loads))
        decisions, memory = policy.decide(seen, memory)
        now = {load.operator: load for load in seen.operators}
        for decision in decisions:
            outcome = governor.judge(decision, at_s)
            operator = getattr(decision, "operator", None)
            before = now[operator].instances if operator in now else 0
            found.log = logged(found.log, entry_of(decision, outcome, before, at_s))
            if outcome is Outcome.PERFORMED and isinstance(decision, Rescale | MoveSlots):
                governor = governor.changed(decision.operator, at_s)
                owners[decision.operator] = dealt(now[decision.operator], decision)
        counts = {name: owners.get(name, (None, load.instances))[1] for name, load in now.items()}
        found.moments.append(ReplayedMoment(at_s, seen, counts))
    return found


def dealt(load: OperatorLoad, decision: Rescale | MoveSlots) -> tuple[Owners, int]:
    """Owners and number of instances after a decision. If it does not say which slots move, they are assigned evenly by load."""
    instances = decision.instances if isinstance(decision, Rescale) else load.instances
    if decision.moves:
        return owners_after(load.owners, decision.moves), instances
    ranges = tuple(ranges_of(np.flatnonzero(load.owners == at)) for at in range(load.instances))
    return Routing(ranges).rescaled(instances, load.slot_cpu()).table(), instances


def as_if(load: OperatorLoad, owners: Owners, instances: int) -> OperatorLoad:
    """The load as it would have been with other owners of the slots.

    >>> load = OperatorLoad(OperatorId("sum"), np.array([0.8]), np.zeros(4096, dtype=np.int64), np.ones(4096))
    >>> as_if(load, np.arange(4096) % 2, 2).cpu.round(3).tolist()
    [0.4, 0.4]
    """
    if instances == load.instances and bool((owners == load.owners).all()):
        return load
    cost = load.slot_cpu()
    share = loads_of(owners, cost, instances)
    part = share / max(float(share.sum()), 1e-300) if share.any() else np.full(instances, 1.0 / instances)
    rows_in, rows_out, queue, state = (
        part * float(each.sum()) for each in (load.rows_in_per_s, load.rows_out_per_s, load.queue_rows, load.state_bytes)
    )
    return OperatorLoad(load.operator, np.minimum(1.0, share), owners, load.rows_per_slot, rows_in, rows_out, queue, state)
