"""Compiling ``process``: a user's own stateful operator."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from headrace.compile import event_time
from headrace.compile.plan import Description, Input, Results, StatefulPlan, StoreReader, Timing, hash_of
from headrace.compile.registry import compiles
from headrace.compile.types import arrow_type, check_key, decode, encode, normalize, transport_type
from headrace.config import Config
from headrace.errors import QueryError
from headrace.graph.nodes import ProcessNode
from headrace.operators.description import ColumnNames
from headrace.operators.kernel import MAIN, OutputMode
from headrace.operators.lifetime import WRITTEN
from headrace.operators.process import ORDER, TIME, Process
from headrace.operators.processor import Processor
from headrace.operators.shape import TIMERS, MapShape, ProcessorShape, columns_text
from headrace.spark import expressions, gateway, plans
from headrace.spark.words import texts
from headrace.state.layout import SUB

_KEY = "__headrace_key{}"


@dataclass(frozen=True)
class _Input:
    """The columns of the rows that a processor gets: the keys, the other columns, and the event time, if there is one."""

    keys: tuple[T.StructField, ...]
    payload: tuple[T.StructField, ...]
    time: T.StructField | None


@compiles(ProcessNode)
def compile_process(node: ProcessNode, config: Config) -> StatefulPlan:
    """The plan of a user's processor. It is tried on no rows, so that wrong columns are reported at once."""
    rows = _input(node)
    operator = gateway.checked(node.where, lambda: Process(node.processor, _shape(node, rows), rows.time is not None))
    operator.trial()
    names = [f"k{i}" for i in range(len(rows.keys))]
    payload = [f"c{i}" for i in range(len(rows.payload))]
    schema = _result_schema(node, rows)
    finished = [decode(F.col(f"c{i}"), f.dataType).alias(f.name) for i, f in enumerate(schema.fields)]
    times = [TIME] if rows.time is not None else []
    return StatefulPlan(
        kind="process",
        input=Input(
            frames=(node.source,),
            selected=_selected(node, rows, names, payload),
            keyed=tuple(names),
            hashed=hash_of(names, config.hashBits),
            values=tuple(F.col(c) for c in [*payload, *times, ORDER]),
        ),
        operator=operator,
        results=Results(
            kernel_schema=T.StructType([T.StructField(f"c{i}", transport_type(f.dataType)) for i, f in enumerate(schema.fields)]),
            finish=lambda frame: frame.select(*finished),
            schema=schema,
        ),
        readers=_readers(node, rows),
        description=_description(node, operator, rows),
        timing=Timing(uses_watermark=rows.time is not None, flushes=(OutputMode.APPEND, OutputMode.UPDATE)),
        initial=None if node.initial is None else _initial(node.initial, node, rows, config),
        defaults=_defaults(node),
    )


def _defaults(node: ProcessNode) -> dict[str, dict[str, object]]:
    """By store: the columns that a row of an earlier program may lack, and what they are then."""
    state = node.state
    maps = {name: dict.fromkeys(values.names) for name, _, values in state.maps}
    return {MAIN: {name: state.defaults.get(name) for name in state.values.names}, **maps}


def _input(node: ProcessNode) -> _Input:
    source = node.source
    if len(set(source.columns)) < len(source.columns):
        raise QueryError(where=node.where, wanted="columns of different names", found=", ".join(source.columns))
    named = gateway.checked(node.where, lambda: source.select(*node.keys))
    keys = tuple(named.schema.fields)
    for f in keys:
        check_key(f.dataType, f"{node.where}, key {f.name!r}")
    if len(set(named.columns)) < len(keys):
        raise QueryError(where=node.where, wanted="keys of different names", found=", ".join(named.columns))
    # A key replaces the column that has its name.
    payload = tuple(f for f in source.schema.fields if f.name not in named.columns)
    timed = [f for f in source.schema.fields if plans.watermark_delay_ms(source, f.name) is not None]
    return _Input(keys, payload, timed[0] if timed else None)


