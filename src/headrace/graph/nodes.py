"""The nodes of a user's graph: frozen, checked when built.

A node has streams as inputs, and a stream is what came out of a node after some stateless steps. At the far end are streaming
DataFrames with a stateless prefix, which is Spark's own plan.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from pyspark.sql import Column, DataFrame

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
    window: WindowSpec | None
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
class SharedNode(OneInput):
    """A stream that several branches read; its rows are computed once."""

    where: str


@dataclass(frozen=True, eq=False)
class UnionNode:
    """The rows of several streams, of which at least one comes out of a node."""

    inputs: tuple[Stream, ...]
    where: str


StatefulNode = AggregateNode | DedupNode
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
