"""Nodes of Spark's plans that stand for rows which only Headrace can compute.

A stand-in is a streaming DataFrame with the right columns, so that Spark analyses whatever a program does with it: methods, SQL, views. Its
name says what it stands for. If Spark itself runs it, it fails with a message that says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from headrace.spark.logical import Logical

_KINDS = ("MapInArrow", "PythonMapInArrow")
_MARK = "headrace:"


def stand_in(source: DataFrame, schema: StructType, name: str) -> DataFrame:
    """A stream of the same source with other columns. Event times are marked in the metadata of ``schema``."""

    def only_headrace(_: Iterator[Any]) -> Iterator[Any]:
        raise RuntimeError(
            "this DataFrame has an operator that only Headrace runs: "
            "call hr.enable(spark) before df.writeStream, or start the query with hr.writeStream(df)"
        )

    only_headrace.__name__ = f"{_MARK}{name}"
    return source.select(F.lit(True).alias("row")).mapInArrow(only_headrace, schema)


def stand_in_of(node: Logical) -> str | None:
    """The name of a stand-in; None for any other node."""
    if node.kind not in _KINDS:
        return None
    name = str(node.node.functionExpr().name())
    return name.removeprefix(_MARK) if name.startswith(_MARK) else None
