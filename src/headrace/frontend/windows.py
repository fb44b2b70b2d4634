"""Lowering window functions: the operator keeps the rows of each partition, and Spark computes the functions over those that it emits.

In append mode a partition has an event time: it is emitted once, when the watermark has passed that. In complete mode all partitions are
emitted with every batch. Either way Spark's own code gets whole partitions, so all window functions mean what they mean in a batch.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from headrace.compile.types import check_order, is_atomic
from headrace.errors import QueryError, UnsupportedError
from headrace.frontend.lowered import Lowered, results_of, unique_names
from headrace.frontend.registry import Lowering, lowers
from headrace.graph.nodes import FirstRows, PartitionNode
from headrace.graph.steps import FunctionStep
from headrace.logs import logger
from headrace.spark.expressions import quoted
from headrace.spark.logical import Expression, Logical, by_position
from headrace.spark.plan_ranks import WindowParts, wanted_rows, window_parts

_log = logger(__name__)


@lowers("Window")
def lower_window(node: Logical, lowering: Lowering) -> Lowered:
    """The rows of each partition are an aggregate; a step takes them apart again, and Spark's own node follows."""
    parts = window_parts(node)
    child = node.children[0]
    _check_mode(parts, lowering)
    below = lowering.lower(child).uniquely_named()

    def bound(expression: Expression) -> Column:
        return by_position(expression, child.columns, below.rows.frame)

    partition = [each for each in parts.partition if each.column_ids]
    names = dict(zip((each.id for each in child.columns), below.rows.columns, strict=True))
    called = [f"partition{at}" if each.column_id is None else names[each.column_id] for at, each in enumerate(partition)]
    taken = unique_names(called, taken=["rows"])
    first = _first_rows(parts, lowering)
    if first is None and lowering.mode == "complete":
        _log.info("%s: the window functions keep all rows, for ever", lowering.where)
    # A key gives its column back as it was, unless grouping changes it: floating-point numbers are normalised.
    given = {
        each.column_id: name for each, name in zip(partition, taken, strict=True) if each.column_id is not None and _is_kept(each.type)
    }
    kept = tuple(names[each.id] for each in child.columns if each.id not in given)
    keys = tuple(bound(each).alias(name) for each, name in zip(partition, taken, strict=True))
    order = tuple((bound(each.expression), each.descending, each.nulls_first) for each in parts.order) if first is not None else ()
    rows = results_of(PartitionNode(below.rows, keys, order, kept, first, parts.functions, lowering.where))
    shown = [
        F.col(quoted(given[each.id])) if each.id in given else F.col(f"row.c{kept.index(names[each.id])}")
        for each in child.columns
    ]  # fmt: skip

    def apart(results: DataFrame) -> DataFrame:
        single = results.select(*[F.col(quoted(name)) for name in taken], F.explode("rows").alias("row"))
        return single.select(*[column.alias(names[each.id]) for column, each in zip(shown, child.columns, strict=True)])

    step = FunctionStep("rows of a partition", apart, lowering.where)
    top = parts.settled(tuple(_ties(child))) if set(parts.functions) == {"row_number"} else node
    taken_apart = Lowered(top.children[0], rows.after(step, apart(rows.frame)), lowering.where)
    return Lowered(node, taken_apart.after(top).rows, lowering.where)


def _check_mode(parts: WindowParts, lowering: Lowering) -> None:
    timed = {each.id for each in parts.node.children[0].columns if each.is_event_time}
    if lowering.mode == "update":
        raise QueryError(
            "what update mode has shown of a partition would have to be taken back when another row comes first",
            where=lowering.where,
            wanted="output mode append or complete",
            found="a window function in output mode update",
        )
    if lowering.mode == "append" and not any(each.column_id in timed for each in parts.partition):
        raise QueryError(
            "append mode emits a partition once it can no longer change",
            where=lowering.where,
            found="a window function whose partitions have no event time",
            hint="put F.window(...), or another column with a watermark, into partitionBy, or use outputMode('complete')",
        )


def _first_rows(parts: WindowParts, lowering: Lowering) -> FirstRows | None:
    """How many rows of a partition are wanted; None if all are, or if only Spark can put them in order."""
    wanted = wanted_rows(parts, lowering.above(parts.node))
    if wanted is None or not all(each.expression.is_deterministic for each in parts.order):
        return None
    try:
        for each in parts.order:
            check_order(each.expression.type, lowering.where)
    except UnsupportedError:
        return None
    return FirstRows(wanted.function, wanted.limit)


def _is_kept(kind: T.DataType) -> bool:
    if isinstance(kind, T.StructType):
        return all(_is_kept(f.dataType) for f in kind.fields)
    return is_atomic(kind) and not isinstance(kind, T.FloatType | T.DoubleType)


def _ties(child: Logical) -> list[Expression]:
    """The columns that decide between rows that are equal by the user's order: all that can be compared."""
    found = []
    for each in child.output:
        try:
            check_order(each.type, "")
        except UnsupportedError:
            continue
        found.append(each)
    return found
