"""The nodes of a user's graph: frozen, checked when built.

A node has streams as inputs, and a stream is what came out of a node after some stateless steps. At the far end are streaming
DataFrames with a stateless prefix, which is Spark's own plan.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from pyspark.sql import Column, DataFrame
from pyspark.sql.types import StructType

from headrace.operators.processor import AnyProcessor, Clock

if TYPE_CHECKING:
    from headrace.graph.stream import Stream


@dataclass(frozen=True)
class WindowSpec:
    """A time window as the user asked for it."""

    name: str
    time: Column
    size_us: int
    advance_us: int
    offset_us: int


@dataclass(frozen=True)
class SessionSpec:
    """A session window: rows that follow one another within a gap."""

    name: str
    time: Column
    gap_us: int


@dataclass(frozen=True)
class CountSpec:
    """A tuple-count window: ``size`` rows of a key, beginning at every ``advance``-th."""

    name: str
    size: int
    advance: int
    by_arrival: bool

    def alias(self, name: str) -> CountSpec:
        """Under another name in the result."""
        return replace(self, name=name)


Windows = WindowSpec | SessionSpec | CountSpec


@dataclass(frozen=True, eq=False)
class OneInput:
    """Base of nodes with one input."""

    input: Stream

    @property
    def inputs(self) -> tuple[Stream, ...]:
        return (self.input,)

    @property
    def source(self) -> DataFrame:
        """The input's columns: a streaming DataFrame, or an empty one where the rows come from another node."""
        return self.input.frame


@dataclass(frozen=True, eq=False)
class AggregateNode(OneInput):
    """``groupBy(...).agg(...)``."""

    keys: tuple[Column, ...]
    window: Windows | None
    window_at: int
    """Where among the grouping columns the window stands."""
    aggregates: tuple[Column, ...]
    where: str


@dataclass(frozen=True, eq=False)
class DedupNode(OneInput):
    """``dropDuplicates(subset)``."""

    subset: tuple[str, ...]
    where: str


@dataclass(frozen=True, eq=False)
class JoinNode:
    """``join`` of two streams, or of one with itself."""

    inputs: tuple[Stream, ...]
    """One, where the stream is joined with itself."""
    on: tuple[tuple[str, ...], tuple[str, ...]]
    """Per side, the names of the key columns."""
    within_us: int | None
    """The bound on the time between the rows of a pair; or"""
    last: int | None
    """... how many rows of the other side a row meets."""
    how: str
    condition: Column | None
    suffixes: tuple[str, str]
    where: str


@dataclass(frozen=True, eq=False)
class ProductNode:
    """``crossJoin`` of two streams, or of one with itself."""

    inputs: tuple[Stream, ...]
    within_us: int | None
    last_per_cell: int | None
    condition: Column | None
    suffixes: tuple[str, str]
    where: str


@dataclass(frozen=True)
class StateSpec:
    """What a processor keeps, in Spark's types."""

    values: StructType
    maps: tuple[tuple[str, StructType, StructType], ...]
    """Name, key columns, value columns."""
    timers: Clock | None
    ttl_us: int | None
    ttl_by: Clock


@dataclass(frozen=True, eq=False)
class ProcessNode(OneInput):
    """``groupBy(...).process(...)``."""

    keys: tuple[Column, ...]
    processor: AnyProcessor
    output: StructType
    state: StateSpec
    initial: DataFrame | None
    """Keys and values that the state starts with."""
    order: tuple[str, ...]
    """Columns that the rows of a key are ordered by; none: by event time."""
    where: str


@dataclass(frozen=True, eq=False)
class SharedNode(OneInput):
    """A stream that several branches read; its rows are computed once."""

    where: str


@dataclass(frozen=True, eq=False)
class UnionNode:
    """The rows of several streams, of which at least one comes out of a node."""

    inputs: tuple[Stream, ...]
    where: str


StatefulNode = AggregateNode | DedupNode | JoinNode | ProductNode | ProcessNode
Node = StatefulNode | SharedNode | UnionNode


class Step(Protocol):
    """A stateless operator."""

    @property
    def method(self) -> str: ...

    @property
    def where(self) -> str: ...

    def apply(self, frame: DataFrame) -> DataFrame: ...


@dataclass(frozen=True)
class Method:
    """A stateless operator: a method of Spark's DataFrame and its arguments."""

    method: str
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]
    where: str

    def apply(self, frame: DataFrame) -> DataFrame:
        result: DataFrame = getattr(frame, self.method)(*self.args, **dict(self.kwargs))
        return result

    def __str__(self) -> str:
        shown = ", ".join([*(_shown(a) for a in self.args), *(f"{k}={_shown(v)}" for k, v in self.kwargs)])
        return f"{self.method}({shown})"


@dataclass(frozen=True)
class Call:
    """A stateless operator that is more than a method: a function of a DataFrame."""

    method: str
    function: Callable[[DataFrame], DataFrame]
    where: str

    def apply(self, frame: DataFrame) -> DataFrame:
        return self.function(frame)

    def __str__(self) -> str:
        return self.method


def _shown(argument: Any) -> str:
    """An argument as a reader would write it: a column without its wrapping."""
    if isinstance(argument, dict):
        return ", ".join(f"{name}: {_shown(value)}" for name, value in argument.items())
    text = str(argument)
    return text.removeprefix("Column<'").removesuffix("'>") if isinstance(argument, Column) else text
