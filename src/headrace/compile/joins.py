"""Compiling ``join`` of two streams."""

from __future__ import annotations

from functools import partial

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType

from headrace.compile.buffers import readers
from headrace.compile.plan import Description, Finish, Input, Results, StatefulPlan, Timing, hash_of
from headrace.compile.registry import compiles
from headrace.compile.sides import (
    Joined,
    SideColumns,
    bound_in_words,
    own_templates,
    pair_columns,
    share_places,
    side_columns,
    text_of,
    travelling,
)
from headrace.compile.types import check_key
from headrace.config import Config
from headrace.errors import QueryError, UnsupportedError
from headrace.graph.nodes import JoinNode, StreamJoinNode
from headrace.operators.expressions import Expr
from headrace.operators.join import StreamJoin
from headrace.operators.kernel import OutputMode
from headrace.operators.last import TIE, LastJoin
from headrace.operators.lifetime import NEVER
from headrace.operators.pairing import LEFT, RIGHT, SIDE, Pairing
from headrace.state.layout import SUB

OUTER = {"inner": (False, False), "left": (True, False), "right": (False, True), "full": (True, True)}


@compiles(JoinNode)
def compile_join(node: JoinNode, config: Config) -> StatefulPlan:
    """The plan of a join: rows of both sides go through one shuffle, and the kernel keeps a buffer for each side."""
    frames = own_templates(tuple(stream.frame for stream in node.inputs))
    one_input = len(frames) == 1
    sides = side_columns(frames[0], node.on[LEFT], node.where), side_columns(frames[-1], node.on[RIGHT], node.where)
    _check_keys(sides, node.where)
    outer = OUTER[node.how]
    columns = pair_columns(sides, outer, node.suffixes, node.where)
    condition, leaves_to_spark = pair_condition(node, columns)
    places, kinds = share_places(sides)
    pairing = Pairing((sides[LEFT].layout(), sides[RIGHT].layout()), places, one_input, condition, node.where)
    operator: StreamJoin | LastJoin
    if node.within_us is not None:
        operator = StreamJoin.within(pairing, node.within_us, outer)
        window, hold_ms, schema = bound_in_words(node.within_us, sides), -(-node.within_us // 1000), columns.schema
    else:
        size = node.last or 0
        operator, hold_ms, schema = LastJoin(pairing, size), 0, columns.schema_without_event_time
        window = f"the last {size} rows of the key on the other side"
    extra = [name for name in (SIDE, TIE) if name in operator.input_schema.names]
    in_update_mode = operator.emits_at_once(OutputMode.UPDATE) and not any(outer)
    finish = columns.finish()
    if leaves_to_spark:
        finish = _filtered(finish, node.condition)
    return StatefulPlan(
        kind="join",
        input=Input(
            frames=frames,
            selected=_selected(sides, outer, places, kinds, one_input, tie=TIE in extra),
            keyed=(*(f"k{i}" for i in range(len(sides[LEFT].keys))), SUB),
            hashed=hash_of([f"k{i}" for i in range(len(sides[LEFT].keys))], config.hashBits),
            values=tuple(F.col(name) for name in [*extra, *(f"v{i}" for i in range(len(kinds)))]),
        ),
        operator=operator,
        results=Results(columns.kernel_schema(), finish, schema),
        readers=readers(operator, sides, kinds),
        description=_description(node, sides, columns, window, leaves_to_spark),
        timing=Timing(
            uses_watermark=True,
            modes=(OutputMode.APPEND, OutputMode.UPDATE) if in_update_mode else (OutputMode.APPEND,),
            hold_ms=hold_ms,
        ),
    )


def _filtered(finish: Finish, condition: Column | None) -> Finish:
    return finish if condition is None else lambda frame: finish(frame).filter(condition)


def _check_keys(sides: tuple[SideColumns, SideColumns], where: str) -> None:
    for left, right in zip(sides[LEFT].keys, sides[RIGHT].keys, strict=True):
        check_key(left.dataType, f"{where}, key {left.name!r}")
        if left.dataType != right.dataType:
            found = f"{left.name} as {left.dataType.simpleString()} on the left and {right.dataType.simpleString()} on the right"
            raise QueryError(where=where, wanted="keys of one type on both sides", found=found, hint="cast one of them before the join")


REWRITE = "write the condition with comparisons, arithmetic and mathematical functions, or use how='inner'"


def pair_condition(node: JoinNode | StreamJoinNode, columns: Joined, hint: str = REWRITE) -> tuple[Expr | None, bool]:
    """The condition for the kernel, if it can be translated; and True if Spark has to evaluate it on the results instead."""
    if node.condition is None:
        return None, False
    columns.check(node.condition, node.where)
    try:
        return columns.translated(node.condition, node.where), False
    except UnsupportedError as refused:
        if node.how == "inner":
            return None, True
        raise UnsupportedError(
            "whether a row has a partner is decided by the condition, and this one cannot be evaluated on pairs of rows",
            where=node.where,
            found=f"{refused.found} in {refused.where}",
            hint=hint,
        ) from None


def _selected(
    sides: tuple[SideColumns, SideColumns],
    outer: tuple[bool, bool],
    places: tuple[tuple[str, ...], tuple[str, ...]],
    kinds: list[DataType],
    one_input: bool,
    tie: bool,
) -> DataFrame:
    """The rows of both sides in one DataFrame. Rows that cannot have a partner are dropped, except on an outer side."""
    parts = []
    for which, side in enumerate(sides[:1] if one_input else sides):
        part = side.frame.select(*travelling(side, None if one_input else which, places[which], kinds, tie))
        if not (any(outer) if one_input else outer[which]):
            part = part.filter(F.col(SUB) != NEVER).dropna(subset=[f"k{i}" for i in range(len(side.keys))])
        parts.append(part)
    return parts[0] if one_input else parts[0].union(parts[1])


def _description(
    node: JoinNode, sides: tuple[SideColumns, SideColumns], columns: Joined, window: str, leaves_to_spark: bool
) -> Description:
    shown = {
        "operator": "join",
        "how": node.how,
        "with": "itself" if len(node.inputs) == 1 else "another stream",
        "keys": [f"{f.name}: {f.dataType.simpleString()}" for f in sides[LEFT].keys],
        "window": window,
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
