"""Lowering joins of two streams."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce
from operator import and_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from headrace.errors import UnsupportedError
from headrace.frontend.array_keys import as_text, is_kept_as_text
from headrace.frontend.lowered import Lowered, results_of
from headrace.frontend.registry import Lowering, lowers
from headrace.graph.nodes import Rows, StreamJoinNode
from headrace.graph.steps import FunctionStep
from headrace.logs import logger
from headrace.spark.logical import Logical, by_name
from headrace.spark.plan_joins import PRESERVED, JoinParts, SidePart, computed_by_side, filters_above, join_parts

_log = logger(__name__)
_SUPPORTED = ("inner", "left", "right", "full", "semi")
Times = tuple[int | None, int | None]
_LEFT, _RIGHT = 0, 1
_OUTER = {"inner": (), "semi": (), "left": (_LEFT,), "right": (_RIGHT,), "full": (_LEFT, _RIGHT)}


@dataclass(frozen=True)
class _Side:
    """One side of a join, with names of columns that the other side does not have."""

    rows: Rows
    names: dict[int, str]
    """The names of the side's columns, by id."""
    keys: tuple[str, ...]
    """The names of the key columns."""
    hidden: tuple[str, ...]
    """The names of added columns, which are no columns of the result."""


@lowers("Join")
def lower_join(node: Logical, lowering: Lowering) -> Lowered:
    """Equal expressions become keys. All other conditions are checked on pairs of rows."""
    parts = join_parts(node, filters_above(lowering.above(node), node))
    if lowering.is_named(node):
        parts = replace(parts, dropped=())
    where = lowering.where
    if parts.how not in _SUPPORTED:
        raise UnsupportedError(where=where, found=f"a {parts.how} join of two streams", supported=_SUPPORTED)
    if not parts.keys:
        hint = "add an equality of two columns to the join's condition, or use hr.crossJoin(left, right, within=..., where=...)"
        raise UnsupportedError(
            "Stream-stream join without equality predicate is not supported", where=where, found=node.join_type, hint=hint
        )
    if parts.bounds_others:
        raise UnsupportedError(
            where=where,
            wanted="bounds in time between the event times of both sides",
            found="a bound on a column that has no watermark",
            hint="call withWatermark on that column, or run the query on Spark: option('headrace.fallback', 'spark')",
        )
    for side, ms in enumerate(parts.keep_ms if parts.time_key is None else ()):
        if ms is None:
            _log.info("%s: the join keeps the rows of its %s side for ever, as Spark does", where, ("left", "right")[side])
    times = _event_times(parts, lowering.used(node), where)
    left = lowering.lower(parts.left).uniquely_named()
    right = lowering.lower(parts.right).uniquely_named(left.rows.columns)
    try:
        return Lowered(node, _joined(parts, times, left, right, where, by_side=False), where)
    except UnsupportedError:
        # Perhaps what cannot be evaluated on pairs reads one side alone. Then Spark computes it for the rows of that side.
        if parts.condition is None:
            raise
        return Lowered(node, _joined(parts, times, left, right, where, by_side=True), where)


def _joined(parts: JoinParts, times: Times, left: Lowered, right: Lowered, where: str, by_side: bool) -> Rows:
    """The rows of a join. If ``by_side``, parts of the condition that read one side alone become columns of that side."""
    condition = parts.condition
    computed: tuple[SidePart, ...] = ()
    if by_side and condition is not None:
        condition, computed = computed_by_side(condition, parts.left, parts.right)
    sides = _side(left, parts, _LEFT, computed, where), _side(right, parts, _RIGHT, computed, where)
    keep = (0, 0) if parts.time_key is not None else tuple(None if ms is None else ms * 1000 for ms in parts.keep_ms)
    joined = StreamJoinNode(
        (sides[_LEFT].rows, sides[_RIGHT].rows),
        (sides[_LEFT].keys, sides[_RIGHT].keys),
        frozenset((*sides[_LEFT].hidden, *sides[_RIGHT].hidden)),
        _times(parts, times, sides, where),
        (times[_LEFT] is not None, times[_RIGHT] is not None),
        (keep[_LEFT], keep[_RIGHT]),
        parts.how,
        None if condition is None else by_name(condition, {**sides[_LEFT].names, **sides[_RIGHT].names}),
        where,
    )
    return results_of(joined)


