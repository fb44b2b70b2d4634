"""A buffer of rows by key and event time: what joins keep of each side."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from headrace.state.layout import Indices, Layout
from headrace.state.run import RunRef

NEVER = 2**62
"""The event time of a row that has none: it is never late, and nothing is within reach of it."""


@dataclass(frozen=True)
class RowBuffer:
    """Rows stay for a while after the watermark has passed them. The sub-key is the event time in microseconds."""

    layout: Layout
    keep_us: int
    """Rows are gone once the watermark has passed their time by this much."""
    due_us: int | None = None
    """Something is to be said of each row when the watermark has passed its time by this much; None: nothing."""

    def combine(self, columns: list[pa.Array], starts: Indices) -> list[pa.Array]:
        raise AssertionError("rows of a buffer are kept as they are")

    def live_from(self, watermark_ms: int) -> int | None:
        return watermark_ms * 1000 - self.keep_us + 1

    def is_due(self, ref: RunRef, after_ms: int, until_ms: int) -> bool:
        if self.due_us is None or ref.sub_min is None or ref.sub_max is None:
            return False
        return ref.sub_min <= until_ms * 1000 - self.due_us and ref.sub_max > after_ms * 1000 - self.due_us
