"""Names that users give to parts of a plan. Spark keeps them as tags of a node that changes no row, through views and further steps."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame

from headrace.spark.gateway import class_name, items, jvm_of
from headrace.spark.logical import Logical
from headrace.spark.plans import analyzed, frame_of, project

_TAG = "headrace.name"


def with_name(frame: DataFrame, name: str) -> DataFrame:
    """The same rows and columns, under a node with a name. The given DataFrame is not changed."""
    session, plan = frame.sparkSession, analyzed(frame)
    node = project(session, list(items(plan.output())), plan)
    node.setTagValue(_tag(session), name)
    return frame_of(session, node, analyzed=True)


def name_of(node: Logical) -> str | None:
    """The name of a node; None if it has none."""
    if node.kind != "Project":
        return None
    found = node.node.getTagValue(_tag(node.session))
    return str(found.get()) if found.isDefined() else None


def has_name(session: Any, node: Any) -> bool:
    """True for a node that only gives a name."""
    return class_name(node) == "Project" and bool(node.getTagValue(_tag(session)).isDefined())


def _tag(session: Any) -> Any:
    return jvm_of(session).org.apache.spark.sql.catalyst.trees.TreeNodeTag(_TAG)