def _side(below: Lowered, parts: JoinParts, which: int, computed: tuple[SidePart, ...], where: str) -> _Side:
    """The rows of a side with its keys as columns. In an outer join, a row that fails a condition on its side alone gets null keys."""
    names = {each.id: name for each, name in zip(below.plan.columns, below.rows.columns, strict=True)}
    own = frozenset(names)
    alone = [each for each in parts.conjuncts if each.column_ids and each.column_ids <= own and each.is_deterministic]
    guarded = bool(alone) and which in _OUTER[parts.how]
    if alone and not guarded:
        # As in Spark, rows that cannot match are dropped before the join. On a source, they do not move the watermark either.
        below = below.filtered(reduce(and_, (by_name(each, names) for each in alone)))
    if parts.dropped and which == PRESERVED[parts.how]:
        below = below.filtered(reduce(and_, (by_name(each, names) for each in parts.dropped)))
    keys: list[str] = []
    added: dict[str, Column] = {}
    for at, pair in enumerate(parts.keys):
        plain, kind = pair[which].column_id, pair[which].type
        if plain is not None and not guarded and not is_kept_as_text(kind):
            keys.append(names[plain])
            continue
        key = by_name(pair[which], names)
        key = as_text(key, kind) if is_kept_as_text(kind) else key
        keys.append(f"__headrace_key{at}_{'lr'[which]}")
        added[keys[-1]] = F.when(reduce(and_, (by_name(each, names) for each in alone)), key) if guarded else key
    for at, part in enumerate(computed):
        if part.side == which:
            name = f"__headrace_part{at}_{'lr'[which]}"
            added[name], names[part.id] = by_name(part.expression, names), name
    if not added:
        return _Side(below.rows, names, tuple(keys), ())

    def with_columns(rows: DataFrame) -> DataFrame:
        return rows.select("*", *(column.alias(name) for name, column in added.items()))

    rows = below.rows.after(FunctionStep("keys", with_columns, where), with_columns(below.rows.frame))
    return _Side(rows, names, tuple(keys), tuple(added))


def _event_times(parts: JoinParts, used: tuple[frozenset[int], ...] | None, where: str) -> Times:
    """The ids of the columns by whose event time rows are late and are forgotten. As in Spark, those that nobody uses do not count."""
    found: list[int | None] = []
    for which, plan in enumerate((parts.left, parts.right)):
        timed = {each.id: each.name for each in plan.columns if each.is_event_time and (used is None or each.id in used[which])}
        if len(timed) > 1:
            hint = "drop the one that is not meant before the join"
            side = ("left", "right")[which]
            raise UnsupportedError(where=where, found=f"several event times on the {side} side: {', '.join(timed.values())}", hint=hint)
        found.append(next(iter(timed), None))
    return found[0], found[1]


def _times(parts: JoinParts, times: Times, sides: tuple[_Side, _Side], where: str) -> tuple[str | None, str | None]:
    """The names of the columns by which rows are forgotten: an event time among the keys, or else that of the side."""
    found: list[str | None] = []
    for which, (time, side) in enumerate(zip(times, sides, strict=True)):
        own = None if time is None else side.names[time]
        key = own if parts.time_key is None else _shown_key(parts, side, which, parts.time_key)
        if own is not None and key != own:
            raise UnsupportedError(
                where=where,
                wanted="the same event time in the rows and in the keys",
                found=f"a key on the {('left', 'right')[which]} side that is another column than the event time {own}",
                hint="drop the event time that is not meant before the join",
            )
        found.append(key)
    return found[0], found[1]


def _shown_key(parts: JoinParts, side: _Side, which: int, at: int) -> str:
    """The name of a key, as it is in the rows."""
    column = parts.keys[at][which].column_id
    return side.keys[at] if column is None else side.names[column]
