"""Compiling users' stateful code: ``transformWithState``, ``transformWithStateInPandas`` and ``applyInPandasWithState``."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from headrace.compile import event_time
from headrace.compile.plan import Description, Input, Refusal, Results, StatefulPlan, Timing, hash_of
from headrace.compile.registry import compiles
from headrace.compile.types import arrow_type, check_key, decode, encode, normalize, transport_type
from headrace.compile.user_state_readers import readers
from headrace.config import Config
from headrace.errors import QueryError, UnsupportedError
from headrace.graph.nodes import UserStateNode
from headrace.operators.kernel import OutputMode
from headrace.operators.shape import columns_text
from headrace.operators.user_state.kernel import ORDER, TIME, UserState
from headrace.operators.user_state.shape import EXISTS, GROUP_STATE, TIMEOUT, Interface, Kind, TimeMode, UserShape, Variable
from headrace.spark import expressions
from headrace.spark.expressions import WATERMARK_KEY
from headrace.spark.user_state.front import Conversion, Form, UserFront
from headrace.spark.user_state.nodes import UserStateCall
from headrace.spark.words import texts
from headrace.state.layout import SUB

_INTERFACES = {Form.ROWS: Interface.ROWS, Form.PANDAS: Interface.PANDAS, Form.GROUP_STATE: Interface.GROUP_STATE}
_TIMES = {
    "none": TimeMode.NONE,
    "processingtime": TimeMode.PROCESSING,
    "eventtime": TimeMode.EVENT,
    "notimeout": TimeMode.NONE,
    "processingtimetimeout": TimeMode.PROCESSING,
    "eventtimetimeout": TimeMode.EVENT,
}
_NO_FRAME_HAS = (T.YearMonthIntervalType, T.CalendarIntervalType, T.VariantType, T.UserDefinedType)
"""Types that PySpark does not give to pandas code, or that the state cannot keep."""


@dataclass(frozen=True)
class _Columns:
    """The columns of the rows that the user's code gets."""

    keys: tuple[T.StructField, ...]
    payload: tuple[T.StructField, ...]
    time: T.StructField | None
    """The column with the watermark."""


@compiles(UserStateNode)
def compile_user_state(node: UserStateNode, config: Config) -> StatefulPlan:
    """The plan of a user's processor or function. Its state variables became stores when the node was built."""
    call, columns = node.call, _columns(node)
    shape = _shape(node, columns)
    drops_late = shape.time is TimeMode.EVENT and columns.time is not None
    operator = UserState(call.code, shape, _front(node, columns, shape), drops_late)
    names, payload = [name for name, _ in shape.key_columns], [f"c{i}" for i in range(len(columns.payload))]
    finished = [decode(F.col(f"c{i}"), f.dataType).alias(f.name) for i, f in enumerate(call.result.fields)]
    return StatefulPlan(
        kind=str(shape.interface),
        input=Input(
            frames=(node.source,),
            selected=_selected(node, columns, names, payload, drops_late),
            keyed=tuple(names),
            hashed=hash_of(names, config.hashBits),
            values=(*(F.col(c) for c in [*payload, *([TIME] if drops_late else [])]), _order()),
        ),
        operator=operator,
        results=Results(
            kernel_schema=T.StructType([T.StructField(f"c{i}", transport_type(f.dataType)) for i, f in enumerate(call.result.fields)]),
            finish=lambda frame: frame.select(*finished),
            schema=call.result,
        ),
        readers=readers(node, shape, columns.keys),
        description=_description(node, shape, columns),
        timing=_timing(call, shape, columns),
        initial=None if call.initial is None else _initial(call, call.initial, columns, names, node.where, config),
    )


def _columns(node: UserStateNode) -> _Columns:
    source = node.source
    if len(set(source.columns)) < len(source.columns):
        raise QueryError(where=node.where, wanted="columns of different names", found=", ".join(source.columns))
    fields = {f.name: f for f in source.schema.fields}
    keys = tuple(fields[name] for name in node.call.keys)
    for f in keys:
        check_key(f.dataType, f"{node.where}, key {f.name!r}")
    for f in [*fields.values(), *node.call.result.fields]:
        _check_type(f.dataType, f"{node.where}, column {f.name!r}")
    timed = [f for f in node.call.rows.fields if WATERMARK_KEY in f.metadata]
    return _Columns(keys, tuple(f for f in fields.values() if f.name not in node.call.keys), timed[0] if timed else None)


