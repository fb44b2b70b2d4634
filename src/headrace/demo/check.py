"""Compares what a lane wrote with Spark's batch answer over the same calls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from headrace.demo.places import Places
from headrace.demo.query import COLUMNS, answer, bills

SHOWN = 5


@dataclass(frozen=True)
class Verdict:
    """The result of the comparison."""

    rows: int
    """Rows of Spark's batch answer."""
    lost: int
    """Rows of the batch answer that the lane did not write."""
    doubled: int
    """Rows that the lane wrote once too often."""
    wrong: int = 0
    """Rows that the lane wrote, and that the batch answer does not have at all."""
    bills: int = 0
    """Customers with a bill in the batch answer; 0 if the lane's state was not compared."""
    bills_wrong: int = 0
    """Customers whose bill in the lane's state is missing, too many, or another."""
    examples: tuple[str, ...] = ()

    @property
    def equal(self) -> bool:
        return self.rows > 0 and not any((self.lost, self.doubled, self.wrong, self.bills_wrong))

    def __str__(self) -> str:
        counts = f"{self.lost:,} lost, {self.doubled:,} doubled"
        if self.equal:
            state = f", and the bills of {self.bills:,} customers in the state" if self.bills else ""
            return f"equal to Spark's batch answer: {self.rows:,} rows, {counts}{state}"
        if not self.rows:
            return "Spark's batch answer has no rows: nothing was compared"
        counts += f", {self.wrong:,} wrong; {self.bills_wrong:,} bills differ"
        return f"different from Spark's batch answer of {self.rows:,} rows: {counts}"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Verdict:
        """The verdict that ``to_json`` turned into ``body``."""
        return cls(**{**body, "examples": tuple(body["examples"])})


def compare(spark: SparkSession, places: Places, lane: str, state: str | None = None) -> Verdict:
    """Compare all rows that a lane wrote, and the bills in its state if there is a file of them."""
    wanted = answer(places.calls(spark)).select(*COLUMNS).cache()
    found = places.results(spark, lane).select(*COLUMNS).cache()
    try:
        missing, extra = wanted.exceptAll(found).cache(), found.exceptAll(wanted).cache()
        rows, lost, more = wanted.count(), missing.count(), extra.count()
        doubled = extra.join(wanted.distinct(), list(COLUMNS), "left_semi").count() if more else 0
        examples = [f"lost      {row}" for row in _few(missing)] if lost else []
        examples += [f"too many  {row}" for row in _few(extra)] if more else []
        counted, differ, differences = _bills(spark, wanted, state) if state else (0, 0, [])
        return Verdict(rows, lost, doubled, more - doubled, counted, differ, (*examples, *differences))
    finally:
        spark.catalog.clearCache()


def _bills(spark: SparkSession, prices: DataFrame, state: str) -> tuple[int, int, list[str]]:
    """How many customers have a bill, how many of the bills differ, and some of them."""
    wanted = bills(prices).select("src", "calls", "cents").cache()
    kept = spark.read.parquet(state).select("src", "calls", "cents").cache()
    missing, extra = wanted.exceptAll(kept), kept.exceptAll(wanted)
    differ = missing.select("src").union(extra.select("src")).distinct().count()
    return wanted.count(), differ, [f"bill      {row}" for row in (_few(missing, "src") if differ else [])]


def _few(rows: DataFrame, *order: str) -> list[str]:
    return [str(tuple(str(value) for value in row)) for row in rows.orderBy(*(order or ("src", "start"))).limit(SHOWN).collect()]
