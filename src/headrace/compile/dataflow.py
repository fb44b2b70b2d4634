"""The dataflow: a user's graph, with everything in it compiled, in the order in which it runs.

All sources become one streaming DataFrame, so that one Structured Streaming query keeps all offsets in one log. If a single operator
reads all sources, the DataFrame has just the columns that the operator needs. Otherwise it is the union of the sources: each source is a
struct column, a tag says which source a row comes from, and every reader filters the batch by the tag.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, count
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from headrace.compile.boundary import Boundary, boundary
from headrace.compile.plan import StatefulPlan
from headrace.compile.sharing import Rest
from headrace.compile.shedding import NO_DROPPING, WANTED, Dials, Dropping, Observed, Place, check_count, decided, identified
from headrace.control.batch_report import sources_of
from headrace.graph.nodes import StatefulNode
from headrace.graph.shedding import By, ShedStep
from headrace.graph.steps import ObserveStep, Step, WatermarkStep
from headrace.ids import InputId, OperatorId, SourceId
from headrace.operators.kernel import OutputMode
from headrace.spark.expressions import quoted
from headrace.spark.plans import has_watermark
from headrace.state.conversion import Conversion
from headrace.state.drops import Drops, ShedId

TAG = "__headrace_source"
REDISTRIBUTE = "redistribute"
"""The name of steps that only move rows to other tasks."""
BATCH = SourceId("the batch")
"""The key of the batch's own rows, those of all sources, in a mapping of frames. The other keys are ids of operators."""


@dataclass(frozen=True)
class Branch:
    """Rows of a source or of an operator, after some stateless steps."""

    source: InputId
    steps: tuple[Step, ...] = ()

    @property
    def reads_source(self) -> bool:
        """True if it begins at a source of the query, False if at an operator."""
        return isinstance(self.source, SourceId)

    def apply(self, rows: DataFrame, dropping: Dropping = NO_DROPPING) -> DataFrame:
        """Apply the steps to rows of the source."""
        rows = dropping.taken(self.steps, rows)
        if WANTED in rows.columns and dropping.at(next(iter(self.steps), None)) is None:
            rows = rows.drop(WANTED)
        for step in self.steps:
            place = dropping.at(step)
            rows = step.apply(rows) if place is None else dropping.apply(place, rows)
        return rows

    def until(self, shed: ShedStep) -> Branch:
        """The branch up to a place where rows may be dropped, without what it drops."""
        return Branch(self.source, self.steps[: next(at for at, step in enumerate(self.steps) if step is shed)])

    @property
    def head(self) -> ShedStep | None:
        """The place that can decide about the rows of the source itself, before any steps that were moved to the batch."""
        moved = False
        for step in self.steps:
            if isinstance(step, ShedStep):
                # Each row on its own may be dropped before the other steps. A key or a worth may be made by them.
                return step if not moved or step.by is By.ROW else None
            moved = moved or isinstance(step, Rest)
            if not isinstance(step, Rest) and step.method != REDISTRIBUTE:
                break
        return None

    @property
    def sheds(self) -> tuple[ShedStep, ...]:
        """The places in it where rows may be dropped."""
        return tuple(step for step in self.steps if isinstance(step, ShedStep))

    def observed(self, rows: DataFrame) -> Iterator[tuple[str, dict[str, Any]]]:
        """What the observations among the steps measure of the rows that the branch begins at, by name."""
        for at, step in enumerate(self.steps):
            if isinstance(step, ObserveStep):
                yield step.name, step.measured(Branch(self.source, self.steps[:at]).apply(rows))

    @property
    def observes(self) -> bool:
        """True if its rows are measured for the query's progress."""
        return any(isinstance(step, ObserveStep) for step in self.steps)

    def begin(self, flow: Dataflow) -> tuple[DataFrame | Op, tuple[Step, ...]]:
        """The streaming DataFrame that the user built, or the operator that it begins at; and the steps after it.

        The answer does not depend on whether the source is shared with other streams.
        """
        for at, step in enumerate(self.steps):
            if isinstance(step, Rest):
                return step.frame, self.steps[at + 1 :]
        return flow.sources[self.source] if isinstance(self.source, SourceId) else flow.by_id[self.source], self.steps


