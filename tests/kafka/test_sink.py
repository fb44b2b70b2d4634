"""The Kafka sink: modes, columns, several sinks, mistakes, and what it refuses because results could be lost or doubled."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import headrace as hr
from headrace.errors import BatchFailedError, SinkError
from headrace.ids import Version
from headrace.runtime.failpoints import break_off
from headrace.testing.kafka import Broker, Record
from tests.kafka.calls import answer, calls, newest, read, to_kafka, totals, values

pytestmark = [pytest.mark.spark, pytest.mark.extra, pytest.mark.slow]
NOW: dict[str, Any] = {"availableNow": True}


@pytest.fixture
def source(broker: Broker, request: pytest.FixtureRequest) -> str:
    """A topic with 300 calls, called as the test."""
    topic = request.node.name
    broker.create(topic)
    broker.create(f"{topic}-out")
    broker.produce(topic, calls(300))
    return str(topic)


def records(spark: SparkSession, broker: Broker, topic: str) -> hr.Stream:
    return hr.stream(read(spark, broker, topic, maxOffsetsPerTrigger=100))


def test_complete_mode_writes_all_results_of_each_batch(spark: SparkSession, broker: Broker, source: str, tmp_path: Path) -> None:
    rows = totals(records(spark, broker, source))
    to_kafka(rows, broker, f"{source}-out", tmp_path, "complete").trigger(**NOW).start().awaitTermination()
    found = broker.consume(f"{source}-out")
    assert newest(found) == answer(spark, broker, source)
    assert len(found) == 3 * len(newest(found))


def test_append_mode_without_state(spark: SparkSession, broker: Broker, source: str, tmp_path: Path) -> None:
    rows = records(spark, broker, source).filter("offset % 2 = 0").select("key", "value")
    to_kafka(rows, broker, f"{source}-out", tmp_path, "append").trigger(**NOW).start().awaitTermination()
    wanted = [(each.key, each.value) for each in broker.consume(source) if each.offset % 2 == 0]
    assert [(each.key, each.value) for each in broker.consume(f"{source}-out")] == wanted


def test_rows_name_topic_partition_and_headers(spark: SparkSession, broker: Broker, source: str, tmp_path: Path) -> None:
    broker.create(f"{source}-even", 2)
    broker.create(f"{source}-odd", 2)
    even = F.col("offset") % 2 == 0
    header = F.struct(F.lit("at").alias("key"), F.col("offset").cast("string").cast("binary").alias("value"))
    rows = records(spark, broker, source).select(
        F.when(even, f"{source}-even").otherwise(f"{source}-odd").alias("topic"),
        F.lit(1).alias("partition"),
        F.array(header).alias("headers"),
        "value",
    )

    def start() -> hr.HeadraceQuery:
        return to_kafka(rows, broker, None, tmp_path, "append").trigger(**NOW).start()

    with break_off("kafka-committed", Version(1)), pytest.raises(BatchFailedError):
        start().awaitTermination()
    start().awaitTermination()
    found = broker.consume(f"{source}-even", f"{source}-odd")
    assert sorted((each.headers[0][1], each.value) for each in found) == sorted(
        (b"%d" % each.offset, each.value) for each in broker.consume(source)
    )
    assert {(each.topic[-3:], each.partition, int(each.headers[0][1]) % 2) for each in found} == {("ven", 1, 0), ("odd", 1, 1)}


def test_two_sinks_of_one_query(spark: SparkSession, broker: Broker, source: str, tmp_path: Path) -> None:
    broker.create(f"{source}-raw")

    def start() -> hr.HeadraceQuery:
        rows = records(spark, broker, source)
        first = to_kafka(totals(rows), broker, f"{source}-out", tmp_path)
        second = to_kafka(rows.select("value"), broker, f"{source}-raw", tmp_path, "append")
        return hr.start(first, second, checkpointLocation=str(tmp_path), availableNow=True)

    # The first sink has version 1, and the second one has not.
    with break_off("kafka-committed", Version(1)), pytest.raises(BatchFailedError):
        start().awaitTermination()
    start().awaitTermination()
    assert newest(broker.consume(f"{source}-out")) == answer(spark, broker, source)
    raw = [each.value for each in broker.consume(f"{source}-raw")]
    assert sorted(raw) == sorted(each.value for each in broker.consume(source))
    assert max(Counter((each["src"], each["n"]) for each in values(broker.consume(f"{source}-out"))).values()) == 1


def test_delivery_by_tasks_names_the_version(spark: SparkSession, broker: Broker, source: str, tmp_path: Path) -> None:
    def start() -> hr.HeadraceQuery:
        writer = to_kafka(totals(records(spark, broker, source)), broker, f"{source}-out", tmp_path)
        return writer.option("headrace.kafkaDelivery", "tasks").trigger(**NOW).start()

    with break_off("deliver-after", Version(1)), pytest.raises(BatchFailedError):
        start().awaitTermination()
    start().awaitTermination()
    found = broker.consume(f"{source}-out")
    once = {(each.headers, each.value): each for each in found}
    assert {each.headers[-1][0] for each in found} == {"headrace-version"}
    assert len(once) < len(found), "version 1 came twice"
    assert newest(once.values()) == answer(spark, broker, source)


def test_a_checkpoint_from_a_backup_is_refused(spark: SparkSession, broker: Broker, source: str, tmp_path: Path) -> None:
    def start() -> hr.HeadraceQuery:
        return to_kafka(totals(records(spark, broker, source)), broker, f"{source}-out", tmp_path / "now").trigger(**NOW).start()

    with break_off("batch-begin", Version(1)), pytest.raises(BatchFailedError):
        start().awaitTermination()
    shutil.copytree(tmp_path / "now", tmp_path / "backup")
    start().awaitTermination()
    shutil.rmtree(tmp_path / "now")
    (tmp_path / "backup").rename(tmp_path / "now")
    with pytest.raises(SinkError, match=r"versions up to 2 would be skipped as already delivered"):
        start()


def test_a_note_that_kafka_has_forgotten(spark: SparkSession, broker: Broker, source: str, tmp_path: Path) -> None:
    def start(**options: str) -> hr.HeadraceQuery:
        writer = to_kafka(totals(records(spark, broker, source)), broker, f"{source}-out", tmp_path)
        return writer.options(**options).trigger(**NOW).start()

    before = set(broker.groups())
    with break_off("kafka-committed", Version(1)), pytest.raises(BatchFailedError):
        start().awaitTermination()
    (group,) = [each for each in set(broker.groups()) - before if each.startswith("headrace-")]
    broker.forget(group)
    with pytest.raises(SinkError, match=r"no longer knows whether it has the version.*kafkaLostNote=deliver"):
        start()
    start(**{"headrace.kafkaLostNote": "deliver"}).awaitTermination()
    found = broker.consume(f"{source}-out")
    assert newest(found) == answer(spark, broker, source)
    assert max(Counter((each["src"], each["n"]) for each in values(found)).values()) == 2, "version 1, as the user has chosen"
    # Nothing is doubtful now: the query ended well. So a note that is gone does not matter.
    broker.forget(group)
    start().awaitTermination()


def test_mistakes_are_told_before_the_query_starts(spark: SparkSession, broker: Broker, source: str, tmp_path: Path) -> None:
    rows = totals(records(spark, broker, source))
    with pytest.raises(SinkError, match=r"columns that can be records of Kafka.*value.*not found.*to_json"):
        to_kafka(rows.select("key"), broker, "x", tmp_path / "1").start()
    with pytest.raises(SinkError, match="topic option required"):
        to_kafka(rows, broker, None, tmp_path / "2").start()
    with pytest.raises(SinkError, match=r"option 'kafka.bootstrap.servers'; found none"):
        rows.writeStream.outputMode("update").format("kafka").option("topic", "x").option("checkpointLocation", str(tmp_path / "3")).start()
    with pytest.raises(SinkError, match=r"transactions under the name.*idempotence"):
        to_kafka(rows, broker, f"{source}-out", tmp_path / "4").option("kafka.acks", "1").start()
    with pytest.raises(SinkError, match=r"found none called 'nowhere'; create it"):
        to_kafka(rows, broker, "nowhere", tmp_path / "6").start()
    with pytest.raises(SinkError, match=r"value.serializer"):
        to_kafka(rows, broker, f"{source}-out", tmp_path / "5").option("kafka.value.serializer", "x").start()


def test_a_tombstone_has_no_value(spark: SparkSession, broker: Broker, source: str, tmp_path: Path) -> None:
    rows = records(spark, broker, source).select("key", F.when(F.col("offset") > 0, F.col("value")).alias("value"))
    to_kafka(rows, broker, f"{source}-out", tmp_path, "append").trigger(**NOW).start().awaitTermination()
    first, second, *_ = broker.consume(f"{source}-out")
    assert first.value is None
    assert isinstance(second, Record)
    assert second.value is not None
