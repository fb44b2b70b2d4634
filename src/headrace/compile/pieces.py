"""What the compiler knows of one aggregate call: its inputs, its partials, and how the result is computed from them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from headrace.errors import UnsupportedError
from headrace.operators.partials import Partial
from headrace.spark.aggregation import AggregateCall

Row = Callable[[list[Column]], list[Column | None]]


@dataclass(frozen=True)
class Piece:
    """One aggregate function of the query."""

    partial: Partial
    inputs: list[Column]
    """The arguments, as expressions over the stream's columns."""
    row: Callable[[list[Column]], list[Column | None]]
    """The partial of one row, computed from the inputs. None stands for the constant 1, which is not shuffled."""
    many: Callable[[list[Column]], list[Column]] | None
    """The partial of many rows, as Spark aggregates over the inputs. None if Spark would have to sort to compute it."""
    buffers: Callable[[list[Column]], dict[str, Column]] | None
    """Maps the partial columns to Spark's buffer attributes by name, for the function's own evaluateExpression."""
    finish: Callable[[list[Column]], Column] | None = None
    """Computes the result from the partial columns, for functions without an evaluateExpression."""
    types: list[T.DataType] = field(default_factory=list)
    """Spark's types of the partial columns in the shuffle."""
    pick: Picking | None = None
    """For functions that pick the value of one row: which value, and by which order."""
    settle: Callable[[list[Column]], list[Column]] | None = None
    """Merges what the kernel has only put side by side, in Spark. None if the kernel merges the partial completely."""


@dataclass(frozen=True)
class Picking:
    """A pick: the value of the row with the least or greatest order. Equal expressions have equal texts."""

    value: Column
    """The value of any row. Rows that a FILTER clause leaves out have a value too, but a null order."""
    value_type: T.DataType
    value_text: str
    order: Column
    order_type: T.DataType
    order_text: str
    greatest: bool


@dataclass(frozen=True)
class Context:
    """What the compilation of a function depends on beside the call itself."""

    session: SparkSession
    event_time: Column | None
    event_time_type: T.DataType
    ansi: bool


@dataclass(frozen=True)
class Call:
    """A call that is being compiled, and what its compilation depends on."""

    function: AggregateCall
    context: Context

    @property
    def where(self) -> str:
        return self.function.sql

    @property
    def filter_text(self) -> str:
        """The condition of the FILTER clause; equal for equal conditions."""
        return "" if self.function.filter is None else self.function.filter.text

    def child(self, at: int = 0) -> tuple[Column, T.DataType]:
        """An argument and its type. It is null for rows that the FILTER clause leaves out."""
        argument = self.function.arguments[at]
        return self.kept(argument.column), argument.type

    def kept(self, value: Column) -> Column:
        condition = self.function.filter
        return F.when(condition.column, value) if condition is not None else value

    def child_text(self, at: int = 0) -> str:
        return self.function.arguments[at].text

    def buffer_type(self, name: str) -> T.DataType:
        found = self.function.buffer_type(name)
        if found is None:
            raise UnsupportedError(where=self.where, found=f"a Spark version whose {name} buffer is unknown")
        return found