Port = tuple[Branch, ...]
"""One input of an operator, or of a sink: the union of its branches."""


@dataclass(frozen=True)
class Op:
    """A stateful operator of a dataflow."""

    id: OperatorId
    plan: StatefulPlan
    ports: tuple[Port, ...]
    node: StatefulNode
    hold_ms: int = 0
    """How much older than the watermark its input rows can be, because they come from a join."""
    mode: OutputMode = OutputMode.APPEND
    name: str | None = None
    """The name that the user gave it, if any."""
    earlier: Mapping[str, tuple[Conversion, ...]] = field(default_factory=dict)
    """By store: how runs are read that were written before the query was changed."""

    @property
    def where(self) -> str:
        """The user's line that built it."""
        return self.node.where

    @property
    def branches(self) -> Iterator[Branch]:
        """The branches of all its ports."""
        return (branch for port in self.ports for branch in port)

    @property
    def reads_source(self) -> bool:
        """True if it reads a source, possibly beside other operators."""
        return any(branch.reads_source for branch in self.branches)


@dataclass(frozen=True)
class Dataflow:
    """A compiled query: its sources, its stateful operators, and what its sinks get."""

    sources: dict[SourceId, DataFrame]
    """The streaming DataFrames."""
    ops: tuple[Op, ...]
    """In topological order: each operator comes after those that it reads."""
    outlets: tuple[Port, ...]
    """The input of each sink, in the order of the writers."""
    spread: int = 0
    """Before every stateless operator, rows are redistributed over this many tasks (the operator-cloud strategy). 0: never."""

    @property
    def session(self) -> SparkSession:
        return next(iter(self.sources.values())).sparkSession

    @cached_property
    def by_id(self) -> dict[OperatorId, Op]:
        return {op.id: op for op in self.ops}

    @cached_property
    def readers(self) -> tuple[Op, ...]:
        """The operators that read sources."""
        return tuple(op for op in self.ops if op.reads_source)

    @cached_property
    def sheds(self) -> dict[ShedId, ShedStep]:
        """The places where rows may be dropped, in the order of the writers, and from a writer to the sources."""
        steps: dict[int, ShedStep] = {}
        waiting = [branch for port in reversed(self.outlets) for branch in reversed(port)]
        while waiting:
            branch = waiting.pop()
            steps |= {id(step): step for step in branch.sheds if id(step) not in steps}
            if (above := self.producer(branch)) is not None:
                waiting += reversed([*above.branches])
        return {ShedId("shed" if not at else f"shed-{at + 1}"): step for at, step in enumerate(steps.values())}

    @cached_property
    def places(self) -> dict[int, Place]:
        """The places where rows may be dropped, by the id() of their steps, with what sets them in the plans."""
        heads: dict[SourceId, dict[int, ShedStep | None]] = {}
        for branch in self.branches:
            if isinstance(branch.source, SourceId):
                heads.setdefault(branch.source, {})[id(branch.head)] = branch.head
        bits: dict[int, int] = {}
        shares: dict[int, bool] = {}
        for found in heads.values():
            steps = [step for step in found.values() if step is not None]
            check_count(steps)
            bits |= {id(step): at for at, step in enumerate(steps)}
            shares |= {id(step): len(found) > 1 for step in steps}
        return {
            id(step): Place(name, step, Dials.made(self.session), bits.get(id(step)), shares.get(id(step), False))
            for name, step in self.sheds.items()
        }

    @property
    def branches(self) -> list[Branch]:
        """All branches: those of operators and those of sinks."""
        ports = [port for op in self.ops for port in op.ports] + list(self.outlets)
        return [branch for port in ports for branch in port]

    @cached_property
    def _handed_over(self) -> dict[SourceId, DataFrame]:
        """By source: its rows that some branch takes."""
        return {name: self._of_source(name) for name in self.sources}

    def _of_source(self, name: SourceId) -> DataFrame:
        """The rows of a source that some branch takes. If its branches take different ones, the last column says who takes a row."""
        branches = [branch for branch in self.branches if branch.source == name]
        places = list({id(b.head): self.places[id(b.head)] for b in branches if b.head is not None}.values())
        whole = self.sources[name]
        return decided(whole, places, all_may_go=all(b.head is not None for b in branches)) if places else whole

    @cached_property
    def watermarks(self) -> tuple[WatermarkStep, ...]:
        """The watermarks on results of operators, in the order of the operators that read them."""
        steps = (step for op in self.ops for branch in op.branches for step in branch.steps if isinstance(step, WatermarkStep))
        return tuple({step.key: step for step in steps}.values())

    @cached_property
    def reads_event_times(self) -> bool:
        """True if the streaming plan has watermarks of its own."""
        return any(has_watermark(frame) for frame in self.sources.values())

    @property
    def identities(self) -> dict[SourceId, str]:
        """By source from which rows may be dropped by their identity: what identifies a row."""
        sources = {branch.source for branch in self.branches for step in branch.sheds if step.by is By.ROW}
        return {name: identified(frame)[1] for name, frame in self.sources.items() if name in sources}

    def dropping(self, drops: Drops | None, read: Callable[[], Observed] = dict) -> Dropping:
        """What a version drops, from now on until another version is asked for. ``read``: what sources counted in the batch."""
        return Dropping.of(self.places, drops, "the checkpoint", read)

    @cached_property
    def counts_once(self) -> bool:
        """True if each row of a batch is counted once: if it is kept, since several branches read it, or read by an operator alone."""
        return self.source_readers > 1 or any(op.reads_source for op in self.ops)

    @cached_property
    def only_reader(self) -> Op | None:
        """The one operator that reads all sources, so that its columns are selected in the streaming plan; None if several read them."""
        readers = self.readers
        if len(readers) != 1 or any(b.reads_source for port in self.outlets for b in port):
            return None
        own = list(readers[0].branches)
        plain = all(len(port) == 1 and not port[0].steps and port[0].reads_source for port in readers[0].ports)
        # Spark stores offsets in the order of sources in the plan, so they must be in the checkpoint's order.
        return readers[0] if plain and [b.source for b in own] == list(self.sources) else None

    @cached_property
    def source_readers(self) -> int:
        """How many times a batch is read: once by the only reader, or once by each branch that begins at a source."""
        return 1 if self.only_reader is not None else sum(self.consumers(name) for name in self.sources)

    @cached_property
    def boundary(self) -> Boundary | None:
        """Where the streaming plan ends and the batch's plan begins; None if all steps are in the streaming plan."""
        if self.spread or self.sheds:
            return None
        if self.only_reader is not None:
            return boundary(self.only_reader.plan.input.selected)
        return boundary(next(iter(self.sources.values())), shared=True) if len(self.sources) == 1 else None

    @property
    def streaming(self) -> DataFrame:
        """The one streaming DataFrame that Spark runs."""
        if self.only_reader is not None:
            if not self.spread:
                return self.only_reader.plan.input.selected if self.boundary is None else self.boundary.below
            # Its ports are the sources, in their order.
            return self.only_reader.plan.input.select(tuple(frame.repartition(self.spread) for frame in self.sources.values()))
        if len(self.sources) == 1:
            return next(iter(self._handed_over.values())) if self.boundary is None else self.boundary.below
        tagged = [self._tagged(at, name) for at, name in enumerate(self.sources)]
        whole = tagged[0]
        for more in tagged[1:]:
            whole = whole.unionByName(more)
        return whole

    def _tagged(self, at: int, name: SourceId) -> DataFrame:
        structs = []
        for other, frame in self.sources.items():
            own = F.struct(*[F.col(quoted(c)) for c in frame.columns]) if other == name else F.lit(None)
            structs.append(own.cast(frame.schema).alias(other))
        rows = self._handed_over[name]
        if not self.sheds:
            return rows.select(F.lit(at).alias(TAG), *structs)
        wanted = F.col(WANTED) if WANTED in rows.columns else F.lit(0).cast("long").alias(WANTED)
        return rows.select(F.lit(at).alias(TAG), *structs, wanted)

    def frames_of(self, ports: Iterable[Port]) -> list[InputId]:
        """The keys of the frames that these ports read, in order: `BATCH` or ids of operators."""
        return list(dict.fromkeys(BATCH if branch.reads_source else branch.source for port in ports for branch in port))

    def rows(
        self, port: Port, frames: Mapping[str, DataFrame], as_finished: bool = False, dropping: Dropping = NO_DROPPING
    ) -> DataFrame | None:
        """The rows of a port. `frames` holds the batch and the kernels' rows of operators; None if it has no frame of this port.

        `as_finished` leaves out the marks of windows and event times, which a sink does not need.
        """
        whole: DataFrame | None = None
        for branch in port:
            if (BATCH if branch.reads_source else branch.source) not in frames:
                continue
            if isinstance(branch.source, SourceId):
                part = branch.apply(self._rows_of_source(frames[BATCH], branch.source), dropping)
            else:
                results, rows = self.by_id[branch.source].plan.results, frames[branch.source]
                part = branch.apply(results.finish(rows) if as_finished and not branch.steps else results.marked(rows))
            whole = part if whole is None else whole.union(part)
        return whole

    def count_missing(self, batch: DataFrame, dropping: Dropping) -> None:
        """Count what was dropped, in a job of its own, if the rows went to a user's function that may have read them several times."""
        missing = [
            (branch, place)
            for branch in (branch for port in self.outlets for branch in port if branch.reads_source)
            for place in (self.places[id(step)] for step in branch.sheds)
            if place.id not in dropping.counted
        ]
        if any(place.bit is not None for _, place in missing):
            dropping.again()
            batch.agg(F.count(F.lit(1))).collect()
            dropping.learn_from_sources()
        for branch, place in missing:
            if place.bit is None:
                dropping.count(place, branch.until(place.step).apply(self._rows_of_source(batch, SourceId(branch.source))))

    def _rows_of_source(self, batch: DataFrame, name: SourceId) -> DataFrame:
        if len(self.sources) == 1:
            return batch if self.boundary is None else self.boundary.above(batch)
        columns = [f"{name}.*", *([WANTED] if self.sheds else [])]
        return batch.filter(F.col(TAG) == list(self.sources).index(name)).select(*columns)

    def consumers(self, name: InputId) -> int:
        """How many branches read a source or an operator."""
        return sum(branch.source == name for branch in self.branches)

    def next_op(self, op: Op) -> Op | None:
        """The operator that can run in the same job: it alone reads this one's results, and it reads nothing else.

        After a union with other rows, the number of a task would no longer be the number of its instance. What is measured of results is
        measured of what was staged.
        """
        readers = [other for other in self.ops if [b.source for b in other.branches] == [op.id]]
        if any(branch.observes for other in readers for branch in other.branches):
            return None
        return readers[0] if len(readers) == 1 and self.consumers(op.id) == 1 else None

    def renamed(self, ids: Mapping[OperatorId, OperatorId]) -> Dataflow:
        """The same dataflow with other ids for operators."""

        def port(old: Port) -> Port:
            return tuple(b if isinstance(b.source, SourceId) else replace(b, source=ids.get(b.source, b.source)) for b in old)

        ops = tuple(replace(op, id=ids.get(op.id, op.id), ports=tuple(port(each) for each in op.ports)) for op in self.ops)
        return replace(self, ops=ops, outlets=tuple(port(each) for each in self.outlets))

    def reading(self, order: Iterable[SourceId]) -> Dataflow:
        """The same dataflow with its sources in this order."""
        return replace(self, sources={name: self.sources[name] for name in order})

    def upstream(self, op: Op) -> list[Op]:
        """The operators that this one reads."""
        return [above for branch in op.branches if (above := self.producer(branch)) is not None]

    def producer(self, branch: Branch) -> Op | None:
        """The operator whose results a branch reads; None if it reads a source."""
        return None if isinstance(branch.source, SourceId) else self.by_id[branch.source]


def free_id(kind: str, taken: Collection[str]) -> OperatorId:
    """An id for an operator of this kind: the kind, with a number if that id is taken.

    >>> free_id("aggregate", ["aggregate", "aggregate-2", "join"])
    'aggregate-3'
    """
    return OperatorId(next(name for name in chain((kind,), (f"{kind}-{number}" for number in count(2))) if name not in taken))


def inputs_of(flow: Dataflow) -> dict[OperatorId, tuple[InputId, ...]]:
    """For each operator, the ids of the operators that it reads, and one name that stands for all sources that it reads."""
    return {op.id: tuple(dict.fromkeys(sources_of(op.id) if b.reads_source else b.source for b in op.branches)) for op in flow.ops}
