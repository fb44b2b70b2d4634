"""A text's query, analysed by Spark, lowered and compiled, without starting anything: its columns, graph, plan and cost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark.sql.types import StructType

from headrace.api.editor.marks import Mark, TextError, short
from headrace.api.editor.texts import Built
from headrace.api.planning import Planned, planning
from headrace.api.sources import check_source
from headrace.api.spark_frame import SparkFrame
from headrace.compile.described import described
from headrace.compile.explain import rendered
from headrace.errors import HeadraceError
from headrace.spark.expressions import WATERMARK_KEY

MODES = ("append", "update", "complete")
RATE = 10_000.0
"""Rows a second for which the cost of strategies is shown."""

NewWriter = Callable[[Any], Any]
"""The writer of a DataFrame or stream: ``StreamWriter``."""
StartSeveral = Callable[..., Any]
"""Starts one query of several writers: ``hr.start``."""


def columns_of(schema: StructType) -> list[dict[str, Any]]:
    """Names and types of columns, and the delay of a watermark on one."""
    fields = schema.fields
    return [{"name": each.name, "type": each.dataType.simpleString(), "delayMs": each.metadata.get(WATERMARK_KEY)} for each in fields]


def checked(built: Built, mode: str, new_writer: NewWriter, start: StartSeveral) -> dict[str, Any]:
    """What the page shows of a query. Raises TextError if it cannot run in this output mode, and says in which ones it can."""
    for rows in built.results.values():
        if isinstance(rows, SparkFrame):
            try:
                check_source(rows.frame, "")
            except HeadraceError as refused:
                raise TextError(Mark(str(refused).removeprefix(": "), built.line, kind=type(refused).__name__)) from refused
    try:
        planned = plan(built, mode, new_writer, start)
    except Exception as failed:
        others = [other for other in MODES if other != mode and _is_possible(built, other, new_writer, start)]
        kind, message = short(failed)
        hint = f" In output mode {' or '.join(others)} it can run." if others else ""
        raise TextError(Mark(message + hint, built.line, kind=kind)) from failed
    sinks = list(planned.sinks) if len(built.results) == 1 else list(built.results)
    shown = [f"to {each}" for each in sinks] if len(built.results) > 1 else ["to the sink"]
    names = sinks if len(built.results) > 1 else ["sink"]
    results = {name: columns_of(rows.schema) for name, rows in built.results.items()}
    instances = {name: each.instances for name, each in planned.routing.items()}
    return {
        "results": results,
        "mode": mode,
        "graph": described(planned.flow, planned.routing, names, shown),
        "instances": instances,
        "plan": rendered(planned.flow, planned.routing, names, shown, safety=planned.safety),
        "cost": _cost(planned, names, shown),
        "stateful": [str(each.id) for each in planned.flow.ops],
    }


def plan(built: Built, mode: str, new_writer: NewWriter, start: StartSeveral) -> Planned:
    """The compiled query, which does not run."""
    writers = [new_writer(each).format("noop").outputMode(mode) for each in built.results.values()]
    with planning() as noted:
        if len(writers) == 1:
            writers[0].start()
        else:
            start(*writers, checkpointLocation="not-started")
    return noted[0]


def _is_possible(built: Built, mode: str, new_writer: NewWriter, start: StartSeveral) -> bool:
    try:
        plan(built, mode, new_writer, start)
    except Exception:
        return False
    return True


def _cost(planned: Planned, names: list[str], shown: list[str]) -> str:
    """The comparison of strategies; for a query without stateful operators there is nothing to compare."""
    if not planned.flow.ops:
        return ""
    return rendered(planned.flow, planned.routing, names, shown, "cost", RATE)


