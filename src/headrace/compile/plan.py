"""The plan of a query: what Spark does before the shuffle, what the kernel does, and what Spark makes of the kernel's rows.

streaming DataFrame --select--> keys, [sub], inputs                   in Structured Streaming's own plan
    --combine or project--> h, keys, [sub], partials                  in foreachBatch, before the shuffle
    --route--> kernel (Python, over Arrow) --finish--> the user's columns --suffix--> sink
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from headrace.operators.kernel import ROWS, Operator, OutputMode
from headrace.spark import expressions, plans
from headrace.spark.exchange import claim_one_partition
from headrace.state.layout import HASH


@dataclass(frozen=True)
class StoreReader:
    """From the rows of a store to a DataFrame."""

    schema: StructType
    """Spark's types of the rows; a sub-key under its own name, or under that of a window's start."""
    finish: Callable[[DataFrame], DataFrame]
    """To columns that a user can read."""


@dataclass(frozen=True)
class StatefulPlan:
    """One stateful operator, ready to run."""

    operator_id: str
    operator: Operator
    inputs: tuple[DataFrame, ...]
    """The columns of what comes in: streaming DataFrames, or empty ones that show the columns."""
    selected: DataFrame
    """Built on the inputs: keys, sub-key, and what the operator needs of each row."""
    keyed: tuple[str, ...]
    """The keys and the sub-key: what rows are combined by."""
    hashed: Column
    """The key hash, from the key columns."""
    row: tuple[Column, ...]
    """The partial of one row; columns that are the constant 1 are left out."""
    ones: tuple[str, ...]
    """... and these are they."""
    counts_rows: str | None
    """The partial that counts all rows of the source, if the query has one."""
    many: tuple[Column, ...] | None
    """The partials of many rows; None if rows cannot be combined before the shuffle."""
    kernel_schema: StructType
    """Spark's types of the kernel's rows."""
    finish: Callable[[DataFrame], DataFrame]
    """From the kernel's rows to the user's columns."""
    schema: StructType
    """The user's columns."""
    readers: dict[str, StoreReader]
    """How each store is shown to a user."""
    event_time_in_key: bool
    """Whether the operator's results fall due by the watermark."""
    modes: tuple[OutputMode, ...]
    flushes: tuple[OutputMode, ...] = (OutputMode.APPEND,)
    """Modes in which the watermark makes results fall due."""
    initial: DataFrame | None = None
    """Rows of the main store that the state starts with."""
    hold_ms: int = 0
    """By how much a result may be older than the watermark at which it comes out."""
    description: dict[str, object] = field(default_factory=dict)
    """In words, for people and for the checkpoint's identity."""
    kernels: dict[str, dict[str, object]] = field(default_factory=dict)
    """Per store, what is needed to read its state without the program that wrote it."""

    def select(self, rows: tuple[DataFrame, ...]) -> DataFrame:
        """What ``selected`` is for the inputs' columns, for actual rows of those columns."""
        session = self.selected.sparkSession
        pairs = list(zip(self.inputs, rows, strict=True))
        plan = plans.substitute(session, plans.analyzed(self.selected), pairs)
        return plans.frame_of(rows[0].sparkSession, plan)

    def results(self, rows: DataFrame) -> DataFrame:
        """The user's columns of the kernel's rows, windows and event times marked as such, for what is built on them."""
        frame = self.finish(rows)
        if not any(field.metadata for field in self.schema.fields):
            return frame
        names = ((expressions.quoted(field.name), field) for field in self.schema.fields)
        return frame.select(*[F.col(name).alias(f.name, metadata=f.metadata) if f.metadata else F.col(name) for name, f in names])

    def combined(self, rows: DataFrame) -> DataFrame:
        """Pre-aggregated within each map task, without a shuffle of its own."""
        return self.grouped(claim_one_partition(rows))

    def grouped(self, rows: DataFrame) -> DataFrame:
        """One partial per group, of rows that are claimed to lie in one partition."""
        assert self.many is not None
        counted = [] if self.counts_rows else [F.count(F.lit(1)).alias(ROWS)]
        # The hash depends on grouping columns alone, so it can be computed with the groups instead of in a step of its own.
        return rows.groupBy(*self.keyed).agg(self.hashed, *self.many, *counted)

    def projected(self, batch: DataFrame) -> DataFrame:
        """One partial per row."""
        return batch.select(self.hashed, *self.keyed, *self.row)


def hash_of(keys: list[str], bits: int) -> Column:
    """The key hash; fewer bits than 64 make keys collide, for tests. Without keys it is 0."""
    if not keys:
        return F.lit(0).cast("long").alias(HASH)
    h = F.xxhash64(*keys)
    if bits < 64:
        h = F.shiftleft(F.shiftright(h, 64 - bits), 64 - bits)
    return h.alias(HASH)
