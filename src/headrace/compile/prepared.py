"""The plans of a query that are built once, and then only get the rows of each batch."""

from __future__ import annotations

from collections.abc import Hashable

from pyspark.sql import DataFrame, SparkSession

from headrace.spark.prepared import Build, Frames, Prepared

__all__ = ["Frames", "Preparations"]

VARYING_MAX = 64
"""So many plans that drop rows are kept."""


class Preparations:
    """The prepared plans of a query, by purpose."""

    def __init__(self) -> None:
        self._known: dict[Hashable, Prepared] = {}
        self._varying: dict[Hashable, Prepared] = {}
        """Those that differ from batch to batch, the one that was used last at the end."""

    def frame(self, purpose: Hashable, build: Build, leaves: Frames, session: SparkSession, drops: tuple[object, ...] = ()) -> DataFrame:
        """The same DataFrame as `build(leaves)`. `purpose` must identify everything that `build` depends on, except the rows.

        With `drops`, it also depends on these. Only the last plans with drops are kept.
        """
        known = self._varying if drops else self._known
        key = (purpose, drops) if drops else purpose
        prepared = known.pop(key, None) or Prepared(build, leaves, session)
        known[key] = prepared
        if len(self._varying) > VARYING_MAX:
            del self._varying[next(iter(self._varying))]
        return prepared.on(leaves, session) if prepared.constant else build(leaves)
