"""Compiling ``dropDuplicates`` and ``dropDuplicatesWithinWatermark``."""

from __future__ import annotations

from functools import partial

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from headrace.compile import event_time
from headrace.compile.plan import Description, Input, Results, StatefulPlan, StoreReader, Timing, hash_of
from headrace.compile.registry import compiles
from headrace.compile.types import arrow_type, check_key, decode, encode, normalize, transport_type
from headrace.config import Config
from headrace.errors import UnsupportedError
from headrace.graph.nodes import DedupNode, DedupWithinNode
from headrace.operators.dedup import TIME, DropDuplicates
from headrace.operators.dedup_within import ORDER, DropDuplicatesWithin
from headrace.operators.description import ColumnNames
from headrace.operators.kernel import MAIN
from headrace.operators.lifetime import WRITTEN
from headrace.spark import expressions, plans
from headrace.state.layout import SUB, Layout


@compiles(DedupNode)
def compile_dedup(node: DedupNode, config: Config) -> StatefulPlan:
    """The plan of ``dropDuplicates``: the kernel remembers keys, and passes on the first row of each."""
    source = node.source
    fields = {f.name: f for f in source.schema.fields}
    for name in node.subset:
        check_key(fields[name].dataType, f"{node.where}, column {name!r}")
    timed = [name for name in node.subset if plans.watermark_delay_ms(source, name) is not None]
    if len(timed) > 1:
        raise UnsupportedError(where=node.where, found=f"several event times among the columns: {timed}")
    keys = [normalize(F.col(expressions.quoted(name)), fields[name].dataType) for name in node.subset]
    names = [f"k{i}" for i in range(len(keys))]
    encoded = [encode(k, fields[n].dataType).alias(a) for k, n, a in zip(keys, node.subset, names, strict=True)]
    sub = [_micros(fields[n]).alias(SUB) for n in timed]
    others = [] if timed else [f for f in fields.values() if plans.watermark_delay_ms(source, f.name) is not None]
    late_by = [_micros(f).alias(TIME) for f in others[:1]]
    payload = [f"c{i}" for i in range(len(source.schema.fields))]
    carried = [encode(F.col(expressions.quoted(f.name)), f.dataType).alias(c) for f, c in zip(source.schema.fields, payload, strict=True)]
    layout = Layout(
        keys=tuple((a, arrow_type(fields[n].dataType)) for a, n in zip(names, node.subset, strict=True)), values=(), has_sub=bool(sub)
    )
    carried_types = [(c, arrow_type(f.dataType)) for c, f in zip(payload, source.schema.fields, strict=True)]
    operator = DropDuplicates(layout, pa.schema(carried_types), bool(late_by))
    finished = [decode(F.col(c), f.dataType).alias(f.name) for c, f in zip(payload, source.schema.fields, strict=True)]
    return StatefulPlan(
        kind="dropDuplicates",
        input=Input(
            frames=(source,),
            selected=source.select(*encoded, *sub, *carried, *late_by),
            keyed=(*names, *([SUB] if sub else [])),
            hashed=hash_of(names, config.hashBits),
            values=tuple(F.col(c) for c in [*payload, *([TIME] if late_by else [])]),
        ),
        operator=operator,
        results=Results(
            kernel_schema=T.StructType(
                [T.StructField(c, transport_type(f.dataType)) for c, f in zip(payload, source.schema.fields, strict=True)]
            ),
            finish=lambda frame: frame.select(*finished),
            schema=source.schema,
        ),
        readers={MAIN: _reader(names, [fields[name] for name in node.subset])},
        description=Description(
            {"operator": "dropDuplicates", "keys": [f"{n}: {fields[n].dataType.simpleString()}" for n in node.subset]},
            resolved=partial(dict, keys=list(node.subset)),
        ),
        timing=Timing(uses_watermark=bool(sub or late_by)),
    )


