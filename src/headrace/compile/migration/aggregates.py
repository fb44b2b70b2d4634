"""Carrying over the state of aggregates: Spark's buffers become our partials."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from headrace.compile import event_time
from headrace.compile.aggregates import Analysed, analyse
from headrace.compile.migration.registry import Carried, carries, check_same_types, fields_of, key_column
from headrace.compile.pieces import Piece
from headrace.compile.plan import StatefulPlan
from headrace.compile.types import encode
from headrace.errors import UnsupportedError
from headrace.graph.nodes import AggregateNode
from headrace.graph.windows import SessionSpec, WindowSpec
from headrace.operators import more_partials as M
from headrace.operators import partials as P
from headrace.operators import session
from headrace.operators.kernel import MAIN
from headrace.operators.partials import Partial
from headrace.operators.windows import TimeWindow
from headrace.spark.aggregation import AggregateCall
from headrace.spark.buffers import SparkBuffer
from headrace.spark.spark_state import SparkState
from headrace.spark.words import texts
from headrace.state.layout import SUB

_BITS, _PER_WORD = 6, 10
"""Spark packs so many registers of so many bits into one number."""
_SESSIONS = "sessionWindowStateStoreSaveExec"


@carries(AggregateNode, "stateStoreSave", _SESSIONS)
def carry_aggregate(node: AggregateNode, plan: StatefulPlan, state: SparkState) -> Carried:
    """One row of Spark's for each key, or for each key and window, becomes one row of ours."""
    if isinstance(node.window, SessionSpec) != (state.name == _SESSIONS):
        raise UnsupportedError(where=node.where, wanted="an aggregate with the same window", found=state.where)
    rows, found = _numbered(state.rows()), analyse(node)
    if isinstance(node.window, WindowSpec):
        window = TimeWindow(node.window.size_us, node.window.advance_us, node.window.offset_us)
        if not window.one_pane_each:
            raise UnsupportedError(
                "Spark keeps a value for each of the overlapping windows, and it cannot be divided into the panes that we keep",
                where=state.where,
                found=f"sliding windows, {window}",
                hint="set headrace.panes to false in the session, here and in the program: windows are then kept as Spark keeps them",
            )
    keyed = _with_keys(node, found, rows, state)
    partials = _partials(found, _buffers(node, found, state), state.where)
    names = [f"k{at}" for at in range(len(found.stored))] or ["k0"]
    own = keyed.select(*names, *_windows(node, found), *partials)
    return {MAIN: own.select(plan.input.hashed, "*")}


def _with_keys(node: AggregateNode, found: Analysed, rows: DataFrame, state: SparkState) -> DataFrame:
    """Spark's rows with our key columns, and with the grouping columns under their internal names. The window is a column ``window``."""
    fields = fields_of(rows, "key")
    if isinstance(node.window, SessionSpec):
        # Spark's key ends with the start of the session. The value has the session itself.
        fields = fields[:-1]
        rows = rows.withColumn("window", F.col("value").getField(f"v{_session_at(node, state)}"))
    elif node.window is not None:
        window = fields.pop(node.window_at)
        check_same_types(state.where, [window], [(node.window.name, _window_type(node, found))])
        rows = rows.withColumn("window", F.col("key").getField(window.name))
    check_same_types(state.where, fields, [(key.name, key.type) for key in found.keys])
    _check_names(node, fields, state)
    internal = [F.col("key").getField(f.name).cast(key.type).alias(key.internal) for f, key in zip(fields, found.keys, strict=True)]
    stored = [key_column(f, key.type) for f, key in zip(fields, found.keys, strict=True) if key in found.stored]
    named = [column.alias(f"k{at}") for at, column in enumerate(stored)] or [F.lit(0).cast("byte").alias("k0")]
    return rows.select("*", *internal, *named)


def _check_names(node: AggregateNode, fields: list[T.StructField], state: SparkState) -> None:
    """Refuse keys that are other columns. Those that are expressions have names of Spark's, which say nothing."""
    known = set(node.source.columns)
    mine = [text.rsplit(" AS ", 1)[0].strip("`") for text in texts(node.source, list(node.keys))]
    if any(a != f.name and a in known and f.name in known for a, f in zip(mine, fields, strict=True)):
        raise UnsupportedError(
            where=state.where,
            wanted=f"the keys {', '.join(mine)}",
            found=", ".join(f.name for f in fields),
            hint="the program must be the one that wrote the checkpoint",
        )


