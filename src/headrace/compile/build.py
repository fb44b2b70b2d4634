"""From the user's graph to a dataflow: walk from the sinks to the sources, compile every node once, and read every source once."""

from __future__ import annotations

from dataclasses import replace

from pyspark.sql import DataFrame, SparkSession

from headrace.compile.dataflow import REDISTRIBUTE, Branch, Dataflow, Op, Port, free_id
from headrace.compile.nodes import compile_node
from headrace.compile.sharing import shared_sources
from headrace.compile.strategies import Strategy
from headrace.config import Config
from headrace.errors import QueryError
from headrace.graph.nodes import Rows, SharedNode, StatefulNode, UnionNode
from headrace.graph.steps import FunctionStep
from headrace.ids import InputId, OperatorId, SourceId
from headrace.operators.kernel import OutputMode


def compile_flow(outlets: list[tuple[Rows, OutputMode, str]], config: Config) -> Dataflow:
    """Compile the graph behind the sinks: for each sink the rows it gets, its output mode, and where the user wrote it."""
    builder = _Builder(config)
    ports = [builder.port(rows) for rows, _, _ in outlets]
    flow = Dataflow(builder.sources, builder.named_ops(), tuple(ports)).renamed(builder.ids())
    ports = list(flow.outlets)
    modes: dict[InputId, OutputMode] = {}
    for port, (_, mode, where) in zip(ports, outlets, strict=True):
        for branch in port:
            known = modes.setdefault(branch.source, mode)
            if known is not mode:
                raise QueryError(where=where, wanted=f"output mode {known}, as the other sink of {branch.source} has", found=str(mode))
    ops = []
    for op in flow.ops:
        inner = any(b.source == op.id for other in flow.ops for b in other.branches)
        mode = modes.get(op.id, OutputMode.APPEND)
        if inner and mode is not OutputMode.APPEND:
            raise QueryError(
                where=next(where for _, m, where in outlets if m is mode),
                wanted=f"output mode append for {op.id}, whose results another operator reads too",
                found=str(mode),
            )
        ops.append(replace(op, mode=mode))
    flow = _reading_once(Dataflow(flow.sources, tuple(ops), flow.outlets))
    return _spread(flow, outlets[0][0].session) if config.strategy == Strategy.OPERATOR_CLOUD else flow


def _spread(flow: Dataflow, session: SparkSession) -> Dataflow:
    """Redistribute rows before every stateless operator, so that it has tasks of its own (the operator-cloud strategy)."""
    tasks = session.sparkContext.defaultParallelism

    def apart(port: Port) -> Port:
        again = FunctionStep(REDISTRIBUTE, lambda rows: rows.repartition(tasks), "operator-cloud")
        return tuple(replace(b, steps=tuple(s for step in b.steps for s in (again, step))) for b in port)

    ops = tuple(replace(op, ports=tuple(apart(port) for port in op.ports)) for op in flow.ops)
    return Dataflow(flow.sources, ops, tuple(apart(port) for port in flow.outlets), tasks)


def _reading_once(flow: Dataflow) -> Dataflow:
    """The same dataflow, in which streams of one source share it. Where the streams differ, each reader applies its own steps."""
    sources, parts = shared_sources(dict(flow.sources.items()))

    def port(old: Port) -> Port:
        return tuple(part(branch) if branch.reads_source else branch for branch in old)

    def part(branch: Branch) -> Branch:
        source, rest = parts[branch.source]
        return Branch(SourceId(source), branch.steps if rest is None else (rest, *branch.steps))

    ops = tuple(replace(op, ports=tuple(port(each) for each in op.ports)) for op in flow.ops)
    return Dataflow({SourceId(name): frame for name, frame in sources.items()}, ops, tuple(port(each) for each in flow.outlets))


class _Builder:
    """Walks the graph from its sinks to its sources."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.sources: dict[SourceId, DataFrame] = {}
        self.ops: list[Op] = []
        self._source_ids: dict[int, SourceId] = {}
        self._op_ids: dict[int, OperatorId] = {}
        self._names: dict[OperatorId, str] = {}
        """The user's names for operators, by id."""

    def port(self, rows: Rows) -> Port:
        node = rows.origin
        if node is None:
            return (Branch(self._source(rows)),)
        if isinstance(node, SharedNode):
            return (Branch(self._source(node.input), rows.steps),)
        if isinstance(node, UnionNode):
            inner = [branch for each in node.inputs for branch in self.port(each)]
            return tuple(Branch(branch.source, (*branch.steps, *rows.steps)) for branch in inner)
        op = self._op(node)
        if rows.name is not None and self._names.setdefault(op, rows.name) != rows.name:
            raise QueryError(where=node.where, wanted="one name for an operator", found=f"{self._names[op]!r} and {rows.name!r}")
        return (Branch(op, rows.steps),)

    def named_ops(self) -> tuple[Op, ...]:
        return tuple(replace(op, name=self._names.get(op.id)) for op in self.ops)

    def ids(self) -> dict[OperatorId, OperatorId]:
        """The final ids of operators: the user's name, or else the kind and a number."""
        given: dict[OperatorId, OperatorId] = {}
        for op in self.ops:
            if op.id in self._names:
                name = OperatorId(self._names[op.id].replace(" ", "_"))
                if name in given.values():
                    raise QueryError(where=op.where, wanted="a name of its own for every operator", found=f"{name!r} twice")
                given[op.id] = name
        for op in self.ops:
            if op.id not in given:
                given[op.id] = free_id(op.plan.kind, given.values())
        return given

    def _source(self, rows: Rows) -> SourceId:
        key = id(rows.frame)
        if key not in self._source_ids:
            self._source_ids[key] = SourceId(f"source{len(self.sources)}")
            self.sources[self._source_ids[key]] = rows.frame
        return self._source_ids[key]

    def _op(self, node: StatefulNode) -> OperatorId:
        key = id(node)
        if key in self._op_ids:
            return self._op_ids[key]
        ports = tuple(self.port(rows) for rows in node.inputs)
        plan = compile_node(node, self.config)
        name = OperatorId(f"op{len(self.ops)}")
        above = [op for op in self.ops if any(b.source == op.id for port in ports for b in port)]
        hold_ms = max((op.hold_ms + op.plan.timing.hold_ms for op in above), default=0)
        # The operator keeps the node alive, since `_op_ids` is keyed by id(node), which Python reuses.
        self.ops.append(Op(name, plan, ports, node, hold_ms))
        self._op_ids[key] = name
        return name
