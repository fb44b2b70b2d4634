"""The plans of a query that are built once, and then only get the rows of each batch."""

from __future__ import annotations

from collections.abc import Hashable

from pyspark.sql import DataFrame, SparkSession

from headrace.spark.prepared import Build, Frames, Prepared

__all__ = ["Frames", "Preparations"]

class Preparations:
    """The prepared plans of a query, by purpose."""

    def __init__(self) -> None:
        self._known: dict[Hashable, Prepared] = {}

    def frame(self, purpose: Hashable, build: Build, leaves: Frames, session: SparkSession) -> DataFrame:
        """The same DataFrame as `build(leaves)`. `purpose` must identify everything that `build` depends on, except the rows."""
        prepared = self._known.get(purpose)
        if prepared is None:
            prepared = self._known[purpose] = Prepared(build, leaves, session)
        return prepared.on(leaves, session) if prepared.constant else build(leaves)
