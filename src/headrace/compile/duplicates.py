"""Compiling ``dropDuplicates``."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from headrace.compile import event_time
from headrace.compile.plan import StatefulPlan, StoreReader, hash_of
from headrace.compile.types import arrow_type, check_key, decode, encode, normalize, transport_type
from headrace.config import Config
from headrace.errors import UnsupportedError
from headrace.graph.nodes import DedupNode
from headrace.operators.dedup import TIME, DropDuplicates
from headrace.operators.description import ColumnNames
from headrace.operators.kernel import MAIN, OutputMode
from headrace.spark import expressions, plans
from headrace.state.layout import SUB, Layout


def compile_dedup(node: DedupNode, config: Config) -> StatefulPlan:
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
        operator_id="dropDuplicates",
        operator=operator,
        inputs=(source,),
        selected=source.select(*encoded, *sub, *carried, *late_by),
        keyed=(*names, *([SUB] if sub else [])),
        hashed=hash_of(names, config.hashBits),
        row=tuple(F.col(c) for c in [*payload, *([TIME] if late_by else [])]),
        ones=(),
        counts_rows=None,
        many=None,
        kernel_schema=T.StructType(
            [T.StructField(c, transport_type(f.dataType)) for c, f in zip(payload, source.schema.fields, strict=True)]
        ),
        finish=lambda frame: frame.select(*finished),
        schema=source.schema,
        readers={
            MAIN: StoreReader(
                T.StructType([T.StructField(a, transport_type(fields[n].dataType)) for a, n in zip(names, node.subset, strict=True)]),
                lambda frame: frame.select(
                    *[decode(F.col(a), fields[n].dataType).alias(n) for a, n in zip(names, node.subset, strict=True)]
                ),
            )
        },
        event_time_in_key=bool(sub or late_by),
        modes=(OutputMode.APPEND, OutputMode.UPDATE),
        description={
            "operator": "dropDuplicates",
            "keys": [f"{n}: {fields[n].dataType.simpleString()}" for n in node.subset],
        },
        # The event time is among the keys, so its sub-key needs no name.
        kernels=operator.describe({MAIN: ColumnNames(node.subset)}),
    )


def _micros(field: T.StructField) -> Column:
    """A row without a time is never late."""
    return F.coalesce(event_time.micros(F.col(expressions.quoted(field.name)), field.dataType), F.lit(2**62)).cast("long")