def _numbered(rows: DataFrame) -> DataFrame:
    """The rows with the fields of their values under the names ``v0``, ``v1`` and so on: Spark's names are not unique."""
    kinds = [T.StructField(f"v{at}", f.dataType, f.nullable) for at, f in enumerate(fields_of(rows, "value"))]
    return rows.withColumn("value", F.col("value").cast(T.StructType(kinds)))


def _session_at(node: AggregateNode, state: SparkState) -> int:
    """The place of the session among Spark's values, which begin with the grouping columns."""
    fields = fields_of(state.rows(), "value")
    marked = [at for at, f in enumerate(fields) if f.name == "session_window" and isinstance(f.dataType, T.StructType)]
    return marked[0] if marked else node.window_at


def _buffers(node: AggregateNode, found: Analysed, state: SparkState) -> list[tuple[int, T.StructField]]:
    """The fields of Spark's values that are buffers, with their places. Values of sessions begin with the grouping columns."""
    fields = list(enumerate(fields_of(state.rows(), "value")))
    return fields[len(found.keys) + 1 :] if isinstance(node.window, SessionSpec) else fields


def _window_type(node: AggregateNode, found: Analysed) -> T.DataType:
    kind = found.kind.time_type or T.TimestampType()
    return T.StructType([T.StructField("start", kind), T.StructField("end", kind)])


def _windows(node: AggregateNode, found: Analysed) -> list[Column]:
    """The sub-key, and the bounds of sessions."""
    kind = found.kind.time_type or T.TimestampType()
    if isinstance(node.window, SessionSpec):
        start, end = (event_time.micros(F.col(f"window.{name}"), kind).cast("long") for name in ("start", "end"))
        return [end.alias(SUB), start.alias(session.START), end.alias(session.END)]
    if node.window is not None:
        return [event_time.micros(F.col("window.start"), kind).cast("long").alias(SUB)]
    return [] if found.kind.sub is None else [found.kind.sub.cast("long").alias(SUB)]


def _partials(found: Analysed, fields: list[tuple[int, T.StructField]], where: str) -> list[Column]:
    """The columns of our partials (p0, p1, ...), from the columns of Spark's buffers."""
    buffers: dict[str, list[_Field]] = {}
    at = 0
    for text, call in found.aggregation.calls.items():
        names = call.buffer_columns()
        if call.function == "sum" and at < len(fields) and isinstance(fields[at][1].dataType, T.LongType):
            # Of small decimals, Spark's optimiser makes whole numbers of their last digit, which have no flag for an overflow.
            names = names[:1]
        mine = fields[at : at + len(names)]
        at += len(names)
        if [f.name for _, f in mine] != [name for name, _ in names]:
            raise _other_buffers(where, call, [f for _, f in mine])
        buffers[text] = [_Field(F.col("value").getField(f"v{place}"), f.dataType) for place, f in mine]
    if at != len(fields):
        raise UnsupportedError(where=where, wanted=f"{at} columns of buffers", found=f"{len(fields)}")
    columns: list[Column] = []
    for piece, calls in zip(found.parts.pieces, found.parts.calls, strict=True):
        own = _of_piece(found, piece, calls, buffers, where)
        columns += [column.cast(kind).alias(f"p{len(columns) + i}") for i, (column, kind) in enumerate(zip(own, piece.types, strict=True))]
    return columns


@dataclass(frozen=True)
class _Field:
    """A column of Spark's buffer."""

    column: Column
    type: T.DataType


def _other_buffers(where: str, call: AggregateCall, found: list[T.StructField]) -> UnsupportedError:
    return UnsupportedError(
        where=where,
        wanted=f"the buffer of {call.sql}: {', '.join(name for name, _ in call.buffer_columns())}",
        found=", ".join(f.name for f in found) or "nothing",
        hint="the program must be the one that wrote the checkpoint",
    )


def _of_piece(found: Analysed, piece: Piece, calls: tuple[str, ...], buffers: dict[str, list[_Field]], where: str) -> list[Column]:
    """The partial of one piece, which one or several calls share."""
    call = found.aggregation.calls[calls[0]]
    if piece.pick is not None or isinstance(piece.partial, P.PickRow | P.Pick):
        return _picked(found, calls, buffers, where)
    return _of_partial(found, piece.partial, call, buffers[calls[0]], where)


