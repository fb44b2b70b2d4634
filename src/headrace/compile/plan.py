"""The plan of a query: what Spark does before the shuffle, what the kernel does, and what Spark makes of the kernel's rows.

streaming DataFrame --select--> h, keys, [sub], inputs, part          in Structured Streaming's own plan
    --combine or project--> h, keys, [sub], partials                  in foreachBatch, before the shuffle
    --route--> kernel (Python, over Arrow) --finish--> the user's columns --suffix--> sink
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from headrace.compile import routing
from headrace.operators.aggregate import ROWS
from headrace.operators.kernel import Operator, OutputMode
from headrace.state.layout import HASH

PART = "part"
"""Which partition of the source a row came from."""


@dataclass(frozen=True)
class StatefulPlan:
    """One stateful operator, ready to run."""

    operator_id: str
    operator: Operator
    selected: DataFrame
    """The streaming DataFrame that the query reads: hash, keys, inputs."""
    keyed: tuple[str, ...]
    """h, the keys and the sub-key: what rows are combined by."""
    row: tuple[Column, ...]
    """The partial of one row; columns that are the constant 1 are left out."""
    ones: tuple[str, ...]
    """... and these are they."""
    many: tuple[Column, ...] | None
    """The partials of many rows; None if rows cannot be combined before the shuffle."""
    kernel_schema: StructType
    """Spark's types of the kernel's rows."""
    finish: Callable[[DataFrame], DataFrame]
    """From the kernel's rows to the user's columns."""
    schema: StructType
    """The user's columns."""
    state_schema: StructType
    """Spark's types of the state's rows (a pane's start under the name of a window's)."""
    state_finish: Callable[[DataFrame], DataFrame]
    """From state rows to columns that a user can read."""
    event_time_in_key: bool
    """Whether the operator's results fall due by the watermark."""
    modes: tuple[OutputMode, ...]
    description: dict[str, object] = field(default_factory=dict)

    def combined(self, batch: DataFrame) -> DataFrame:
        """Pre-aggregated within each map task, without a shuffle of its own."""
        assert self.many is not None
        claimed = routing.claim_partitioned_by(batch, PART)
        return claimed.groupBy(PART, *self.keyed).agg(*self.many, F.count(F.lit(1)).alias(ROWS)).drop(PART)

    def projected(self, batch: DataFrame) -> DataFrame:
        """One partial per row."""
        return batch.select(*self.keyed, *self.row)


def hash_of(keys: list[Column], bits: int) -> Column:
    """The key hash; fewer bits than 64 make keys collide, for tests."""
    if not keys:
        return F.lit(0).cast("long").alias(HASH)
    h = F.xxhash64(*keys)
    if bits < 64:
        h = F.shiftleft(F.shiftright(h, 64 - bits), 64 - bits)
    return h.alias(HASH)
