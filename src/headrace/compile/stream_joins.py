"""Compiling joins of two streams as Spark has them: any condition, bounds in time that differ by side, and none."""

from __future__ import annotations

from functools import partial

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from headrace.compile.buffers import readers
from headrace.compile.joins import pair_condition
from headrace.compile.plan import Description, Finish, Input, Results, StatefulPlan, Timing, hash_of
from headrace.compile.registry import compiles
from headrace.compile.sides import (
    Joined,
    SideColumns,
    divided_columns,
    field_of,
    own_templates,
    share_places,
    text_of,
    travelling,
)
from headrace.compile.types import check_key
from headrace.config import Config
from headrace.graph.nodes import StreamJoinNode
from headrace.operators.join import StreamJoin
from headrace.operators.kernel import OutputMode
from headrace.operators.lifetime import NEVER
from headrace.operators.pairing import LEFT, RIGHT, SIDE, Pairing
from headrace.spark.expressions import quoted
from headrace.spark.versions import dialect
from headrace.state.layout import SUB

OUTER = {"inner": (False, False), "semi": (False, False), "left": (True, False), "right": (False, True), "full": (True, True)}
"""By kind of join: for each side, whether its rows are emitted even without a partner."""

REWRITE = "compute what it needs in columns of either side before the join, or run the query on Spark: option('headrace.fallback', 'spark')"
"""What to do about a condition that cannot be evaluated on pairs of rows."""


@compiles(StreamJoinNode)
def compile_stream_join(node: StreamJoinNode, config: Config) -> StatefulPlan:
    """The plan of a join: rows of both sides go through one shuffle, and the kernel keeps a buffer for each side."""
    frames = own_templates(tuple(stream.frame for stream in node.inputs))
    sides = side_of(node, frames, LEFT), side_of(node, frames, RIGHT)
    for left in sides[LEFT].keys:
        check_key(left.dataType, f"{node.where}, key {left.name!r}")
    columns = _columns(node, sides)
    places, kinds = share_places(sides)
    condition, leaves_to_spark = pair_condition(node, columns, REWRITE)
    bounded = node.keep_us != (None, None)
    pairing = Pairing((sides[LEFT].layout(), sides[RIGHT].layout()), places, False, condition, node.where)
    semi = node.how == "semi"
    operator = StreamJoin(pairing, node.keep_us, OUTER[node.how], semi, node.may_be_late, semi and dialect().semi_joins_forget_first)
    finish = _filtered(columns.finish(), node) if leaves_to_spark else columns.finish()
    shown = _shown(node, columns)
    back_us = operator.looks_back_us(OutputMode.APPEND)
    return StatefulPlan(
        kind="join",
        input=Input(
            frames=frames,
            selected=_selected(node, sides, places, kinds, bounded),
            keyed=(*(f"k{i}" for i in range(len(sides[LEFT].keys))), SUB),
            hashed=hash_of([f"k{i}" for i in range(len(sides[LEFT].keys))], config.hashBits),
            values=(F.col(SIDE), *(F.col(f"v{i}") for i in range(len(kinds)))),
        ),
        operator=operator,
        results=Results(
            columns.kernel_schema(),
            lambda rows: finish(rows).select(*shown),
            _schema(columns.schema if back_us is not None else columns.schema_without_event_time, shown),
        ),
        readers=readers(operator, sides, kinds),
        description=_description(node, sides, columns, leaves_to_spark),
        timing=Timing(
            uses_watermark=any(operator.timed),
            modes=(OutputMode.APPEND,) if any(OUTER[node.how]) else (OutputMode.APPEND, OutputMode.UPDATE),
            hold_ms=0 if back_us is None else -(-back_us // 1000),
            expires=bounded,
        ),
    )


def side_of(node: StreamJoinNode, frames: tuple[DataFrame, ...], which: int) -> SideColumns:
    """The columns of one side."""
    time = node.times[which]
    # If both sides may be missing, a key alone does not say which side it is of. So each side keeps its own.
    return divided_columns(frames[which], node.on[which], None if time is None else field_of(frames[which], time), whole=node.how == "full")


def _columns(node: StreamJoinNode, sides: tuple[SideColumns, SideColumns]) -> Joined:
    """All columns of the left side and then all of the right side, hidden ones too."""
    outer = OUTER[node.how]
    fields: list[tuple[T.StructField, int | None, str]] = []
    for which, side in enumerate(sides):
        for f in side.frame.schema.fields:
            nullable = f.nullable or outer[1 - which]
            fields.append((T.StructField(f.name, f.dataType, nullable, f.metadata), which, f.name))
    return Joined(sides, outer, tuple(fields))


def _shown(node: StreamJoinNode, columns: Joined) -> list[str]:
    sides = (LEFT,) if node.how == "semi" else (LEFT, RIGHT)
    return [quoted(f.name) for f, which, _ in columns.fields if which in sides and f.name not in node.hidden]


def _schema(whole: T.StructType, shown: list[str]) -> T.StructType:
    return T.StructType([f for f in whole.fields if quoted(f.name) in shown])


def _filtered(finish: Finish, node: StreamJoinNode) -> Finish:
    condition = node.condition
    return finish if condition is None else lambda frame: finish(frame).filter(condition)


def _selected(
    node: StreamJoinNode,
    sides: tuple[SideColumns, SideColumns],
    places: tuple[tuple[str, ...], tuple[str, ...]],
    kinds: list[T.DataType],
    bounded: bool,
) -> DataFrame:
    """The rows of both sides in one DataFrame. Rows that cannot have a partner are dropped, except on an outer side."""
    parts = []
    for which, side in enumerate(sides):
        part = side.frame.select(*travelling(side, which, places[which], kinds))
        if not OUTER[node.how][which]:
            part = part.dropna(subset=[f"k{i}" for i in range(len(side.keys))])
            part = part.filter(F.col(SUB) != NEVER) if bounded else part
        parts.append(part)
    return parts[LEFT].union(parts[RIGHT])


def _description(node: StreamJoinNode, sides: tuple[SideColumns, SideColumns], columns: Joined, leaves_to_spark: bool) -> Description:
    kept = [
        f"{name} {'for ever' if us is None else f'{us // 1000} ms of {time}'}"
        for name, us, time in zip(("left", "right"), node.keep_us, node.times, strict=True)
    ]
    shown = {
        "operator": "join",
        "how": node.how,
        "with": "another stream",
        "keys": [f"{f.name}: {f.dataType.simpleString()}" for f in sides[LEFT].keys],
        "keeps": ", ".join(kept),
        "condition": text_of(node.condition),
        "evaluated": None
        if node.condition is None
        else "by Spark, on the results"
        if leaves_to_spark
        else "on pairs, before they are built",
        "columns": columns.schema.names,
    }
    keys = [" = ".join(pair) for pair in zip(*node.on, strict=True)]
    return Description(shown, only_shown=("evaluated", "columns"), resolved=partial(columns.resolved, keys, node.condition))
