"""Spark's own writer of streams, and the one that sessions get in its place: it does the same, but asks first who shall run the query."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame
from pyspark.sql.streaming.readwriter import DataStreamWriter

Call = tuple[str, tuple[Any, ...], dict[str, Any]]
"""A method of a writer, and its arguments."""


@dataclass
class Written:
    """What a program has asked a writer for."""

    frame: DataFrame
    calls: list[Call] = field(default_factory=list)
    """The calls that set something, in their order."""


Taker = Callable[[Written, str, Any], Any]
"""Gets what was asked for, ``start`` or ``toTable``, and its argument. Returns the query that it started; None leaves it to Spark."""


class AskingWriter(DataStreamWriter):
    """Spark's writer, which remembers what it is asked for. Spark checks all arguments."""

    def __init__(self, frame: DataFrame, taker: Taker) -> None:
        super().__init__(frame)
        self._written, self._taker = Written(frame), taker
        self._depth = 0

    def start(self, path: str | None = None, *args: Any, **more: Any) -> Any:
        return self._begin("start", path, args, more)

    def toTable(self, tableName: str, *args: Any, **more: Any) -> Any:
        return self._begin("toTable", tableName, args, more)

    def _begin(self, method: str, argument: Any, args: tuple[Any, ...], more: dict[str, Any]) -> Any:
        named = dict(zip(("format", "outputMode", "partitionBy", "queryName"), args, strict=False)) | more
        for name in ("format", "outputMode", "partitionBy", "queryName"):
            value = named.pop(name, None)
            if value is not None:
                getattr(self, name)(value)
        self.options(**named)
        found = self._taker(self._written, method, argument)
        return getattr(DataStreamWriter, method)(self, argument) if found is None else found


def _remembering(name: str) -> Callable[..., Any]:
    own = getattr(DataStreamWriter, name)

    def method(self: AskingWriter, *args: Any, **named: Any) -> Any:
        # Spark's methods may call one another; only the program's own call counts.
        self._depth += 1
        try:
            own(self, *args, **named)
        finally:
            self._depth -= 1
        if not self._depth:
            self._written.calls.append((name, args, named))
        return self

    method.__doc__ = own.__doc__
    return method


for _name in ("outputMode", "format", "option", "options", "partitionBy", "clusterBy", "queryName", "trigger", "foreach", "foreachBatch"):
    if hasattr(DataStreamWriter, _name):
        setattr(AskingWriter, _name, _remembering(_name))

_sparks_own: Any = ClassicDataFrame.writeStream


def ask_before_start(taker: Taker, wanted: Callable[[DataFrame], bool]) -> None:
    """From now on, ``df.writeStream`` of the DataFrames that are ``wanted`` asks ``taker`` before a query starts."""

    def write_stream(frame: Any) -> Any:
        return AskingWriter(frame, taker) if wanted(frame) else _sparks_own.fget(frame)

    write_stream.__doc__ = _sparks_own.fget.__doc__
    ClassicDataFrame.writeStream = property(write_stream)  # type: ignore[method-assign,assignment]


def written(writer: AskingWriter) -> Written:
    """What a program has asked a writer for that it has not started."""
    return writer._written


def sparks_writer(frame: DataFrame) -> DataStreamWriter:
    """Spark's own writer, whether or not the session asks before a start."""
    return DataStreamWriter(frame)
