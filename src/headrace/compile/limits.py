"""Compiling ``limit`` of a stream."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql import types as T

from headrace.compile.plan import Description, Input, Results, StatefulPlan, StoreReader, Timing, hash_of
from headrace.compile.registry import compiles
from headrace.compile.types import arrow_type, decode, encode, transport_type
from headrace.config import Config
from headrace.graph.nodes import LimitNode
from headrace.operators.description import ColumnNames
from headrace.operators.first_rows import KEY, ORDER, SEEN, FirstRows
from headrace.operators.kernel import MAIN
from headrace.spark.expressions import quoted


@compiles(LimitNode)
def compile_limit(node: LimitNode, config: Config) -> StatefulPlan:
    """The plan of ``limit``: the kernel counts rows, and passes on the first ones."""
    source, fields = node.source, node.source.schema.fields
    payload = [f"c{at}" for at in range(len(fields))]
    carried = [encode(F.col(quoted(f.name)), f.dataType).alias(c) for f, c in zip(fields, payload, strict=True)]
    finished = [decode(F.col(c), f.dataType).alias(f.name) for c, f in zip(payload, fields, strict=True)]
    state = T.StructType([T.StructField(KEY, T.ByteType()), T.StructField(SEEN, T.LongType())])
    return StatefulPlan(
        kind="limit",
        input=Input(
            frames=(source,),
            selected=source.select(F.lit(0).cast("byte").alias(KEY), *carried),
            keyed=(KEY,),
            hashed=hash_of([], config.hashBits),
            values=(*(F.col(c) for c in payload), F.monotonically_increasing_id().alias(ORDER)),
        ),
        operator=FirstRows(pa.schema([(c, arrow_type(f.dataType)) for c, f in zip(payload, fields, strict=True)]), node.limit),
        results=Results(
            kernel_schema=T.StructType([T.StructField(c, transport_type(f.dataType)) for c, f in zip(payload, fields, strict=True)]),
            finish=lambda frame: frame.select(*finished),
            schema=source.schema,
        ),
        readers={MAIN: StoreReader(state, lambda frame: frame.select(SEEN), ColumnNames((KEY,), (SEEN,)))},
        timing=Timing(expires=False),
        description=Description({"operator": "limit", "rows": node.limit}, resolved=dict),
    )
