"""The nodes of a user's graph: frozen records of what the user asked for.

A node reads `Rows`: the results of another node after some stateless steps, or a streaming DataFrame, whose stateless steps are part of
Spark's own plan. The `api` package builds nodes and checks them at the user's line; `compile` turns them into plans.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.types import StructType

from headrace.graph.steps import Step
from headrace.graph.windows import Windows
from headrace.operators.processor import AnyProcessor
from headrace.operators.shape import TimerClock
from headrace.spark.user_state.declared import Declared
from headrace.spark.user_state.nodes import UserStateCall


@dataclass(frozen=True, eq=False)
class Rows:
    """The rows of a stream: the source or node that they come from, and the stateless steps applied to them."""

    frame: DataFrame
    """Shows the columns: the streaming DataFrame itself, or an empty DataFrame if the rows come from a node."""
    origin: Node | None = None
    """The node that gives the rows; None if they come from the streaming DataFrame."""
    steps: tuple[Step, ...] = ()
    """The stateless steps after the origin."""
    append_only: bool = True
    """True if rows are final once they are emitted. The results of a running aggregate are not."""
    name: str | None = None
    """The user's name for the operator that gives the rows."""
    whole: str | None = None
    """A step that needs all results at once, such as "sort(...)", so that only complete mode will do; None without one."""

    @property
    def schema(self) -> StructType:
        return self.frame.schema

    @property
    def columns(self) -> list[str]:
        return self.frame.columns

    @property
    def session(self) -> SparkSession:
        return self.frame.sparkSession

    def after(self, step: Step, frame: DataFrame) -> Rows:
        """These rows after one more step, whose columns are those of `frame`. Steps on a source are not listed: `frame` has them."""
        return replace(self, frame=frame, steps=() if self.origin is None else (*self.steps, step))

    def same_as(self, other: Rows) -> bool:
        """True if both are the same rows, after the same steps."""
        if self is other:
            return True
        if self.origin is None and other.origin is None:
            return self.frame is other.frame
        same = self.origin is other.origin and len(self.steps) == len(other.steps)
        return same and all(a is b for a, b in zip(self.steps, other.steps, strict=True))


class StatefulNode(Protocol):
    """What every stateful node has. A class needs no more than this, and a compiler, to be a node.

    A node is compared by identity, and its plan is kept while it is alive: write it as a dataclass with `frozen=True, eq=False`.
    """

    @property
    def inputs(self) -> tuple[Rows, ...]:
        """The rows that it reads. A stream that is joined with itself is one input."""

    @property
    def where(self) -> str:
        """The user's line that built it, for error messages."""


@dataclass(frozen=True, eq=False)
class OneInput:
    """Base of nodes with one input."""

    input: Rows

    @property
    def inputs(self) -> tuple[Rows, ...]:
        return (self.input,)

    @property
    def source(self) -> DataFrame:
        """The input's columns: a streaming DataFrame, or an empty one where the rows come from another node."""
        return self.input.frame


@dataclass(frozen=True, eq=False)
class AggregateNode(OneInput):
    """``groupBy(...).agg(...)``, with or without a window."""

    keys: tuple[Column, ...]
    window: Windows | None
    window_at: int
    """The position of the window among the grouping columns."""
    aggregates: tuple[Column, ...]
    where: str
    windows_as_keys: bool = False
    """True if a window that was computed before the aggregate may be a key. Such a window may overlap others: its rows are multiplied."""


@dataclass(frozen=True)
class FirstRows:
    """How many rows of a partition are wanted: those whose rank is at most `limit`."""

    function: str
    """``row_number``, ``rank`` or ``dense_rank``."""
    limit: int


@dataclass(frozen=True, eq=False)
class PartitionNode(OneInput):
    """The rows of each partition of a window function. A result is a partition: its keys, and its rows as a list."""

    keys: tuple[Column, ...]
    order: tuple[tuple[Column, bool, bool], ...]
    """What rows are ordered by: for each value whether it descends, and whether nulls come first."""
    kept: tuple[str, ...]
    """The columns of the input that rows of a list have, under the names ``c0``, ``c1`` and so on."""
    first: FirstRows | None
    """None if all rows are wanted."""
    functions: tuple[str, ...]
    """The names of the window functions, to show."""
    where: str


