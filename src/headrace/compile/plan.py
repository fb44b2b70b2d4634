"""The plan of a stateful operator: what Spark does before the shuffle, what the kernel does, and what Spark makes of the kernel's rows.

streaming DataFrame --select--> keys, [sub], inputs                   in Structured Streaming's own plan
    --combine or project--> h, keys, [sub], partials                  in foreachBatch, before the shuffle
    --route--> kernel (Python, over Arrow) --finish--> the user's columns --suffix--> sink

A plan never holds the node that it was compiled from, so a node that the user has dropped is freed with its plan.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, LongType, StructField, StructType

from headrace.errors import QueryError
from headrace.operators.description import ColumnNames, Json
from headrace.operators.kernel import ROWS, Operator, OutputMode
from headrace.operators.settled import KNOWN, MARKS, WHOLE
from headrace.spark import expressions, plans
from headrace.spark.exchange import claim_one_partition
from headrace.state.layout import HASH, SUB

Finish = Callable[[DataFrame], DataFrame]
"""Turns rows in the kernel's columns into rows in the user's columns."""


@dataclass(frozen=True)
class Input:
    """What Spark selects from the rows that come in, before the shuffle."""

    frames: tuple[DataFrame, ...]
    """One per input: a streaming DataFrame, or an empty DataFrame with the columns if the rows come from another operator."""
    selected: DataFrame
    """Built on the frames: keys, sub-key, and the columns that the kernel needs of each row."""
    keyed: tuple[str, ...]
    """The key columns and, if there is one, the sub-key. Rows that agree in them can be combined."""
    hashed: Column
    """The key hash, computed from columns of `selected`."""
    values: tuple[Column, ...]
    """The columns that one row brings to the kernel, beside those in `keyed`."""
    ones: tuple[str, ...] = ()
    """Partials that are always 1 for a single row. They are not shuffled; the task adds them again."""

    def select(self, rows: tuple[DataFrame, ...]) -> DataFrame:
        """What `selected` computes, for actual rows: one DataFrame per input, with the input's columns."""
        pairs = list(zip(self.frames, rows, strict=True))
        return plans.substituted(self.selected, pairs)

    def projected(self, selected: DataFrame) -> DataFrame:
        """The columns that are shuffled, one row for each selected row."""
        return selected.select(self.hashed, *self.keyed, *self.values)


@dataclass(frozen=True)
class Combiner:
    """How Spark combines rows with one key before the shuffle."""

    partials: tuple[Column, ...]
    """Aggregates over the rows of a group. They give the columns that `Input.values` and `Input.ones` give for a single row."""
    counts_rows: str | None = None
    """The partial that counts the rows of a group. None: there is none, and a column `ROWS` is added to count them."""


@dataclass(frozen=True)
class Results:
    """What Spark makes of the rows that the kernel emits."""

    kernel_schema: StructType
    """Spark's types of the kernel's rows."""
    finish: Finish
    """From the kernel's rows to the user's columns."""
    schema: StructType
    """The user's columns."""
    keys: tuple[str, ...] | None = None
    """Columns that identify a result: in update mode a result replaces the earlier one with the same keys. None: nothing is replaced."""

    def marked(self, rows: DataFrame) -> DataFrame:
        """The user's columns of the kernel's rows. Windows and event times are marked as such, for operators that read them."""
        frame = self.finish(rows)
        if not any(each.metadata for each in self.schema.fields):
            return frame
        names = ((expressions.quoted(each.name), each) for each in self.schema.fields)
        return frame.select(*[F.col(name).alias(f.name, metadata=f.metadata) if f.metadata else F.col(name) for name, f in names])


@dataclass(frozen=True)
class StoreReader:
    """How the rows of a store are shown to a user, by ``query.state()`` and by ``headrace state``."""

    schema: StructType
    """Spark's types of the rows. A sub-key has its own name, or the name of a window's start."""
    finish: Finish
    """From the store's rows to columns that a user can read."""
    names: ColumnNames
    """The user's names for the store's columns. They are kept in the checkpoint, to read the state without the program."""


@dataclass(frozen=True)
class Refusal:
    """Why an operator does not have an output mode."""

    reason: str = ""
    found: str = ""
    """What the user has, if there is more to say than the output mode."""
    hint: str = ""
    """What to change in the query to be able to use the mode."""


