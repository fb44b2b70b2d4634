"""Rows that have been merged with the state outside of the kernel.

Some partials only Spark can merge (`operators.more_partials.Lists` of Spark's buffers). For these an instance's work has three steps, in
one Spark task, without a shuffle or a job in between:

    gather (kernel: adds each key's old state to its new rows) --> settle (Spark: merges the lists) --> apply (kernel: writes the new state)

Gathered rows are marked as `WHOLE`: they are the state of their keys after the batch. Both kernel steps depend only on the batch and on
the version before, so a task that is repeated does the same again, and no attempt sees another's work. If state is missing, the rows go
on as they came, without the mark; then `apply` looks the state up itself, and reports what is missing.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np
import pyarrow as pa

from headrace.operators.kernel import ROWS, Views
from headrace.state.layout import Indices

WHOLE, KNOWN, SHUFFLED = "whole", "known", "shuffled"
"""Columns of gathered rows: the mark, true for keys that had state before, and how many shuffled rows a row was made of."""
MARKS = {WHOLE: pa.bool_(), KNOWN: pa.bool_(), ROWS: pa.int64(), SHUFFLED: pa.int64()}


@runtime_checkable
class Gathers(Protocol):
    """A kernel that can look up the state of its rows before Spark settles them."""

    def gather(self, rows: pa.RecordBatch, views: Views) -> pa.RecordBatch:
        """One row per key, merged with the key's state, with the columns of `MARKS`."""


def marked(rows: pa.RecordBatch, known: pa.Array, source_rows: Indices, shuffled: Indices) -> pa.RecordBatch:
    """The rows with the columns of `MARKS`, as whole ones."""
    whole = pa.array(np.ones(rows.num_rows, dtype=np.bool_))
    columns = [whole, known, pa.array(source_rows, pa.int64()), pa.array(shuffled, pa.int64())]
    return pa.RecordBatch.from_arrays([*rows.columns, *columns], names=[*rows.schema.names, *MARKS])


def not_gathered(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Rows as they came, with the columns of `MARKS`."""
    n = rows.num_rows
    no, one = pa.array(np.zeros(n, dtype=np.bool_)), pa.array(np.ones(n, dtype=np.int64))
    each = rows.column(ROWS) if ROWS in rows.schema.names else one
    named = {name: rows.column(name) for name in rows.schema.names if name != ROWS}
    named |= {WHOLE: no, KNOWN: no, ROWS: each, SHUFFLED: one}
    return pa.RecordBatch.from_arrays(list(named.values()), names=list(named))


def is_whole(rows: pa.RecordBatch) -> bool:
    """True if all rows are the state of their keys after the batch."""
    return WHOLE in rows.schema.names and rows.num_rows > 0 and bool(np.all(rows.column(WHOLE).to_numpy(zero_copy_only=False)))


def rows_shuffled(rows: pa.RecordBatch) -> int:
    """How many rows were shuffled to make these."""
    if SHUFFLED not in rows.schema.names:
        return int(rows.num_rows)
    return int(rows.column(SHUFFLED).to_numpy().sum()) if rows.num_rows else 0
