"""Stateless steps after a stateful operator. They are recorded when the user calls them, and applied to each batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from pyspark.sql import Column, DataFrame


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


def _shown(argument: Any) -> str:
    """An argument as the user wrote it: a column without PySpark's ``Column<...>``."""
    if isinstance(argument, dict):
        return ", ".join(f"{name}: {_shown(value)}" for name, value in argument.items())
    text = str(argument)
    return text.removeprefix("Column<'").removesuffix("'>") if isinstance(argument, Column) else text