def _picked(found: Analysed, calls: tuple[str, ...], buffers: dict[str, list[_Field]], where: str) -> list[Column]:
    """Values, order and, if there are several values, the tie. What decided a tie is not known, so it is 0."""
    for text in calls:
        if found.aggregation.calls[text].function not in ("min_by", "max_by"):
            raise UnsupportedError(
                "Spark keeps the value that came first or last, and not its event time, by which ours is chosen",
                where=where,
                found=found.aggregation.calls[text].sql,
                hint="use min_by or max_by in the Spark query first",
            )
    values = [encode(buffers[text][0].column, buffers[text][0].type) for text in calls]
    order = buffers[calls[0]][1]
    picks = found.parts.pieces[found.parts.calls.index(calls)]
    tie = [F.lit(0).cast("long")] if isinstance(picks.partial, P.PickRow) else []
    return [*values, encode(order.column, order.type), *tie]


def _of_partial(found: Analysed, partial: Partial, call: AggregateCall, fields: list[_Field], where: str) -> list[Column]:
    """Our partial of one call, from Spark's buffer."""
    columns = [each.column for each in fields]
    if isinstance(partial, P.Both):
        count = columns[1]
        if isinstance(partial.first, P.DecimalSum):
            return [_decimal(call, fields[0]), count == 0, count]
        return [F.when(count > 0, _number(partial.first, fields[0])), count]
    if isinstance(partial, P.DecimalSum):
        return [_decimal(call, fields[0]), columns[1] if len(columns) > 1 else columns[0].isNull()]
    if isinstance(partial, P.Sum):
        return [_number(partial, fields[0])]
    if isinstance(partial, P.Extreme):
        return [encode(columns[0], fields[0].type)]
    if isinstance(partial, P.Count | P.Moments | M.HigherMoments | M.CoMoments | M.Bits):
        if len(columns) != len(partial.types):
            raise UnsupportedError(where=where, found=f"the buffer of {call.sql}", hint="this function cannot be carried over yet")
        return columns
    if isinstance(partial, P.Registers):
        return [_registers(columns)]
    buffer = call.buffer(found.aggregation.session)
    if buffer is None:
        raise UnsupportedError(where=where, found=f"the buffer of {call.sql}", hint="this function cannot be carried over yet")
    return [_listed(found, partial, call, buffer, columns)]


def _listed(found: Analysed, partial: Partial, call: AggregateCall, buffer: SparkBuffer, columns: list[Column]) -> Column:
    """A list: the values that Spark has collected, or Spark's buffer itself."""
    kind = buffer.kind
    own = F.struct(*[c.alias(f.name) for c, f in zip(columns, kind.fields, strict=True)]) if isinstance(kind, T.StructType) else columns[0]
    whole = F.array(own).cast(T.ArrayType(kind))
    if call.function in ("collect_list", "collect_set") and call.ignores_nulls:
        values = buffer.result(whole)
        element = call.arguments[0].type
        return encode(values, T.ArrayType(element))
    return encode(whole, T.ArrayType(kind))


def _number(partial: Partial, field: _Field) -> Column:
    if isinstance(field.type, T.YearMonthIntervalType):
        return encode(field.column, field.type)
    return field.column


def _decimal(call: AggregateCall, field: _Field) -> Column:
    """A sum of decimals. Spark's optimiser adds small decimals as whole numbers of their last digit."""
    if isinstance(field.type, T.DecimalType):
        return field.column
    argument = call.arguments[0].type
    scale = argument.scale if isinstance(argument, T.DecimalType) else 0
    wide = T.DecimalType(38, scale)
    return (field.column.cast(T.DecimalType(38 - scale, 0)) / F.lit(10**scale).cast(T.DecimalType(38 - scale, 0))).cast(wide)


def _registers(words: list[Column]) -> Column:
    """HyperLogLog++ registers that are not zero, from the words that Spark packs them into."""
    found = [
        F.when(rank > 0, F.lit(at * _PER_WORD + place << 8).bitwiseOR(rank.cast("int")))
        for at, word in enumerate(words)
        for place in range(_PER_WORD)
        for rank in (F.shiftrightunsigned(word, place * _BITS).bitwiseAND(F.lit((1 << _BITS) - 1)),)
    ]
    return F.array_compact(F.array(*found))
