"""Compiling window functions: an aggregate that collects the rows of each partition, or the first ones of them by a rank."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pyspark.sql import functions as F

from headrace.compile.aggregates import compile_aggregate
from headrace.compile.plan import Refusal, StatefulPlan
from headrace.compile.registry import compiles
from headrace.compile.types import check_carried
from headrace.config import Config
from headrace.graph.nodes import AggregateNode, FirstRows, PartitionNode
from headrace.operators.kernel import OutputMode
from headrace.operators.more_partials import Lists
from headrace.operators.top_rows import TopRows
from headrace.spark import expressions
from headrace.spark.words import texts

_HINT = "partition by F.window(...) or an event time with a watermark, so that a partition is final once the watermark has passed it"
_REFUSALS = {
    OutputMode.APPEND: Refusal(
        "append mode emits a partition once it can no longer change", found="a partition without event time", hint=_HINT
    ),
    OutputMode.UPDATE: Refusal("what update mode has shown of a partition would have to be taken back when another row comes first"),
}


@compiles(PartitionNode)
def compile_partitions(node: PartitionNode, config: Config) -> StatefulPlan:
    """The plan of window functions. Where rank is bounded, each partition keeps its first rows alone."""
    fields = {f.name: f for f in node.source.schema.fields}
    for name in node.kept:
        check_carried(fields[name].dataType, f"{node.where}, column {name!r}")
    order = [column.alias(f"o{at}") for at, (column, _, _) in enumerate(node.order)] if node.first is not None else []
    columns = [F.col(expressions.quoted(name)).alias(f"c{at}") for at, name in enumerate(node.kept)]
    rows = F.collect_list(F.struct(*order, *columns)).alias("rows")
    plan = compile_aggregate(AggregateNode(node.input, node.keys, None, 0, (rows,), node.where, windows_as_keys=True), config)
    kernel: Any = plan.operator
    (lists,) = kernel.partials
    assert isinstance(lists, Lists)
    if node.first is not None:
        kernel = replace(kernel, partials=(_top(node, node.first, lists),))
    modes = tuple(mode for mode in plan.timing.modes if mode is not OutputMode.UPDATE)
    shown = {name: value for name, value in plan.description.shown.items() if name in ("keys", "window")}
    by = [
        f"{text}{' DESC' if down else ''}{' NULLS FIRST' if first else ' NULLS LAST'}"
        for text, (_, down, first) in zip(_texts(node), node.order, strict=True)
    ]
    described = replace(
        plan.description,
        shown={
            "operator": "window functions",
            **shown,
            "functions": list(node.functions),
            "order": by,
            "keeps": "all rows" if node.first is None else f"rows with {node.first.function} <= {node.first.limit}",
            "columns": list(node.kept),
        },
        only_shown=("functions",),
    )
    timing = replace(plan.timing, modes=modes, refusals={**plan.timing.refusals, **_REFUSALS})
    return replace(plan, kind="windowFunctions", operator=kernel, description=described, timing=timing)


def _texts(node: PartitionNode) -> list[str]:
    return texts(node.source, [column for column, _, _ in node.order])


def _top(node: PartitionNode, first: FirstRows, lists: Lists) -> TopRows:
    def bits(flags: list[bool]) -> int:
        return sum(flag << at for at, flag in enumerate(flags))

    return TopRows(
        lists.element,
        len(node.order),
        bits([down for _, down, _ in node.order]),
        bits([nulls for _, _, nulls in node.order]),
        first.limit,
        ties=first.function != "row_number",
        dense=first.function == "dense_rank",
    )