def _shape(node: ProcessNode, rows: _Input) -> ProcessorShape:
    state = node.state
    return ProcessorShape(
        keys=_arrow(rows.keys),
        payload=_arrow(rows.payload),
        values=_arrow(state.values.fields),
        output=_arrow(node.output.fields),
        maps=tuple(MapShape(name, _arrow(keys.fields), _arrow(values.fields)) for name, keys, values in _checked_maps(node)),
        timers=state.timers,
        ttl_us=state.ttl_us,
        ttl_by=state.ttl_by,
        # Sorting the rows of a key by the key itself would change nothing.
        order=tuple(name for name in node.order if name in {f.name for f in rows.payload}),
        name=type(node.processor).__name__,
        where=node.where,
    )


def _checked_maps(node: ProcessNode) -> tuple[tuple[str, T.StructType, T.StructType], ...]:
    for name, keys, _ in node.state.maps:
        for f in keys.fields:
            check_key(f.dataType, f"{node.where}, map {name!r}, key {f.name!r}")
    return node.state.maps


def _arrow(fields: tuple[T.StructField, ...] | list[T.StructField]) -> pa.Schema:
    return pa.schema([(f.name, arrow_type(f.dataType)) for f in fields])


def _selected(node: ProcessNode, rows: _Input, names: list[str], payload: list[str]) -> DataFrame:
    source = node.source
    columns = {f.name: F.col(expressions.quoted(f.name)) for f in source.schema.fields}
    keys = [encode(normalize(c, f.dataType), f.dataType).alias(a) for c, f, a in zip(node.keys, rows.keys, names, strict=True)]
    carried = [encode(columns[f.name], f.dataType).alias(c) for f, c in zip(rows.payload, payload, strict=True)]
    time = [] if rows.time is None else [_micros(columns[rows.time.name], rows.time.dataType)]
    # Maps and variants have no hash. Rows that differ only in those keep the order in which they come.
    hashed = [columns[f.name] for f in source.schema.fields if not _contains_unhashable(f.dataType)]
    return source.select(*keys, *carried, *time, (F.xxhash64(*hashed) if hashed else F.lit(0).cast("long")).alias(ORDER))


def _initial(frame: DataFrame, node: ProcessNode, rows: _Input, config: Config) -> DataFrame:
    """The initial state as rows of the main store. The user may give what ``query.state()`` has returned."""
    wanted = [*rows.keys, *node.state.values.fields]
    expires = node.state.ttl_us is not None
    types = {f.name: f.dataType.simpleString() for f in frame.schema.fields}
    stamped = expires and types.get(WRITTEN) == "timestamp" and WRITTEN not in [f.name for f in wanted]
    expected = {f.name: f.dataType.simpleString() for f in wanted} | ({WRITTEN: "timestamp"} if stamped else {})
    if types != expected or len(frame.columns) != len(types):
        raise QueryError(
            where=f"{node.where}, initial",
            wanted=f"the columns {T.StructType(wanted).simpleString()}",
            found=frame.schema.simpleString(),
        )
    names = [f"k{i}" for i in range(len(rows.keys))]
    columns = {f.name: F.col(expressions.quoted(f.name)) for f in wanted}
    keys = [encode(normalize(columns[f.name], f.dataType), f.dataType).alias(k) for f, k in zip(rows.keys, names, strict=True)]
    values = [encode(columns[f.name], f.dataType).alias(f"p{i}") for i, f in enumerate(node.state.values.fields)]
    written = [F.unix_micros(WRITTEN if stamped else F.current_timestamp()).alias(WRITTEN)] if expires else []
    return frame.select(*keys, *values, *written).select(hash_of(names, config.hashBits), "*")


def _micros(time: Column, kind: T.DataType) -> Column:
    """The event time in microseconds. A row without one gets a time far in the future, so it is never late."""
    return F.coalesce(event_time.micros(time, kind), F.lit(2**62)).cast("long").alias(TIME)