def _check_type(kind: T.DataType, where: str) -> None:
    if isinstance(kind, _NO_FRAME_HAS):
        raise UnsupportedError(where=where, wanted="a type that PySpark gives to Python functions", found=kind.simpleString())
    parts = kind.fields if isinstance(kind, T.StructType) else []
    for f in parts:
        _check_type(f.dataType, f"{where}.{f.name}")
    if isinstance(kind, T.ArrayType):
        _check_type(kind.elementType, where)
    if isinstance(kind, T.MapType):
        _check_type(kind.keyType, where)
        _check_type(kind.valueType, where)


def _arrow(schema: T.StructType | tuple[T.StructField, ...]) -> pa.Schema:
    return pa.schema([(f.name, arrow_type(f.dataType)) for f in schema])


def _shape(node: UserStateNode, columns: _Columns) -> UserShape:
    call = node.call
    return UserShape(
        keys=_arrow(columns.keys),
        rows=_arrow(T.StructType(node.source.schema.fields)),
        output=_arrow(call.result),
        variables=_variables(node),
        interface=_INTERFACES[call.form],
        time=_TIMES[call.time.lower()],
        initial=None if call.initial is None else _arrow(_initial_schema(call, call.initial)),
        event_time=None if call.event_time is None else call.result.names.index(call.event_time),
        name=_name(call),
        where=node.where,
    )


def _name(call: UserStateCall) -> str:
    return str(getattr(call.code, "__name__", "the function")) if call.form is Form.GROUP_STATE else type(call.code).__name__


def _variables(node: UserStateNode) -> tuple[Variable, ...]:
    state = node.call.state
    if state is not None:
        _check_type(state, f"{node.where}, state")
        hidden = ((EXISTS, pa.bool_()), (TIMEOUT, pa.int64()))
        return (Variable(Kind.VALUE, GROUP_STATE, _arrow(state), extra=hidden),)
    found = []
    for each in node.declared:
        where = f"{node.where}, state {each.name!r}"
        _check_type(each.values, where)
        for f in each.keys or ():
            check_key(f.dataType, f"{where}, key {f.name!r}")
        keys = None if each.keys is None else _arrow(each.keys)
        found.append(Variable(Kind(each.kind), each.name, _arrow(each.values), keys, each.ttl_ms))
    return tuple(found)


def _front(node: UserStateNode, columns: _Columns, shape: UserShape) -> UserFront:
    call, conf = node.call, node.source.sparkSession.conf
    rows_max = int(conf.get("spark.sql.execution.arrow.maxRecordsPerBatch") or 0)
    variables = {each.name: (each.values, each.keys) for each in node.declared}
    return UserFront(
        form=call.form,
        keys=T.StructType(list(columns.keys)),
        rows=T.StructType(node.source.schema.fields),
        result=call.result,
        initial=None if call.initial is None else _initial_schema(call, call.initial),
        variables=variables if call.state is None else {GROUP_STATE: (call.state, None)},
        conversion=Conversion(
            zone=str(conf.get("spark.sql.session.timeZone")),
            rows_max=rows_max if rows_max > 0 else 2**31 - 1,
            safe=conf.get("spark.sql.execution.pandas.convertToArrowArraySafely", "false") == "true",
            by_name=conf.get("spark.sql.legacy.execution.pandas.groupedMap.assignColumnsByName", "true") == "true",
        ),
        timeout=call.time,
        has_watermark=columns.time is not None,
        name=shape.name,
        where=node.where,
    )


