"""Node and compiler of the worked example in CONTRIBUTING.md."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import functions as F
from pyspark.sql import types as T

from headrace.compile.plan import Description, Input, Results, StatefulPlan, StoreReader, Timing, hash_of
from headrace.compile.registry import compiles
from headrace.compile.types import arrow_type, check_key, check_value, decode, encode, normalize, transport_type
from headrace.config import Config
from headrace.graph.nodes import OneInput
from headrace.operators.description import ColumnNames
from headrace.operators.kernel import MAIN, OutputMode
from headrace.spark.expressions import quoted
from tests.own_operator.kernel import GREATEST, VALUE, Greatest


@dataclass(frozen=True, eq=False)
class GreatestNode(OneInput):
    """What the user asked for."""

    key: str
    value: str
    count: int
    where: str


@compiles(GreatestNode)
def compile_greatest(node: GreatestNode, config: Config) -> StatefulPlan:
    key, value = node.source.schema[node.key], node.source.schema[node.value]
    check_key(key.dataType, node.where)
    check_value(value.dataType, node.where)
    kept = T.ArrayType(value.dataType)
    # Spark's side: the user's columns become the kernel's, and its rows become the user's again.
    selected = node.source.dropna(subset=[node.value]).select(
        encode(normalize(F.col(quoted(key.name)), key.dataType), key.dataType).alias("k0"),
        encode(F.col(quoted(value.name)), value.dataType).alias(VALUE),
    )
    kernel_schema = T.StructType([T.StructField("k0", transport_type(key.dataType)), T.StructField(GREATEST, transport_type(kept))])
    shown = [decode(F.col("k0"), key.dataType).alias(key.name), decode(F.col(GREATEST), kept).alias(value.name)]
    schema = T.StructType([T.StructField(key.name, key.dataType), T.StructField(value.name, kept)])
    return StatefulPlan(
        kind="greatest",
        input=Input((node.source,), selected, keyed=("k0",), hashed=hash_of(["k0"], config.hashBits), values=(F.col(VALUE),)),
        operator=Greatest((("k0", arrow_type(key.dataType)),), arrow_type(value.dataType), node.count),
        results=Results(kernel_schema, lambda rows: rows.select(*shown), schema, keys=(key.name,)),
        readers={MAIN: StoreReader(kernel_schema, lambda rows: rows.select(*shown), ColumnNames((key.name,), (value.name,)))},
        # A line each in explain(), and what state is found by after a restart.
        description=Description({"operator": "greatest", "keys": [key.name], "value": value.name, "count": node.count}),
        timing=Timing(modes=(OutputMode.UPDATE,)),
    )
