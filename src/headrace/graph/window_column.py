"""Recognising ``F.window(...)`` among grouping columns, by reading the column's tree."""

from __future__ import annotations

from typing import Any

from py4j.java_gateway import get_field
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.classic.column import Column as ClassicColumn

from headrace.compile.catalyst import checked, class_name, items
from headrace.errors import QueryError, UnsupportedError
from headrace.graph.nodes import WindowSpec


def as_window(session: SparkSession, source: DataFrame, column: Column, where: str) -> WindowSpec | None:
    """The window that a grouping column asks for, or None if it is a column like any other."""
    node: Any = column._jc.node()  # type: ignore[operator]
    name = "window"
    if class_name(node) == "Alias":
        name, node = node.name().apply(0), node.child()
    if class_name(node) != "UnresolvedFunction":
        return None
    function = node.functionName()
    if function == "session_window":
        raise UnsupportedError(where=where, found="session_window", supported=("window (tumbling and sliding)",))
    if function != "window":
        return None
    arguments = list(items(node.arguments()))
    time = _column(session, arguments[0])
    size, *rest = [_microseconds(session, argument, where) for argument in arguments[1:]]
    advance = rest[0] if rest else size
    offset = rest[1] if len(rest) > 1 else 0
    checked(where, lambda: source.groupBy(column).count())
    return WindowSpec(name, time, size, advance, offset % advance)


def _column(session: SparkSession, node: Any) -> Column:
    jvm: Any = session._jvm
    return ClassicColumn(jvm.org.apache.spark.sql.Column(node))


def _microseconds(session: SparkSession, node: Any, where: str) -> int:
    if class_name(node) != "Literal":
        raise QueryError(where=where, wanted="a duration such as '1 hour'", found=node.toString())
    jvm: Any = session._jvm
    text = str(node.value())
    utils = jvm.org.apache.spark.sql.catalyst.util.IntervalUtils
    try:
        interval = utils.stringToInterval(jvm.org.apache.spark.unsafe.types.UTF8String.fromString(text))
    except Exception:
        raise QueryError(where=where, wanted="a duration such as '1 hour'", found=repr(text)) from None
    months, days, microseconds = (int(get_field(interval, name)) for name in ("months", "days", "microseconds"))
    if months:
        raise QueryError(where=where, wanted="a duration of days or less", found=repr(text), hint="months have no fixed length")
    return days * 86_400_000_000 + microseconds
