"""Where Structured Streaming's own plan ends and a batch's plan begins.

Spark hands a batch over row by row. Steps that turn one row into many (``explode``) are faster in the batch's plan: there Spark compiles
them into one loop with the steps that follow, such as combining, and never writes the many rows.

If several operators read a batch, it is cached for them. Moving these steps means that fewer rows are cached, but each reader repeats the
steps. So in that case only cheap steps move.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame

from headrace.spark.plans import Plan, substituted
from headrace.spark.steps import divided


@dataclass(frozen=True)
class Boundary:
    """A streaming DataFrame, divided into steps of the streaming plan and steps of the batch's plan."""

    below: DataFrame
    """The streaming plan: all steps before the first one that multiplies rows, with only the columns that are used later."""
    _whole: Plan

    def above(self, batch: DataFrame) -> DataFrame:
        """Apply the other steps to a batch, which has the rows of `below`."""
        return substituted(self._whole, [(self.below, batch)])


def boundary(frame: DataFrame, shared: bool = False) -> Boundary | None:
    """The boundary below the first step that multiplies rows; None if no such step may move. `shared`: several operators read the rows."""
    found = divided(frame, only_cheap=shared)
    return None if found is None else Boundary(*found)