@compiles(DedupWithinNode)
def compile_dedup_within(node: DedupWithinNode, config: Config) -> StatefulPlan:
    """The plan of ``dropDuplicatesWithinWatermark``: the kernel remembers keys for as long as the watermark's delay."""
    source = node.source
    fields = source.schema.fields
    keys = [f for f in fields if f.name in node.subset]
    for f in keys:
        check_key(f.dataType, f"{node.where}, column {f.name!r}")
    timed = [f for f in fields if plans.watermark_delay_ms(source, f.name) is not None]
    if len(timed) != 1:
        found = ", ".join(f.name for f in timed) or "none"
        raise UnsupportedError(where=node.where, wanted="one event time with a watermark", found=found)
    delay_ms = plans.watermark_delay_ms(source, timed[0].name) or 0
    names, payload = [f"k{i}" for i in range(len(keys))], [f"c{i}" for i in range(len(fields))]
    encoded = [
        encode(normalize(F.col(expressions.quoted(f.name)), f.dataType), f.dataType).alias(k) for f, k in zip(keys, names, strict=True)
    ]
    carried = [encode(F.col(expressions.quoted(f.name)), f.dataType).alias(c) for f, c in zip(fields, payload, strict=True)]
    finished = [decode(F.col(c), f.dataType).alias(f.name) for c, f in zip(payload, fields, strict=True)]
    kernel_schema = T.StructType([T.StructField(c, transport_type(f.dataType)) for c, f in zip(payload, fields, strict=True)])
    return StatefulPlan(
        kind="dropDuplicatesWithinWatermark",
        input=Input(
            frames=(source,),
            selected=source.select(*encoded, *carried, _micros(timed[0]).alias(TIME)),
            keyed=tuple(names),
            hashed=hash_of(names, config.hashBits),
            values=(*(F.col(c) for c in (*payload, TIME)), F.monotonically_increasing_id().alias(ORDER)),
        ),
        operator=DropDuplicatesWithin(
            tuple((k, arrow_type(f.dataType)) for k, f in zip(names, keys, strict=True)),
            pa.schema([(c, arrow_type(f.dataType)) for c, f in zip(payload, fields, strict=True)]),
            delay_ms * 1000,
        ),
        results=Results(kernel_schema, lambda frame: frame.select(*finished), source.schema),
        readers={MAIN: _timed_reader(names, keys, timed[0])},
        description=Description(
            {
                "operator": "dropDuplicatesWithinWatermark",
                "keys": [f"{f.name}: {f.dataType.simpleString()}" for f in keys],
                "window": f"{delay_ms} milliseconds of {timed[0].name}",
            },
            resolved=partial(dict, keys=[f.name for f in keys]),
        ),
        timing=Timing(uses_watermark=True),
    )


def _timed_reader(names: list[str], keys: list[T.StructField], time: T.StructField) -> StoreReader:
    """Shows the keys, and the event time of the row that was kept."""
    shown = [decode(F.col(name), f.dataType).alias(f.name) for name, f in zip(names, keys, strict=True)]
    first = event_time.from_micros(F.col(WRITTEN), time.dataType).alias("first")
    fields = [T.StructField(name, transport_type(f.dataType)) for name, f in zip(names, keys, strict=True)]
    schema = T.StructType([*fields, T.StructField(WRITTEN, T.LongType())])
    return StoreReader(schema, lambda frame: frame.select(*shown, first), ColumnNames(tuple(f.name for f in keys), ("first",)))


def _reader(names: list[str], keys: list[T.StructField]) -> StoreReader:
    """Shows the keys. The event time is among them, so the sub-key needs no name of its own."""
    shown = [decode(F.col(name), f.dataType).alias(f.name) for name, f in zip(names, keys, strict=True)]
    schema = T.StructType([T.StructField(name, transport_type(f.dataType)) for name, f in zip(names, keys, strict=True)])
    return StoreReader(schema, lambda frame: frame.select(*shown), ColumnNames(tuple(f.name for f in keys)))


def _micros(field: T.StructField) -> Column:
    """The event time in microseconds. A row without one gets a time far in the future, so it is never late."""
    return F.coalesce(event_time.micros(F.col(expressions.quoted(field.name)), field.dataType), F.lit(2**62)).cast("long")
