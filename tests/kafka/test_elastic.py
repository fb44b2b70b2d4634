"""Elastic on Kafka: the rate doubles, instances follow, the lag goes back to zero, and nothing is lost."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import headrace as hr
from headrace.testing.kafka import Broker, Record
from tests.kafka.calls import calls, read, read_all

pytestmark = [pytest.mark.spark, pytest.mark.extra, pytest.mark.slow, pytest.mark.timeout(600)]
ROW_S = 0.001
"""An instance takes in a thousand rows a second at most, however many cores there are."""
SLOW_PER_S, FAST_PER_S = 550, 1100
AT_ONCE = 4000
SECONDS_MAX = 180


class Slow(hr.Processor):
    """Counts rows by key, and takes its time for each."""

    def process(self, rows: pa.Table, state: Any) -> pa.Table:
        time.sleep(rows.num_rows * ROW_S)
        new = rows.group_by("src").aggregate([("src", "count")])
        counts = pa.table({"src": new["src"], "n": pc.add(new["src_count"], pc.fill_null(state.get(new)["n"], 0))})
        state.put(counts)
        return counts


@dataclass(frozen=True)
class Seen:
    """What the progress of a batch says."""

    end_s: float
    instances: int
    lag: int
    """Rows that wait."""
    left: int
    """Those among them that were there before the batch."""
    lag_s: float


@dataclass
class Stream:
    """Calls that come at a rate, and what the query said meanwhile."""

    broker: Broker
    query: hr.HeadraceQuery
    producer: Any
    given: list[Record] = field(default_factory=lambda: list(calls(200_000, keys=200)))
    sent: int = 0
    seen: dict[int, Seen] = field(default_factory=dict)
    """By batch."""

    def pour(self, per_s: int, seconds: float) -> None:
        begin, sent = time.monotonic(), 0
        while (now := time.monotonic() - begin) < seconds:
            due = self.given[self.sent : self.sent + round(now * per_s) - sent]
            self.broker.produce("rates", due, self.producer)
            sent, self.sent = sent + len(due), self.sent + len(due)
            self.note()
            time.sleep(0.1)

    def note(self) -> None:
        for progress in self.query.recentProgress:
            own = progress["headrace"]
            lag = own["backlog"]
            instances = own["routing"]["process"]["instances"]
            waiting_s = (lag["ageMs"] or 0.0) / 1000
            self.seen[progress["batchId"]] = Seen(own["observation"]["endS"], instances, lag["rows"], lag["rowsLeft"], waiting_s)

    @property
    def last(self) -> Seen:
        return self.seen[max(self.seen)]


def test_instances_follow_the_rate_and_the_lag_goes_back_to_zero(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    broker.create("rates", 4)
    counts: dict[str, int] = {}

    def keep(batch: Any, _: int) -> None:
        counts.update({row.src: row.n for row in batch.collect()})

    rows = hr.stream(read(spark, broker, "rates", maxOffsetsPerTrigger=AT_ONCE)).select(F.col("key").cast("string").alias("src"))
    counted = rows.groupBy("src").process(Slow(), "src string, n long", state="n long")
    writer = counted.writeStream.outputMode("update").foreachBatch(keep).option("checkpointLocation", str(tmp_path))
    elastic = hr.Elastic(policy="elastic-manager", min=1, max=2, period_s=2.0, cooldown_s=3.0)
    query = writer.option("headrace.instances", 1).elastic(elastic).trigger(processingTime="500 milliseconds").start()
    stream = Stream(broker, query, broker.producer())
    try:
        stream.pour(SLOW_PER_S, 1)
        query.processAllAvailable()
        stream.pour(SLOW_PER_S, 10)
        until, doubled_s = time.monotonic() + SECONDS_MAX, time.time()
        # More than one instance can take, for at least so long that it is seen; then the rate goes on until the lag is gone.
        while not (stream.last.instances == 2 and stream.last.end_s > doubled_s + 15 and not stream.last.left):
            assert time.monotonic() < until, stream.seen
            stream.pour(FAST_PER_S, 2)
        query.processAllAvailable()
        stream.note()
    finally:
        query.stop()
    for batch, each in sorted(stream.seen.items()):
        print(f"batch {batch}: {each.end_s - doubled_s:6.1f} s, {each.instances} instances, lag {each.lag} rows, {each.lag_s:.1f} s")
    assert max(each.lag for each in stream.seen.values()) > 0, "it never lagged, so nothing was shown"
    assert (stream.last.lag, stream.last.lag_s) == (0, 0.0)
    wanted = read_all(spark, broker, "rates").groupBy(F.col("key").cast("string").alias("src")).count().collect()
    assert sum(counts.values()) == stream.sent
    assert counts == {row.src: row["count"] for row in wanted}
