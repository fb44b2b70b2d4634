"""Stateless steps after a stateful operator. They are recorded when the user calls them, and applied to each batch."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Protocol

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from headrace.spark.expressions import WATERMARK_KEY, quoted

REACHED = "reached"
"""What the observation of a `WatermarkStep` measures: the greatest event time, in milliseconds."""
_numbers = count()


class Step(Protocol):
    """A stateless step: a function of a DataFrame with a name, and the user's line."""

    @property
    def method(self) -> str: ...

    @property
    def where(self) -> str: ...

    def apply(self, frame: DataFrame) -> DataFrame: ...


@dataclass(frozen=True)
class MethodStep:
    """A step that is a method of Spark's DataFrame, with its arguments."""

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
class FunctionStep:
    """A step that is any function of a DataFrame."""

    method: str
    function: Callable[[DataFrame], DataFrame]
    where: str

    def apply(self, frame: DataFrame) -> DataFrame:
        return self.function(frame)

    def __str__(self) -> str:
        return self.method


@dataclass(frozen=True)
class ObserveStep:
    """``observe``: what it measures of the rows of each batch is in the query's progress. The rows stay as they are."""

    name: str
    measures: tuple[Column, ...]
    """Aggregates over the columns of the rows."""
    where: str
    method: str = "observe"

    def apply(self, frame: DataFrame) -> DataFrame:
        return frame

    def measured(self, frame: DataFrame) -> dict[str, Any]:
        """The measures of these rows, by name, as JSON has them."""
        row = frame.agg(*self.measures)
        text = row.select(F.to_json(F.struct(*map(F.col, map(quoted, row.columns))), {"ignoreNullFields": "false"})).first()
        assert text is not None
        found: dict[str, Any] = json.loads(text[0])
        return found

    def __str__(self) -> str:
        return f"observe({self.name})"


@dataclass(frozen=True)
class WatermarkStep:
    """``withWatermark`` on results of an operator: a column becomes the event time, and its greatest value moves the watermark."""

    column: str
    delay_ms: int
    where: str
    method: str = "withWatermark"
    key: str = field(default_factory=lambda: f"headrace watermark {next(_numbers)}")
    """The name of its observation."""

    def marked(self, frame: DataFrame) -> DataFrame:
        """The same rows, with the mark of an event time on the column."""
        return frame.withMetadata(self.column, {**frame.schema[self.column].metadata, WATERMARK_KEY: self.delay_ms})

    def apply(self, frame: DataFrame) -> DataFrame:
        return self.marked(frame.observe(self.key, F.max(F.unix_millis(F.col(quoted(self.column)))).alias(REACHED)))

    def __str__(self) -> str:
        return f"withWatermark({self.column}, {self.delay_ms} milliseconds)"


def _shown(argument: Any) -> str:
    """An argument as the user wrote it: a column without PySpark's ``Column<...>``."""
    if isinstance(argument, dict):
        return ", ".join(f"{name}: {_shown(value)}" for name, value in argument.items())
    text = str(argument)
    return text.removeprefix("Column<'").removesuffix("'>") if isinstance(argument, Column) else text
