"""The dataflow: a user's graph, with everything in it compiled, in the order in which it runs.

Sources of all branches become one streaming DataFrame, so that one Structured Streaming query keeps all offsets in one log. Where a
single operator reads it, that DataFrame is just what the operator needs. Where several do, it is the union of the sources, each as a
struct column of its own beside a tag, and every reader takes its part of the batch.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, count

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from headrace.compile.boundary import Boundary, boundary
from headrace.compile.plan import StatefulPlan
from headrace.compile.sharing import Rest
from headrace.control.observing import OUTSIDE
from headrace.graph.nodes import StatefulNode
from headrace.graph.steps import Step
from headrace.ids import OperatorId
from headrace.operators.kernel import OutputMode
from headrace.spark.expressions import quoted

TAG = "__headrace_source"
BATCH = "batch"
"""The name of a batch's rows among the frames that ports are made of; the others have their operators' names."""


@dataclass(frozen=True)
class Branch:
    """Rows of a source or of an operator, after some stateless steps."""

    source: str
    """The id of a source or of an operator."""
    steps: tuple[Step, ...] = ()

    def apply(self, rows: DataFrame) -> DataFrame:
        for step in self.steps:
            rows = step.apply(rows)
        return rows

    def begin(self, flow: Dataflow) -> tuple[DataFrame | None, tuple[Step, ...]]:
        """The streaming DataFrame that the user built, if it begins at one, and the steps behind it, however the source is shared."""
        for at, step in enumerate(self.steps):
            if isinstance(step, Rest):
                return step.frame, self.steps[at + 1 :]
        return flow.sources.get(self.source), self.steps


Port = tuple[Branch, ...]
"""What one input of an operator, or a sink, takes in: the rows of all its branches together."""


@dataclass(frozen=True)
class Op:
    """A stateful operator of a dataflow."""

    id: OperatorId
    plan: StatefulPlan
    ports: tuple[Port, ...]
    node: StatefulNode
    hold_ms: int = 0
    """By how much its rows may be older than the watermark: what comes out of a join is."""
    mode: OutputMode = OutputMode.APPEND
    name: str | None = None
    """Given by the user."""

    @property
    def where(self) -> str:
        return self.node.where

    @property
    def branches(self) -> Iterator[Branch]:
        return (branch for port in self.ports for branch in port)


@dataclass(frozen=True)
class Dataflow:
    """What a query runs."""

    sources: dict[str, DataFrame]
    """Streaming DataFrames by id."""
    ops: tuple[Op, ...]
    """Each after those that it reads from."""
    outlets: tuple[Port, ...]
    """What each sink takes in, in the order of the writers."""
    spread: int = 0
    """Rows are redistributed over so many tasks before every stateless operator (the operator-cloud strategy); 0: never."""

    @property
    def session(self) -> SparkSession:
        return next(iter(self.sources.values())).sparkSession

    @cached_property
    def by_id(self) -> dict[OperatorId, Op]:
        return {op.id: op for op in self.ops}

    @cached_property
    def only_reader(self) -> Op | None:
        """The operator that alone reads all sources, if there is one: its columns are then selected in the streaming plan itself."""
        readers = [op for op in self.ops if any(b.source in self.sources for b in op.branches)]
        if len(readers) != 1 or any(b.source in self.sources for port in self.outlets for b in port):
            return None
        own = list(readers[0].branches)
        plain = all(len(port) == 1 and not port[0].steps and port[0].source in self.sources for port in readers[0].ports)
        # Spark keeps offsets by the order of sources in the plan, so that must be the order of the checkpoint.
        return readers[0] if plain and [b.source for b in own] == list(self.sources) else None

    @cached_property
    def source_readers(self) -> int:
        """How often the batch is read: once by the only reader, else by every branch that begins at a source."""
        return 1 if self.only_reader is not None else sum(self.consumers(name) for name in self.sources)

    @cached_property
    def boundary(self) -> Boundary | None:
        """Where steps of the only reader, or of the only source, are done, if not all in the streaming plan."""
        if self.spread:
            return None
        if self.only_reader is not None:
            return boundary(self.only_reader.plan.selected)
        return boundary(next(iter(self.sources.values())), shared=True) if len(self.sources) == 1 else None

    @property
    def streaming(self) -> DataFrame:
        """The one streaming DataFrame that Spark runs."""
        if self.only_reader is not None:
            if not self.spread:
                return self.only_reader.plan.selected if self.boundary is None else self.boundary.below
            frames = (self.sources[port[0].source] for port in self.only_reader.ports)
            return self.only_reader.plan.select(tuple(frame.repartition(self.spread) for frame in frames))
        if len(self.sources) == 1:
            return next(iter(self.sources.values())) if self.boundary is None else self.boundary.below
        tagged = [self._tagged(at, name) for at, name in enumerate(self.sources)]
        whole = tagged[0]
        for more in tagged[1:]:
            whole = whole.unionByName(more)
        return whole

    def _tagged(self, at: int, name: str) -> DataFrame:
        structs = []
        for other, frame in self.sources.items():
            own = F.struct(*[F.col(quoted(c)) for c in frame.columns]) if other == name else F.lit(None)
            structs.append(own.cast(frame.schema).alias(other))
        return self.sources[name].select(F.lit(at).alias(TAG), *structs)

    def frames_of(self, ports: Iterable[Port]) -> dict[str, None]:
        """The names of the frames that these ports are made of, in order."""
        return dict.fromkeys(BATCH if branch.source in self.sources else branch.source for port in ports for branch in port)

    def rows(self, port: Port, frames: Mapping[str, DataFrame], as_finished: bool = False) -> DataFrame | None:
        """The rows of a port, from the batch and the kernel's rows of operators, as far as they are there; None if none of them is.

        ``as_finished``: for a sink, which has no use for the marks of windows and event times.
        """
        whole: DataFrame | None = None
        for branch in port:
            of_source = branch.source in self.sources
            if (BATCH if of_source else branch.source) not in frames:
                continue
            if of_source:
                part = branch.apply(self._rows_of_source(frames[BATCH], branch.source))
            else:
                plan = self.by_id[OperatorId(branch.source)].plan
                rows = frames[branch.source]
                part = branch.apply(plan.finish(rows) if as_finished and not branch.steps else plan.results(rows))
            whole = part if whole is None else whole.union(part)
        return whole

    def _rows_of_source(self, batch: DataFrame, name: str) -> DataFrame:
        if len(self.sources) == 1:
            return batch if self.boundary is None else self.boundary.above(batch)
        return batch.filter(F.col(TAG) == list(self.sources).index(name)).select(f"{name}.*")

    def consumers(self, name: str) -> int:
        """How many branches read a source or an operator."""
        ports = [port for op in self.ops for port in op.ports] + list(self.outlets)
        return sum(branch.source == name for port in ports for branch in port)

    def next_op(self, op: Op) -> Op | None:
        """The operator that alone reads this one's results, and reads nothing else.

        In a union with other rows, the tasks of an operator would no longer be numbered by its instances.
        """
        readers = [other for other in self.ops if [b.source for b in other.branches] == [op.id]]
        return readers[0] if len(readers) == 1 and self.consumers(op.id) == 1 else None

    def renamed(self, ids: Mapping[OperatorId, OperatorId]) -> Dataflow:
        """With other ids for operators."""

        def port(old: Port) -> Port:
            return tuple(replace(branch, source=ids.get(OperatorId(branch.source), branch.source)) for branch in old)

        ops = tuple(replace(op, id=ids.get(op.id, op.id), ports=tuple(port(each) for each in op.ports)) for op in self.ops)
        return replace(self, ops=ops, outlets=tuple(port(each) for each in self.outlets))

    def reading(self, order: Iterable[str]) -> Dataflow:
        """With the sources in this order."""
        return replace(self, sources={name: self.sources[name] for name in order})

    def upstream(self, op: Op) -> list[Op]:
        return [self.by_id[OperatorId(b.source)] for b in op.branches if b.source in self.by_id]


def free_id(kind: str, taken: Collection[str]) -> OperatorId:
    """The kind of an operator, with a number if others have that already.

    >>> free_id("aggregate", ["aggregate", "aggregate-2", "join"])
    'aggregate-3'
    """
    return OperatorId(next(name for name in chain((kind,), (f"{kind}-{number}" for number in count(2))) if name not in taken))


def inputs_of(flow: Dataflow) -> dict[OperatorId, tuple[str, ...]]:
    """Per operator: the operators that it reads, and one name for all that it reads from sources."""
    return {op.id: tuple(dict.fromkeys(b.source if b.source in flow.by_id else OUTSIDE + op.id for b in op.branches)) for op in flow.ops}
