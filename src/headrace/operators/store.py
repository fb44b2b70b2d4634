"""A store: one part of an operator's state, with a layout of its own."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from headrace.errors import require
from headrace.operators.lifetime import FOREVER, Lifetime
from headrace.operators.partials import Partial, combine
from headrace.state.layout import Indices, Layout, Policy


@dataclass(frozen=True)
class Store:
    """What the rows of a store look like, how rows with one key merge, and how long rows live. Plain data."""

    layout: Layout
    """The columns. Its policy says if rows with one key replace each other, are combined, or are all kept."""
    partials: tuple[Partial, ...] = ()
    """How the value columns of rows with one key are combined; () if rows are never combined."""
    lifetime: Lifetime = FOREVER

    def __post_init__(self) -> None:
        require(self.layout.policy is not Policy.COMBINE or bool(self.partials), "a store whose rows are combined must say how")

    def combine(self, columns: list[pa.Array], starts: Indices) -> list[pa.Array]:
        """Merge the value columns of sorted rows; one result row for each segment that begins at an index of `starts`."""
        return combine(self.partials)(columns, starts)