def _selected(node: UserStateNode, columns: _Columns, names: list[str], payload: list[str], drops_late: bool) -> DataFrame:
    col = {f.name: F.col(expressions.quoted(f.name)) for f in node.source.schema.fields}
    keys = [encode(normalize(col[f.name], f.dataType), f.dataType).alias(k) for f, k in zip(columns.keys, names, strict=True)]
    carried = [encode(col[f.name], f.dataType).alias(c) for f, c in zip(columns.payload, payload, strict=True)]
    time = [_micros(col[columns.time.name], columns.time.dataType)] if drops_late and columns.time is not None else []
    return node.source.select(*keys, *carried, *time)


def _order() -> Column:
    """The place of a row in its batch. Rows of a key come in the order in which the source gives them, as in Spark."""
    return F.monotonically_increasing_id().alias(ORDER)


def _micros(time: Column, kind: T.DataType) -> Column:
    """The event time in microseconds. A row without one gets a time far in the future, so it is never late."""
    return F.coalesce(event_time.micros(time, kind), F.lit(2**62)).cast("long").alias(TIME)


def _timing(call: UserStateCall, shape: UserShape, columns: _Columns) -> Timing:
    modes: tuple[OutputMode, ...] = (OutputMode.APPEND, OutputMode.UPDATE)
    refusals = {}
    if call.form is Form.GROUP_STATE:
        mode = OutputMode(call.output_mode.lower())
        modes = (mode,)
        reason = f"applyInPandasWithState in {mode} mode is not supported with another output mode on a streaming DataFrame"
        refusals = {other: Refusal(reason) for other in OutputMode if other is not mode}
    by_event = shape.time is TimeMode.EVENT
    return Timing(
        uses_watermark=columns.time is not None,
        modes=modes,
        flushes=modes if by_event else (),
        ticks=shape.time is TimeMode.PROCESSING,
        after_rows=True,
        refusals=refusals,
    )


def _initial_schema(call: UserStateCall, initial: DataFrame) -> T.StructType:
    return T.StructType(initial.schema.fields[call.initial_keys :])


def _initial(call: UserStateCall, initial: DataFrame, columns: _Columns, names: list[str], where: str, config: Config) -> DataFrame:
    """The initial state as rows of the main store. The first batch gives them to ``handleInitialState`` and deletes them."""
    wanted = [f.dataType.simpleString() for f in columns.keys]
    found = [f.dataType.simpleString() for f in initial.schema.fields[: call.initial_keys]]
    if wanted != found:
        raise QueryError(where=f"{where}, initialState", wanted=f"groups by keys of the types {', '.join(wanted)}", found=", ".join(found))
    # Spark's plan has the keys twice. So columns are told apart by their places.
    numbered = initial.toDF(*[f"x{i}" for i in range(len(initial.columns))])
    keys = [encode(normalize(F.col(f"x{i}"), f.dataType), f.dataType).alias(names[i]) for i, f in enumerate(columns.keys)]
    own = [F.col(f"x{call.initial_keys + i}").alias(f"c{i}") for i in range(len(initial.columns) - call.initial_keys)]
    return numbered.select(*keys, F.monotonically_increasing_id().alias(SUB), *own).select(hash_of(names, config.hashBits), "*")


def _description(node: UserStateNode, shape: UserShape, columns: _Columns) -> Description:
    kept = []
    for each in shape.variables:
        mapped = "" if each.keys is None else f"{columns_text(each.keys)} -> "
        ttl = "" if each.ttl_ms is None else f", expires after {each.ttl_ms / 1000:g} seconds"
        kept.append(f"{each.kind} {each.name}: {mapped}{columns_text(each.values)}{ttl}")
    if shape.time is not TimeMode.NONE:
        kept.append(f"{'timeouts' if shape.interface is Interface.GROUP_STATE else 'timers'} by {shape.time} time")
    shown = {
        "operator": str(shape.interface),
        "keys": [f"{f.name}: {f.dataType.simpleString()}" for f in columns.keys],
        "processor": shape.name,
        "calls": kept,
    }
    return Description(shown, resolved=partial(_resolved, node.source, node.call.keys))


def _resolved(source: DataFrame, keys: tuple[str, ...]) -> dict[str, object]:
    return {"keys": texts(source, [F.col(expressions.quoted(name)) for name in keys])}
