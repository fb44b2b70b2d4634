"""The rows of the benchmark, and what every batch must give, computed with numpy alone.

Keys come from row numbers by plain arithmetic, so that the reference shares no code with either engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

FACTOR, PRIME = 1_103_515_245, 2**31 - 1
"""Row numbers stay below 2^31, so that products fit into 63 bits."""


def columns(rows: DataFrame, params: dict[str, Any]) -> DataFrame:
    """Key and value of each row. The first rows touch every key once, to fill the state quickly; then keys are mixed."""
    value, keys = F.col("value"), F.lit(int(params["keys"]))
    mixed = F.pmod(F.pmod(value * F.lit(FACTOR), F.lit(PRIME)), keys)
    return rows.select(F.when(value < keys, value).otherwise(mixed).alias("key"), value.alias("v"))


def key_of(value: np.ndarray, keys: int) -> np.ndarray:
    """The same keys as in ``columns``."""
    return np.where(value < keys, value, value * FACTOR % PRIME % keys)


def digest(keys: np.ndarray, counts: np.ndarray, sums: np.ndarray) -> str:
    """The number of results and a hash that does not depend on their order."""
    mixed = keys.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    for each in (counts, sums):
        mixed = (mixed ^ (mixed >> np.uint64(29)) ^ each.astype(np.uint64)) * np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(32)
    return f"{len(keys)} rows {int(mixed.sum(dtype=np.uint64)):016x}"


def digest_of(results: pa.Table) -> str:
    """The digest of the results that a sink got."""
    keys, counts, sums = (results.column(name).to_numpy() for name in ("key", "n", "s"))
    return digest(keys, counts, sums)


@dataclass(frozen=True)
class Delivery:
    """The results of a batch, as a sink saw them."""

    batch: int
    at_ms: float
    """When they were complete, since the epoch."""
    digest: str


@dataclass
class Reference:
    """Counts and sums by key, batch after batch."""

    keys: int
    rows: int = 0
    """Rows counted so far."""
    counts: np.ndarray = field(init=False)
    sums: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        self.counts, self.sums = np.zeros(self.keys, np.int64), np.zeros(self.keys, np.int64)

    def takes(self, rows: int, seen: str) -> bool:
        """Count the next batch if, with this many rows, it gives the results that were seen."""
        values = np.arange(self.rows, self.rows + rows, dtype=np.int64)
        touched, at = np.unique(key_of(values, self.keys), return_inverse=True)
        counts = self.counts[touched] + np.bincount(at, minlength=len(touched))
        sums = self.sums[touched]
        np.add.at(sums, at, values)
        if digest(touched, counts, sums) != seen:
            return False
        self.counts[touched], self.sums[touched] = counts, sums
        self.rows += rows
        return True


def first_wrong(keys: int, sizes: Sequence[int], deliveries: Sequence[Delivery]) -> str:
    """What is wrong with the first delivery that is; empty if all are right.

    A batch has one of these ``sizes``: a stop may have cut off the last one that fills the state. A batch may come twice.
    """
    reference, before = Reference(keys), Delivery(-1, 0.0, "")
    for each in deliveries:
        if each.batch == before.batch:
            if each.digest != before.digest:
                return f"batch {each.batch} came twice, with different results"
            continue
        if each.batch != before.batch + 1:
            return f"batch {each.batch} came after batch {before.batch}"
        if not any(reference.takes(size, each.digest) for size in dict.fromkeys(sizes)):
            return f"the results of batch {each.batch} are wrong: {each.digest}"
        before = each
    return ""
