"""From a text to the DataFrames that it describes.

An SQL text is one query; commands are refused by Spark's parser before anything runs. A PySpark text is executed, with these names:
``spark``, ``F``, ``Window``, ``hr``, and each stream by its own. Its result is its last expression, or the variable ``result``: a
DataFrame, a stream of ``hr.stream``, or a dict of them by name, for a query with several sinks.
"""

from __future__ import annotations

import ast
import linecache
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from headrace.api.editor.marks import FILE, Mark, TextError, python_mark, sql_mark
from headrace.api.planning import planning
from headrace.api.spark_frame import SparkFrame
from headrace.graph.nodes import Rows
from headrace.spark.sql_text import parse_query

Result = SparkFrame | Rows
_LAST = "__last__"
GROUPING = ("groupBy", "groupby", "rollup", "cube", "groupingSets", "pivot")
"""Methods whose ``count()`` builds a DataFrame."""
SAFE_MODULES = ("pyspark", "headrace", "datetime", "decimal", "functools", "math", "re", "typing")
DOING = {
    *("collect", "show", "take", "head", "first", "tail", "toPandas", "toArrow", "toLocalIterator", "foreach", "foreachPartition"),
    *("start", "toTable", "stop", "save", "saveAsTable", "insertInto", "write", "writeTo", "writeStream", "replace", "rescale", "sql"),
    *("cache", "persist", "unpersist", "checkpoint", "localCheckpoint", "createOrReplaceTempView", "createTempView"),
    *("createOrReplaceGlobalTempView", "createGlobalTempView", "dropTempView", "dropGlobalTempView", "set", "unset", "catalog"),
    *("sparkContext", "streams", "session", "enable", "disable", "newSession", "addArtifact", "addArtifacts", "udf", "dataSource"),
    *("rdd", "pandas_api", "isEmpty", "describe", "summary", "approxQuantile", "editor", "cancelAllJobs"),
    *("interruptAll", "interruptTag", "interruptOperation"),
}
"""Attributes of PySpark that do something at once. A text with one of them is executed only if somebody asks for it."""
BUILT_INS = {"exec", "eval", "compile", "open", "input", "breakpoint", "exit", "quit", "setattr", "getattr", "delattr", "globals", "vars"}


@dataclass(frozen=True)
class Built:
    """What a text describes."""

    results: Mapping[str, Result]
    """By name; the only result has the name ``""``."""
    line: int
    """The line of the result, for errors that are about all of it."""


def built_from_sql(session: SparkSession, text: str) -> Built:
    """The DataFrame of an SQL text. Raises TextError."""
    query = text.strip().rstrip(";").rstrip()
    if not query:
        raise TextError(Mark("the text is empty: write a query, such as SELECT * FROM a_stream"))
    try:
        # Leading lines count in the positions of errors.
        whole = text[: text.index(query) + len(query)]
        parse_query(session, whole)
        return Built({"": SparkFrame(session.sql(whole))}, 0)
    except Exception as failed:
        raise TextError(sql_mark(failed, text)) from failed


def built_from_python(session: SparkSession, text: str, streams: Mapping[str, DataFrame]) -> Built:
    """The results of a PySpark text, which is executed. Raises TextError."""
    tree = parsed(text)
    if not tree.body:
        raise TextError(Mark("the text is empty: its last expression, or the variable result, is the query"))
    last = tree.body[-1]
    if isinstance(last, ast.Expr):
        tree.body[-1] = ast.copy_location(ast.Assign([ast.copy_location(ast.Name(_LAST, ast.Store()), last)], last.value), last)
    names = namespace(session, streams)
    _execute(tree, text, names)
    value = names.get(_LAST)
    if not isinstance(value, DataFrame | dict) and _rows_of(value) is None and "result" in names:
        value = names["result"]
    return Built(_results(value, last.lineno), last.lineno)


def parsed(text: str) -> ast.Module:
    """The syntax tree of a Python text. Raises TextError."""
    try:
        return ast.parse(text, FILE)
    except (SyntaxError, ValueError) as wrong:
        raise TextError(python_mark(wrong)) from wrong