@dataclass(frozen=True)
class Timing:
    """The operator's output modes, and what the watermark means to it. The defaults suit an operator without event time."""

    uses_watermark: bool = False
    """True if rows can be late or results fall due, so that the watermark must be tracked."""
    modes: tuple[OutputMode, ...] = (OutputMode.APPEND, OutputMode.UPDATE)
    flushes: tuple[OutputMode, ...] = (OutputMode.APPEND,)
    """Output modes in which results fall due when the watermark moves."""
    hold_ms: int = 0
    """How much older than the watermark a result can be when it is emitted."""
    ticks: bool = False
    """True if results fall due by the clock, so that batches must come while the stream has no rows."""
    after_rows: bool = False
    """True if a watermark takes effect after the rows of the next batch, if such a batch is known to come. So it is with Spark's timers."""
    expires: bool = True
    """False if Spark runs no batch without rows when the watermark has moved, because nothing of this operator would fall due then."""
    refusals: Mapping[OutputMode, Refusal] = field(default_factory=dict)
    """The reasons for refusing modes, where there is more to say than that they are not in `modes`."""


@dataclass(frozen=True)
class Description:
    """What the operator computes, in words: for people, and as its identity. State is found by the identity after a restart."""

    shown: Mapping[str, object]
    """A line each in ``explain`` and in pictures. "operator" must be among them; entries that are None are not shown."""
    only_shown: tuple[str, ...] = ()
    """Entries that the state does not depend on, such as the names of result columns. They are no part of the identity."""
    resolved: Callable[[], dict[str, object]] = dict
    """Entries of the identity that replace shown ones: keys and conditions as Spark has resolved them. Called once, at the start."""

    def identity(self) -> dict[str, object]:
        """What is computed, in words that are the same in every session."""
        shown = {name: value for name, value in self.shown.items() if value is not None and name not in self.only_shown}
        return {**shown, **self.resolved()}


@dataclass(frozen=True)
class StatefulPlan:
    """One stateful operator, ready to run."""

    kind: str
    """The operator's name for users, such as "join". It is the operator's id, unless the user gives it a name."""
    input: Input
    operator: Operator
    results: Results
    readers: dict[str, StoreReader]
    """How each store is shown to a user."""
    description: Description
    timing: Timing = field(default_factory=Timing)
    combiner: Combiner | None = None
    """None if rows cannot be combined before the shuffle."""
    settle: Callable[[DataFrame], DataFrame] | None = None
    """Merges the values of gathered rows (`operators.settled`) in Spark; other columns are kept. None if the kernel merges them itself."""
    initial: DataFrame | None = None
    """Rows of the main store that the state starts with."""
    defaults: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By store: the columns that rows of an earlier program may lack, and their values in such rows; None: there is no good one."""

    def combined(self, selected: DataFrame) -> DataFrame:
        """The columns that are shuffled, pre-aggregated within each map task. This needs no shuffle of its own."""
        return self.grouped(claim_one_partition(selected))

    def grouped(self, selected: DataFrame) -> DataFrame:
        """The columns that are shuffled, one row per group. The selected rows must be claimed to be in one partition."""
        assert self.combiner is not None
        counted = [] if self.combiner.counts_rows else [F.count(F.lit(1)).alias(ROWS)]
        # The hash depends on grouping columns alone, so it can be computed with the groups instead of in a step of its own.
        return selected.groupBy(*self.input.keyed).agg(self.input.hashed, *self.combiner.partials, *counted)

    def stores_as_json(self) -> dict[str, Json]:
        """Per store, what is needed to read its state without the program that wrote it."""
        return self.operator.describe({name: reader.names for name, reader in self.readers.items()})

    def check_mode(self, mode: OutputMode, where: str) -> None:
        """Refuse an output mode that the operator does not have. `where` is the user's line."""
        if mode in self.timing.modes:
            return
        others = " or ".join(f"outputMode('{each}')" for each in self.timing.modes)
        refusal = self.timing.refusals.get(mode, Refusal())
        if refusal.hint:
            raise QueryError(refusal.reason, where=where, found=refusal.found, hint=f"{refusal.hint}, or use {others}")
        raise QueryError(refusal.reason, where=where, wanted=others, found=refusal.found or f"output mode {mode}")


def hash_of(keys: list[str], bits: int) -> Column:
    """The key hash of the named columns; 0 without keys. Tests use fewer than 64 bits to make keys collide."""
    if not keys:
        return F.lit(0).cast("long").alias(HASH)
    h = F.xxhash64(*keys)
    if bits < 64:
        h = F.shiftleft(F.shiftright(h, 64 - bits), 64 - bits)
    return h.alias(HASH)


def gathered_type(plan: StatefulPlan) -> StructType:
    """Spark's type of the rows that a kernel has gathered (`operators.settled`)."""
    kernel = plan.results.kernel_schema
    names = [name for name in plan.operator.input_schema.names if name not in (HASH, SUB)]
    subs = [StructField(SUB, LongType())] if SUB in plan.operator.input_schema.names else []
    values = [kernel[name] for name in names if name.startswith("p")]
    keys = [kernel[name] for name in names if not name.startswith("p")]
    marks = [StructField(name, BooleanType() if name in (WHOLE, KNOWN) else LongType()) for name in MARKS]
    return StructType([StructField(HASH, LongType()), *keys, *subs, *values, *marks])
