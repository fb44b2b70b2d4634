"""From Kafka to Kafka, with a query that is broken off at every point of a delivery: each result is there once, and is Spark's."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import headrace as hr
from headrace.bench.run import BenchSettings, run_benchmark
from headrace.errors import BatchFailedError
from headrace.ids import Version
from headrace.runtime.failpoints import KAFKA_POINTS, break_off
from headrace.testing.kafka import Broker
from tests.integration.test_demo import run_demo
from tests.kafka.calls import answer, assert_each_once, calls, newest, read, to_kafka, totals

pytestmark = pytest.mark.spark
BATCH = 100


def test_each_result_is_in_the_topic_once(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    broker.create("calls", partitions=2)
    # Results of a key stay in order, because one partition has them all.
    broker.create("totals")
    broker.produce("calls", calls(6 * BATCH))

    def start() -> hr.HeadraceQuery:
        rows = hr.stream(read(spark, broker, "calls", maxOffsetsPerTrigger=BATCH))
        return to_kafka(totals(rows), broker, "totals", tmp_path / "checkpoint").trigger(availableNow=True).start()

    for version, point in enumerate(KAFKA_POINTS):
        with break_off(point, Version(version)), pytest.raises(BatchFailedError, match=point):
            start().awaitTermination()
    query = start()
    query.awaitTermination()
    waiting = [progress["headrace"]["backlog"] for progress in query.recentProgress]
    found = broker.consume("totals")
    assert_each_once(found)
    assert newest(found) == answer(spark, broker, "calls")
    assert len(broker.consume("totals", committed=False)) > len(found), "batches were broken off behind their records"
    assert [each["rowsLeft"] for each in waiting][-1] == 0


@pytest.mark.slow
@pytest.mark.extra
def test_the_demo_with_kafka(tmp_path: Path) -> None:
    out = tmp_path / "demo"
    done = run_demo(out, "--kafka", "--seconds", "6", "--rate", "100")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "comparing with Spark's batch answer over the same topic" in done.stdout
    assert "equal to Spark's batch answer: " in done.stdout
    assert " 0 lost, 0 doubled, and the bills of " in done.stdout
    assert (out / "report.html").exists()


@pytest.mark.slow
@pytest.mark.extra
def test_the_benchmark_runs_and_both_engines_are_right() -> None:
    settings = BenchSettings(1.0, 1, None, 1, {}, None)
    line = run_benchmark("kafka", ["--calls", "8000", "--batch", "2000", "--warmup", "1"], settings)
    assert line["equal"]
    assert line["ours"] > 0
    assert set(line["ratio"]) == {"spark-rocksdb"}
