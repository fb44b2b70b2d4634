"""The results of a query under test: the rows of each batch, for one sink."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame, Row
from pyspark.sql.types import StructType

from headrace.errors import QueryError
from headrace.testing.compare import assert_same_rows
from headrace.testing.values import sorted_rows


@dataclass
class CollectingSink:
    """A sink that keeps the rows of every batch. A batch that is delivered again must have the same rows."""

    name: str
    mode: str
    schema: StructType
    keys: tuple[str, ...] | None
    """Columns that identify a result; None if they are not known."""
    batches: dict[int, list[Row]] = field(default_factory=dict)

    def take(self, frame: DataFrame, batch: int) -> None:
        """Called by the query with each batch of results."""
        rows = frame.collect()
        if batch in self.batches:
            what = f"batch {batch} of {self.name!r} was delivered again, and its rows"
            assert_same_rows(rows, self.batches[batch], columns=self.schema.names, what=what)
        self.batches[batch] = rows

    def rows(self) -> list[Row]:
        """The result so far, sorted by its columns.

        In append mode this is all rows, in update mode the last row of each key, in complete mode the last table.
        """
        if self.mode == "complete":
            return sorted_rows(self.batches[max(self.batches)]) if self.batches else []
        every = [row for batch in sorted(self.batches) for row in self.batches[batch]]
        return sorted_rows(every if self.mode == "append" else self._last(every))

    def _last(self, rows: Sequence[Row]) -> list[Row]:
        if self.keys is None:
            hint = "start it with keys=[...], or look at single batches with rows(batch=...)"
            raise QueryError(where=f"results of {self.name!r}", wanted="the columns that identify a result", found="none", hint=hint)
        at = [self.schema.names.index(key) for key in self.keys]
        return list({repr([row[each] for each in at]): row for row in rows}.values())

    def of_batch(self, batch: int) -> list[Row]:
        """The rows that one batch delivered, sorted by their columns; -1 is the last batch."""
        known: Any = sorted(self.batches)
        chosen = known[batch] if -len(known) <= batch < 0 else batch
        if chosen not in self.batches:
            raise QueryError(where=f"results of {self.name!r}", wanted=f"a batch that was delivered: {known}", found=str(batch))
        return sorted_rows(self.batches[chosen])
