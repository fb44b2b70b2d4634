"""The state of a plain Spark query, read from its checkpoint with Spark's own readers of state."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class SparkState:
    """The state of one operator of a query."""

    session: SparkSession
    location: str
    """The query's checkpoint."""
    operator: int
    """Spark's number of the operator."""
    name: str
    """Spark's name of the kind of operator."""
    batch: int
    """The batch after which the state is read."""

    @property
    def where(self) -> str:
        return f"{self.location}, Spark's operator {self.operator} ({self.name})"

    def rows(self, **options: str) -> DataFrame:
        """The rows of a store, as Spark's reader gives them: ``key``, ``value`` and more. ``options`` are the reader's."""
        reader = self.session.read.format("statestore").option("batchId", self.batch).option("operatorId", self.operator)
        return reader.options(**options).load(self.location)


def states_of(session: SparkSession, location: str, batch: int) -> list[SparkState]:
    """The operators of a query that keep state, in the order of Spark's numbers."""
    found = session.read.format("state-metadata").load(location).select("operatorId", "operatorName").distinct()
    return [SparkState(session, location, int(number), str(name), batch) for number, name in sorted(map(tuple, found.collect()))]
