"""Lowering ``groupBy(...).agg(...)`` and ``distinct()``, with windows in the form that Spark's analysis gives them."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from headrace.errors import UnsupportedError
from headrace.frontend.lowered import Lowered, results_of, unique_names
from headrace.frontend.registry import Lowering, lowers
from headrace.graph.nodes import AggregateNode
from headrace.graph.steps import FunctionStep
from headrace.graph.windows import SessionSpec, WindowSpec
from headrace.spark.logical import Expression, Logical, by_position
from headrace.spark.plan_aggregates import AggregateParts, aggregate_parts
from headrace.spark.plan_windows import SESSION, FoundWindow, found_window, has_window


@lowers("Aggregate", "Distinct")
def lower_aggregate(node: Logical, lowering: Lowering) -> Lowered:
    """The operator computes the groups and the calls; a step computes the results from them."""
    parts = aggregate_parts(node)
    child = node.children[0]
    window, at = _window(parts, child, lowering.panes)
    if window is None and has_window(child, SESSION) and _is_expanded_session(child):
        raise UnsupportedError(
            where=lowering.where,
            found="a session window whose gap differs from row to row, or is no duration of hours, minutes or seconds",
            hint="use a gap such as '30 minutes', or run the query on Spark: option('headrace.fallback', 'spark')",
        )
    base = child if window is None else window.base
    below = lowering.lower(base).uniquely_named()

    def bound(expression: Expression) -> Column:
        return by_position(expression, base.columns, below.rows.frame)

    names = unique_names([*parts.group_names, *(parts.call_names or ("rows",))])
    groups, calls = names[: len(parts.groups)], names[len(parts.groups) :]
    keys = tuple(bound(group).alias(name) for i, (group, name) in enumerate(zip(parts.groups, groups, strict=True)) if i != at)
    aggregates = tuple(bound(call).alias(name) for call, name in zip(parts.calls, calls, strict=False)) or (_row_count(calls[0]),)
    spec = None if window is None else _spec(window, groups[at], bound(window.time))
    rows = results_of(AggregateNode(below.rows, keys, spec, max(0, at), aggregates, lowering.where, windows_as_keys=True))
    if parts.is_plain():
        return Lowered(node, rows, lowering.where)
    shown = parts.shown(groups, calls if parts.calls else ())

    def show(results: DataFrame) -> DataFrame:
        return results.select(*shown)

    return Lowered(node, rows.after(FunctionStep("select", show, lowering.where), show(rows.frame)), lowering.where)


def _window(parts: AggregateParts, child: Logical, panes: bool) -> tuple[FoundWindow | None, int]:
    """The window among the grouping expressions and its place there; None and -1 if the operator need not know of one."""
    found = found_window(child)
    if found is None or not (panes or found.is_session):
        return None, -1
    places = [at for at, group in enumerate(parts.groups) if group.column_id == found.column_id]
    elsewhere = [*(g for g in parts.groups if g.column_id != found.column_id), *parts.calls]
    # The window's column may be used in other ways too. Then it is a column like others, which Spark computes before the operator.
    if not places or any(found.column_id in each.column_ids for each in elsewhere):
        return None, -1
    return found, places[0]


def _is_expanded_session(child: Logical) -> bool:
    """True if the session windows of a plan are made right there. They may also be results of an aggregate further down."""
    return child.kind == "Filter" and child.children[0].kind == "Project" and not has_window(child.children[0].children[0], SESSION)


def _spec(window: FoundWindow, name: str, time: Column) -> WindowSpec | SessionSpec:
    if window.is_session:
        return SessionSpec(name, time, window.size_us)
    return WindowSpec(name, time, window.size_us, window.advance_us, window.offset_us)


def _row_count(name: str) -> Column:
    """An aggregate for a node that has none: ``distinct``, or groups alone."""
    return F.count(F.lit(1)).alias(name)
