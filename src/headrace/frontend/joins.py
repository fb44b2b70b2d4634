"""Lowering joins of two streams."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from headrace.errors import UnsupportedError
from headrace.frontend.lowered import Lowered, results_of
from headrace.frontend.registry import Lowering, lowers
from headrace.graph.nodes import Rows, StreamJoinNode
from headrace.graph.steps import FunctionStep
from headrace.logs import logger
from headrace.spark.logical import Expression, Logical, PlanColumn, by_name
from headrace.spark.plan_joins import JoinParts, filters_above, join_parts

_log = logger(__name__)
_SUPPORTED = ("inner", "left", "right", "full", "semi")
_LEFT, _RIGHT = 0, 1
_OUTER = {"inner": (), "semi": (), "left": (_LEFT,), "right": (_RIGHT,), "full": (_LEFT, _RIGHT)}


@dataclass(frozen=True)
class _Side:
    """One side of a join, with names of columns that the other side does not have."""

    rows: Rows
    columns: tuple[PlanColumn, ...]
    keys: tuple[str, ...]
    """The names of the key columns."""
    hidden: tuple[str, ...]
    """The names of key columns that are no columns of the side's plan."""

    @property
    def names(self) -> dict[int, str]:
        """The names of the side's columns, by id."""
        return {each.id: name for each, name in zip(self.columns, self.rows.columns, strict=False)}


@lowers("Join")
def lower_join(node: Logical, lowering: Lowering) -> Lowered:
    """Equal expressions become keys. All other conditions are checked on pairs of rows."""
    parts = join_parts(node, filters_above(lowering.above(node), node))
    where = lowering.where
    if parts.how not in _SUPPORTED:
        raise UnsupportedError(where=where, found=f"a {parts.how} join of two streams", supported=_SUPPORTED)
    if not parts.keys:
        hint = "add an equality of two columns to the join's condition"
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
    left = _side(lowering.lower(parts.left).uniquely_named(), parts, _LEFT, where)
    right = _side(lowering.lower(parts.right).uniquely_named(left.rows.columns), parts, _RIGHT, where)
    times = _times(parts, left, right, where)
    keep = (0, 0) if parts.time_key is not None else tuple(None if ms is None else ms * 1000 for ms in parts.keep_ms)
    for side, ms in enumerate(keep):
        if ms is None:
            _log.info("%s: the join keeps the rows of its %s side for ever, as Spark does", where, ("left", "right")[side])
    condition = None if parts.condition is None else _condition(parts.condition, left, right)
    joined = StreamJoinNode(
        (left.rows, right.rows),
        (left.keys, right.keys),
        frozenset((*left.hidden, *right.hidden)),
        times,
        (keep[_LEFT], keep[_RIGHT]),
        parts.how,
        condition,
        where,
    )
    return Lowered(node, results_of(joined), where)


def _condition(condition: Expression, left: _Side, right: _Side) -> Column:
    return by_name(condition, {**left.names, **right.names})


def _side(below: Lowered, parts: JoinParts, which: int, where: str) -> _Side:
    """The rows of a side with its keys as columns. In an outer join, a row that fails a condition on its side alone gets null keys."""
    columns = below.plan.columns
    names = {each.id: name for each, name in zip(columns, below.rows.columns, strict=True)}
    own = frozenset(names)
    alone = [each for each in parts.conjuncts if each.column_ids and each.column_ids <= own and each.is_deterministic]
    guarded = bool(alone) and which in _OUTER[parts.how]
    keys: list[str] = []
    added: list[Column] = []
    for at, pair in enumerate(parts.keys):
        if pair[which].column_id is not None and not guarded:
            keys.append(names[pair[which].column_id or 0])
            continue
        key = by_name(pair[which], names)
        if guarded:
            holds = by_name(alone[0], names)
            for each in alone[1:]:
                holds = holds & by_name(each, names)
            key = F.when(holds, key)
        keys.append(f"__headrace_key{at}_{'lr'[which]}")
        added.append(key.alias(keys[-1]))
    if not added:
        return _Side(below.rows, columns, tuple(keys), ())

    def with_keys(rows: DataFrame) -> DataFrame:
        return rows.select("*", *added)

    rows = below.rows.after(FunctionStep("keys", with_keys, where), with_keys(below.rows.frame))
    return _Side(rows, columns, tuple(keys), tuple(dict.fromkeys(key for key in keys if key not in below.rows.columns)))


def _times(parts: JoinParts, left: _Side, right: _Side, where: str) -> tuple[str | None, str | None]:
    """The columns by whose event time rows are late and are forgotten."""
    found: list[str | None] = []
    for which, side in enumerate((left, right)):
        timed = [each for each in side.columns if each.is_event_time]
        if len(timed) > 1:
            names = ", ".join(each.name for each in timed)
            hint = "drop the one that is not meant before the join"
            raise UnsupportedError(where=where, found=f"several event times on the {('left', 'right')[which]} side: {names}", hint=hint)
        found.append(side.names[timed[0].id] if timed else None)
    if parts.time_key is not None:
        keys = (left.keys[parts.time_key], right.keys[parts.time_key])
        for which, side in enumerate((left, right)):
            if found[which] != _shown_key(parts, side, which):
                raise UnsupportedError(
                    where=where,
                    wanted="event times with a watermark on both sides of an equality of event times",
                    found=f"{keys[which]} on the {('left', 'right')[which]} side, which has no watermark of its own",
                    hint="call withWatermark on that column too",
                )
    return found[0], found[1]


def _shown_key(parts: JoinParts, side: _Side, which: int) -> str | None:
    assert parts.time_key is not None
    column = parts.keys[parts.time_key][which].column_id
    return None if column is None else side.names[column]
