"""The place in a user's graph where rows may be dropped when the query has more to do than it can: ``hr.shed``."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F


class By(StrEnum):
    """What decides which rows are dropped first."""

    ROW = "random"
    """A hash of the row's identity: each row on its own."""
    KEY = "key"
    """A hash of some columns: rows that agree in them stay or go together."""
    WORTH = "worth"
    """The value of an expression: rows of the least value go first."""


@dataclass(frozen=True, eq=False)
class ShedStep:
    """A stateless step that may drop rows. What it drops is decided before each batch; applied like any other step, it drops none."""

    by: By
    columns: tuple[Column, ...]
    """The key columns, or the one value; empty if each row is on its own."""
    max_loss: float
    """The largest share of rows that may be dropped."""
    weight: str | None
    """A column that says how many rows that came a row stands for; None without."""
    where: str
    method: str = "shed"

    def apply(self, frame: DataFrame) -> DataFrame:
        return frame if self.weight is None else frame.withColumn(self.weight, F.lit(1.0))

    def __str__(self) -> str:
        return f"shed(max_loss={self.max_loss:g}, by={self.by})"
