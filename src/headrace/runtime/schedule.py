"""Which Spark jobs a step of a version needs, and where each operator's results go. Pure: no Spark, no clock, no I/O.

A version has two steps. In the first, the batch's rows run through the graph. The second, the flush, closes windows and timers that are
due. Each step is a list of jobs. A job is a chain of operators: results go directly from one to the next, with a shuffle before each.

    plan_step(shapes)              the batch's rows: operators that read sources, and those behind operators that emit at once
    plan_step(shapes, due=...)     the flush: operators with something due, and all behind them
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from headrace.ids import OperatorId


@dataclass(frozen=True)
class Next:
    """Results go on to another operator inside the same Spark job."""

    operator: OperatorId


@dataclass(frozen=True)
class Staged:
    """Results are written to files, because several operators read them, or a sink that gets them after the commit."""


@dataclass(frozen=True)
class ToSink:
    """Results go directly to a sink that keeps nothing, before the commit."""

    sink: int


Destination = Next | Staged | ToSink


@dataclass(frozen=True)
class OperatorShape:
    """What the schedule must know about an operator."""

    id: OperatorId
    upstream: tuple[OperatorId, ...] = ()
    """Operators whose results it reads."""
    reads_source: bool = False
    only_reader: OperatorId | None = None
    """The only reader of its results, if that is an operator that reads nothing else."""
    emits_at_once: bool = False
    """True if a batch's rows give results in the same step, without waiting for the watermark."""
    sink: int | None = None
    """The only reader of its results, if that is a sink that may get them before the commit."""


@dataclass(frozen=True)
class Stage:
    """One operator's part of a job."""

    operator: OperatorId
    destination: Destination


@dataclass(frozen=True)
class Job:
    """One Spark job: a chain of operators, the first one first."""

    stages: tuple[Stage, ...]
    needs: frozenset[OperatorId]
    """Operators whose results it reads from files. Their jobs must run first."""

    @property
    def last(self) -> Stage:
        """The last operator of the chain."""
        return self.stages[-1]


def plan_step(shapes: Sequence[OperatorShape], due: Collection[OperatorId] | None = None) -> tuple[Job, ...]:
    """The jobs of a step, in an order in which they can run. In `shapes`, each operator comes after those that it reads.

    >>> chain = [OperatorShape("dedup", reads_source=True, only_reader="count", emits_at_once=True), OperatorShape("count", ("dedup",))]
    >>> for job in plan_step(chain):
    ...     print([(stage.operator, stage.destination) for stage in job.stages])
    [('dedup', Next(operator='count')), ('count', Staged())]
    >>> [job.last.operator for job in plan_step(chain, due={"count"})]
    ['count']
    """
    active = _fed(shapes) if due is None else _flushed(shapes, due)
    by_id = {shape.id: shape for shape in shapes if shape.id in active}
    destinations = {name: _destination(shape, active, is_flush=due is not None) for name, shape in by_id.items()}
    before = {to.operator: name for name, to in destinations.items() if isinstance(to, Next)}
    jobs = []
    for name, destination in destinations.items():
        if isinstance(destination, Next):
            continue
        chain = [name]
        while chain[0] in before:
            chain.insert(0, before[chain[0]])
        needs = frozenset(up for each in chain for up in by_id[each].upstream if up in active and up not in chain)
        jobs.append(Job(tuple(Stage(each, destinations[each]) for each in chain), needs))
    return tuple(jobs)


def _fed(shapes: Sequence[OperatorShape]) -> set[OperatorId]:
    """Operators that get rows in the first step: from sources, or from operators that emit at once."""
    fed: dict[OperatorId, OperatorShape] = {}
    for shape in shapes:
        if shape.reads_source or any(up in fed and fed[up].emits_at_once for up in shape.upstream):
            fed[shape.id] = shape
    return set(fed)


def _flushed(shapes: Sequence[OperatorShape], due: Collection[OperatorId]) -> set[OperatorId]:
    """Operators with something due, and all operators downstream of them."""
    flushed: set[OperatorId] = set()
    for shape in shapes:
        if shape.id in due or any(up in flushed for up in shape.upstream):
            flushed.add(shape.id)
    return flushed


def _destination(shape: OperatorShape, active: set[OperatorId], is_flush: bool) -> Destination:
    # The flush of the first operator of a chain is mostly small. Its results are staged, so that the driver can do it without a job.
    goes_on = any(up in active for up in shape.upstream) if is_flush else shape.emits_at_once
    if goes_on and shape.only_reader in active:
        assert shape.only_reader is not None
        return Next(shape.only_reader)
    return Staged() if shape.sink is None else ToSink(shape.sink)
