"""Lowering ``dropDuplicates`` and ``dropDuplicatesWithinWatermark``."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from headrace.frontend.array_keys import as_text, is_kept_as_text
from headrace.frontend.lowered import Lowered, results_of
from headrace.frontend.registry import Lowering, lowers
from headrace.graph.nodes import DedupNode, DedupWithinNode, Rows
from headrace.graph.steps import FunctionStep
from headrace.spark.expressions import quoted
from headrace.spark.logical import Logical, key_places


@lowers("Deduplicate", "DeduplicateWithinWatermark")
def lower_deduplicate(node: Logical, lowering: Lowering) -> Lowered:
    """The columns are those of the input, so that its names can be restored."""
    below = lowering.lower(node.children[0]).uniquely_named()
    subset = tuple(dict.fromkeys(below.rows.columns[at] for at in key_places(node)))
    kind = DedupNode if node.kind == "Deduplicate" else DedupWithinNode
    kinds = {f.name: f.dataType for f in below.rows.schema.fields}
    texts = {name: f"__headrace_text{at}" for at, name in enumerate(subset) if is_kept_as_text(kinds[name])}
    columns = {text: as_text(F.col(quoted(name)), kinds[name]) for name, text in texts.items()}
    if kind is DedupNode:
        # Nobody sees these columns, and as in Spark no row is late by them.
        columns |= {name: F.lit(None).cast(kinds[name]) for name in _unused_times(node, below.rows.columns, lowering) if name not in subset}
    rows = _with_columns(below.rows, columns, lowering.where)
    results = results_of(kind(rows, tuple(texts.get(name, name) for name in subset), lowering.where))
    return Lowered(node, _without(results, list(texts.values()), lowering.where), lowering.where)


def _unused_times(node: Logical, names: list[str], lowering: Lowering) -> list[str]:
    """The names of the event times of the input that nobody uses."""
    timed = [(each.id, name) for each, name in zip(node.children[0].columns, names, strict=True) if each.is_event_time]
    used = lowering.used(node) if timed else None
    return [] if used is None else [name for id, name in timed if id not in used[0]]


def _with_columns(rows: Rows, columns: dict[str, Column], where: str) -> Rows:
    if not columns:
        return rows

    def add(frame: DataFrame) -> DataFrame:
        return frame.withColumns(columns)

    return rows.after(FunctionStep("columns", add, where), add(rows.frame))


def _without(rows: Rows, names: list[str], where: str) -> Rows:
    if not names:
        return rows

    def drop(frame: DataFrame) -> DataFrame:
        return frame.drop(*names)

    return rows.after(FunctionStep("drop", drop, where), drop(rows.frame))