def namespace(session: SparkSession, streams: Mapping[str, DataFrame]) -> dict[str, Any]:
    """The names that a text can use."""
    public = sys.modules[__name__.partition(".")[0]]
    return {**streams, "spark": session, "F": F, "Window": Window, "hr": public, "__name__": FILE, "__builtins__": __builtins__}


def frames_by_name(session: SparkSession, text: str, streams: Mapping[str, DataFrame]) -> tuple[dict[str, DataFrame], tuple[Mark, ...]]:
    """The DataFrames that a text assigns to names, statement by statement; and what is wrong with each statement that failed."""
    names, marks = namespace(session, streams), list[Mark]()
    for statement in parsed(text).body:
        try:
            _execute(ast.Module([statement], []), text, names)
        except TextError as wrong:
            # What follows from a failed step only says that its name is not defined.
            marks += [each for each in wrong.marks if each.kind != "NameError"]
    return {name: value for name, value in names.items() if isinstance(value, DataFrame)}, tuple(marks)


def does_more(tree: ast.Module) -> tuple[int, str] | None:
    """Line and name of the first thing in a text that may do more than build a DataFrame; None if there is none.

    >>> does_more(ast.parse("x = calls.filter('seconds > 3')\\nx.groupBy('src').count()"))
    >>> does_more(ast.parse("x = 1\\ncalls.write.parquet('out')"))
    (2, 'write')
    >>> does_more(ast.parse("x = prices.count()"))
    (1, 'count')
    """
    return min(_doing(tree), default=None)


def _doing(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and (node.attr in DOING or node.attr.startswith("_")):
            yield node.lineno, node.attr
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "count" and _counts_rows(node):
            yield node.func.lineno, "count"
        elif isinstance(node, ast.Name) and (node.id in BUILT_INS or node.id.startswith("__")):
            yield node.lineno, node.id
        elif isinstance(node, ast.Import):
            yield from ((node.lineno, f"import {each.name}") for each in node.names if each.name.split(".")[0] not in SAFE_MODULES)
        elif isinstance(node, ast.ImportFrom) and (node.level or (node.module or "").split(".")[0] not in SAFE_MODULES):
            yield node.lineno, f"import {node.module}"
        elif isinstance(node, ast.While | ast.Delete | ast.Global | ast.With | ast.AsyncFor | ast.AsyncWith | ast.Await):
            yield node.lineno, type(node).__name__.lower()


def _counts_rows(count: ast.Call) -> bool:
    """True if a call of ``count()`` may be that of a DataFrame, which runs a job, and not that of groups."""
    called = count.func.value if isinstance(count.func, ast.Attribute) else None
    grouped = isinstance(called, ast.Call) and isinstance(called.func, ast.Attribute) and called.func.attr in GROUPING
    return not count.args and not grouped


def _execute(tree: ast.Module, text: str, names: dict[str, Any]) -> None:
    """Run a text. Queries of Headrace that it starts are planned instead."""
    lines = [line + "\n" for line in text.split("\n")]
    # Tracebacks and Spark's own notes of the calling line show the text's lines.
    linecache.cache[FILE] = (len(text), None, lines, FILE)
    try:
        with planning():
            exec(compile(tree, FILE, "exec"), names)
    except (Exception, SystemExit) as failed:
        raise TextError(python_mark(failed)) from failed


def _results(value: Any, line: int) -> dict[str, Result]:
    given = value if isinstance(value, dict) else {"": value}
    found = {str(name): _rows_of(each) for name, each in given.items()}
    wrong = next((type(given[name]).__name__ for name, rows in zip(given, found.values(), strict=True) if rows is None), None)
    if wrong is not None or not found:
        wanted = "the last expression, or the variable result, must be a streaming DataFrame, a stream, or a dict of them by name"
        raise TextError(Mark(f"{wanted}; it is {'an empty dict' if wrong is None else wrong}", line, kind="QueryError"))
    return {name: rows for name, rows in found.items() if rows is not None}


def _rows_of(value: Any) -> Result | None:
    if isinstance(value, DataFrame):
        return SparkFrame(value)
    rows = getattr(value, "rows", None)
    return rows if isinstance(rows, Rows) else None