def _contains_unhashable(kind: T.DataType) -> bool:
    if isinstance(kind, T.MapType | T.VariantType):
        return True
    if isinstance(kind, T.StructType):
        return any(_contains_unhashable(f.dataType) for f in kind.fields)
    return isinstance(kind, T.ArrayType) and _contains_unhashable(kind.elementType)


def _result_schema(node: ProcessNode, rows: _Input) -> T.StructType:
    """The columns that the processor emits. A column with the name and type of the event time is marked as the event time."""
    fields = []
    for f in node.output.fields:
        time = rows.time
        same = time is not None and (f.name, f.dataType) == (time.name, time.dataType)
        fields.append(T.StructField(f.name, f.dataType, True, dict(time.metadata) if same and time is not None else {}))
    return T.StructType(fields)


def _readers(node: ProcessNode, rows: _Input) -> dict[str, StoreReader]:
    keys = [(f"k{i}", f) for i, f in enumerate(rows.keys)]
    readers = {MAIN: _reader(node, keys, _lettered("p", node.state.values))}
    for name, map_keys, values in node.state.maps:
        readers[name] = _reader(node, [*keys, *_lettered("m", map_keys)], _lettered("p", values))
    if node.state.timers is not None:
        shown = T.StructType([*(T.StructField(k, transport_type(f.dataType)) for k, f in keys), T.StructField(SUB, T.LongType())])
        columns = [*(decode(F.col(k), f.dataType).alias(f.name) for k, f in keys), F.timestamp_micros(SUB).alias("at")]
        readers[TIMERS] = StoreReader(shown, lambda frame: frame.select(*columns), ColumnNames(tuple(f.name for f in rows.keys), sub="at"))
    return readers


def _reader(node: ProcessNode, keys: list[tuple[str, T.StructField]], values: list[tuple[str, T.StructField]]) -> StoreReader:
    shown = [T.StructField(name, transport_type(f.dataType)) for name, f in [*keys, *values]]
    columns = [decode(F.col(name), f.dataType).alias(f.name) for name, f in [*keys, *values]]
    names = ColumnNames(tuple(f.name for _, f in keys), tuple(f.name for _, f in values))
    if node.state.ttl_us is not None:
        shown.append(T.StructField(WRITTEN, T.LongType()))
        columns.append(F.timestamp_micros(WRITTEN).alias(WRITTEN))
        names = replace(names, values=(*names.values, WRITTEN))
    return StoreReader(T.StructType(shown), lambda frame: frame.select(*columns), names)


def _lettered(letter: str, schema: T.StructType) -> list[tuple[str, T.StructField]]:
    return [(f"{letter}{i}", f) for i, f in enumerate(schema.fields)]


def _description(node: ProcessNode, operator: Process, rows: _Input) -> Description:
    shape = operator.shape
    kept = [f"value {columns_text(pa.schema([f]))}" for f in shape.values]
    kept += [f"map {m.name}: {columns_text(m.keys)} -> {columns_text(m.values)}" for m in shape.maps]
    kept += [] if shape.timers is None else [f"timers by {shape.timers} time"]
    kept += [] if shape.ttl_us is None else [f"expires by {shape.ttl_by} time"]
    shown = {
        "operator": "process",
        "keys": [f"{f.name}: {f.dataType.simpleString()}" for f in rows.keys],
        "processor": f"{shape.name}, {'all keys at once' if isinstance(node.processor, Processor) else 'key by key'}",
        "calls": kept,
        "ttl": None if shape.ttl_us is None else f"{shape.ttl_us / 1e6:g} seconds",
    }
    return Description(shown, resolved=partial(_resolved, node.source, node.keys))


def _resolved(source: DataFrame, keys: tuple[Column, ...]) -> dict[str, object]:
    return {"keys": texts(source, list(keys))}