@dataclass(frozen=True, eq=False)
class DedupNode(OneInput):
    """``dropDuplicates(subset)``."""

    subset: tuple[str, ...]
    where: str


@dataclass(frozen=True, eq=False)
class DedupWithinNode(OneInput):
    """``dropDuplicatesWithinWatermark(subset)``."""

    subset: tuple[str, ...]
    where: str


@dataclass(frozen=True, eq=False)
class LimitNode(OneInput):
    """``limit(n)``: the first rows that come, in all batches together."""

    limit: int
    where: str


@dataclass(frozen=True, eq=False)
class JoinNode:
    """``join`` of two streams, or of one with itself."""

    inputs: tuple[Rows, ...]
    """Two streams, or one if it is joined with itself."""
    on: tuple[tuple[str, ...], tuple[str, ...]]
    """The names of the key columns on the left and on the right side."""
    within_us: int | None
    """The bound on the time between the rows of a pair. None if `last` is given."""
    last: int | None
    """The number of last rows of the other side that a row is paired with. None if `within_us` is given."""
    how: str
    condition: Column | None
    suffixes: tuple[str, str]
    where: str


@dataclass(frozen=True, eq=False)
class StreamJoinNode:
    """A join of two streams as Spark has it: by any condition, with a bound in time on either side, or on none."""

    inputs: tuple[Rows, Rows]
    """The left and the right side. No two columns have names that differ by case alone."""
    on: tuple[tuple[str, ...], tuple[str, ...]]
    """The names of the key columns on the left and on the right side."""
    hidden: frozenset[str]
    """The names of key columns that are no columns of the result."""
    times: tuple[str | None, str | None]
    """For each side the column by whose event time its rows are forgotten; None if they never are."""
    may_be_late: tuple[bool, bool]
    """For each side: rows are dropped if the watermark has passed this time. False for a side without a watermark of its own."""
    keep_us: tuple[int | None, int | None]
    """For each side: a row is forgotten when the watermark has passed its time by this much; None: never."""
    how: str
    """``inner``, ``left``, ``right``, ``full`` or ``semi``."""
    condition: Column | None
    """A condition on the columns of both sides."""
    where: str


@dataclass(frozen=True, eq=False)
class ProductNode:
    """``crossJoin`` of two streams, or of one with itself."""

    inputs: tuple[Rows, ...]
    within_us: int | None
    last_per_cell: int | None
    condition: Column | None
    suffixes: tuple[str, str]
    where: str


@dataclass(frozen=True)
class StateSpec:
    """The state that a processor declares, in Spark's types."""

    values: StructType
    maps: tuple[tuple[str, StructType, StructType], ...]
    """For each map its name, key columns and value columns."""
    timers: TimerClock | None
    ttl_us: int | None
    ttl_by: TimerClock
    defaults: Mapping[str, object] = field(default_factory=dict)
    """What values are that a key has not been given, because an earlier program did not have them."""


@dataclass(frozen=True, eq=False)
class ProcessNode(OneInput):
    """``groupBy(...).process(...)``."""

    keys: tuple[Column, ...]
    processor: AnyProcessor
    output: StructType
    state: StateSpec
    initial: DataFrame | None
    """The initial state: keys and values."""
    order: tuple[str, ...]
    """Columns by which the rows of a key are sorted. Empty: by event time."""
    where: str


@dataclass(frozen=True, eq=False)
class UserStateNode(OneInput):
    """``transformWithState``, ``transformWithStateInPandas`` or ``applyInPandasWithState``: code that users wrote for Spark."""

    call: UserStateCall
    declared: tuple[Declared, ...]
    """The state variables that ``init`` of the processor asks for."""
    where: str


@dataclass(frozen=True, eq=False)
class SharedNode(OneInput):
    """A stream that several branches read; its rows are computed once."""

    where: str


@dataclass(frozen=True, eq=False)
class UnionNode:
    """A union of streams, of which at least one comes from a node."""

    inputs: tuple[Rows, ...]
    where: str


Node = StatefulNode | SharedNode | UnionNode
