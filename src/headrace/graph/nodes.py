"""The nodes of a user's graph: frozen, checked when built.

A query is a chain: a streaming DataFrame with its stateless *prefix* (Spark's own plan), one stateful node, and a stateless *suffix*
of steps that Spark applies to the results.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column, DataFrame


@dataclass(frozen=True)
class WindowSpec:
    """A time window as the user asked for it."""

    name: str
    time: Column
    size_us: int
    advance_us: int
    offset_us: int


@dataclass(frozen=True)
class AggregateNode:
    """``groupBy(...).agg(...)``."""

    source: DataFrame
    keys: tuple[Column, ...]
    window: WindowSpec | None
    window_at: int
    """Where among the grouping columns the window stands."""
    aggregates: tuple[Column, ...]
    where: str


@dataclass(frozen=True)
class DedupNode:
    """``dropDuplicates(subset)``."""

    source: DataFrame
    subset: tuple[str, ...]
    where: str


StatefulNode = AggregateNode | DedupNode


@dataclass(frozen=True)
class Step:
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


def _shown(argument: Any) -> str:
    """An argument as a reader would write it: a column without its wrapping."""
    if isinstance(argument, dict):
        return ", ".join(f"{name}: {_shown(value)}" for name, value in argument.items())
    text = str(argument)
    return text.removeprefix("Column<'").removesuffix("'>") if isinstance(argument, Column) else text
