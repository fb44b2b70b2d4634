"""Lowering ``groupBy(...).agg(...)`` and ``distinct()``, with windows in the form that Spark's analysis gives them."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from operator import and_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType

from headrace.errors import UnsupportedError
from headrace.frontend.array_keys import as_text, from_text, is_kept_as_text
from headrace.frontend.lowered import Lowered, results_of, unique_names
from headrace.frontend.registry import Lowering, lowers
from headrace.graph.nodes import AggregateNode, Rows
from headrace.graph.steps import FunctionStep
from headrace.graph.windows import SessionSpec, WindowSpec
from headrace.spark.expressions import quoted
from headrace.spark.logical import Expression, Logical, by_name, by_position
from headrace.spark.plan_aggregates import AggregateParts, aggregate_parts
from headrace.spark.plan_joins import filters_above
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
            found="a session window that has another form than Spark's analysis gives it",
            hint="run the query on Spark: option('headrace.fallback', 'spark')",
        )
    base = child if window is None else window.base
    below = lowering.lower(base).uniquely_named()
    if not lowering.is_named(node):
        below = _without_other_groups(parts, lowering.above(node), base, below)

    def bound(expression: Expression) -> Column:
        return by_position(expression, base.columns, below.rows.frame)

    arrays = {at: group.type for at, group in enumerate(parts.groups) if is_kept_as_text(group.type)}

    def key(number: int) -> Column:
        group = bound(parts.groups[number])
        return as_text(group, arrays[number]) if number in arrays else group

    names = unique_names([*parts.group_names, *(parts.call_names or ("rows",))])
    groups, calls = names[: len(parts.groups)], names[len(parts.groups) :]
    keys = tuple(key(number).alias(name) for number, name in enumerate(groups) if number != at)
    aggregates = tuple(bound(call).alias(name) for call, name in zip(parts.calls, calls, strict=False)) or (_row_count(calls[0]),)
    spec = None if window is None else _spec(window, groups[at], bound)
    rows = results_of(AggregateNode(below.rows, keys, spec, max(0, at), aggregates, lowering.where, windows_as_keys=True))
    if arrays:
        rows = _with_arrays(rows, {groups[number]: kind for number, kind in arrays.items()}, lowering.where)
    if parts.is_plain():
        return Lowered(node, rows, lowering.where)
    shown = parts.shown(groups, calls if parts.calls else ())

    def show(results: DataFrame) -> DataFrame:
        return results.select(*shown)

    return Lowered(node, rows.after(FunctionStep("select", show, lowering.where), show(rows.frame)), lowering.where)


def _without_other_groups(parts: AggregateParts, top: Logical, base: Logical, below: Lowered) -> Lowered:
    """The rows of the groups that conditions behind the aggregate keep. As in Spark, the others do not move the watermark of a source."""
    names = {column.id: name for column, name in zip(base.columns, below.rows.columns, strict=True)}
    plain = {shown: names[column] for shown, column in parts.plain_groups() if column in names}
    every = [each for condition in filters_above(top, parts.node) for each in condition.conjuncts()]
    alone = [by_name(each, plain) for each in every if each.column_ids and each.column_ids <= set(plain)]
    return below.filtered(reduce(and_, alone)) if alone else below


def _with_arrays(rows: Rows, arrays: dict[str, DataType], where: str) -> Rows:
    """The results with arrays in the place of their texts."""

    def restored(results: DataFrame) -> DataFrame:
        return results.withColumns({name: from_text(F.col(quoted(name)), kind) for name, kind in arrays.items()})

    return rows.after(FunctionStep("arrays", restored, where), restored(rows.frame))


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


def _spec(window: FoundWindow, name: str, bound: Callable[[Expression], Column]) -> WindowSpec | SessionSpec:
    time = bound(window.time)
    if window.until is not None:
        return SessionSpec(name, time, None, bound(window.until))
    if window.is_session:
        return SessionSpec(name, time, window.size_us)
    return WindowSpec(name, time, window.size_us, window.advance_us, window.offset_us)


def _row_count(name: str) -> Column:
    """An aggregate for a node that has none: ``distinct``, or groups alone."""
    return F.count(F.lit(1)).alias(name)
