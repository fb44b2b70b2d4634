"""The Kafka sink. It delivers exactly once: the records of a version and a note of the version are one transaction.

    begin        one producer per query and sink; a driver that was replaced is refused by the brokers from now on
    deliver 7    noted 7 or later? nothing to do
                 collect rows -> begin -> send records -> note 7 -> commit

A consumer with ``isolation.level=read_committed`` sees all records of a version or none, and each version once. After a crash, Kafka knows
whether the commit took place: the note is in the same transaction as the records. So the sink asks Kafka, and no record is searched for.

The price is that all records of a query's sink go through its driver, since a transaction belongs to one producer. With the option
``headrace.kafkaDelivery=tasks`` they are sent by all tasks, as Spark's own sink does: at least once, with the version in a header.
"""

from __future__ import annotations

from typing import ClassVar

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from headrace.config import Config
from headrace.errors import FencedError, SinkError
from headrace.ids import Version
from headrace.logs import logger
from headrace.runtime.failpoints import fail_point
from headrace.runtime.sinks.base import EXACTLY_ONCE, Sink, SinkRequest
from headrace.runtime.sinks.simple import AnyFormatSink
from headrace.spark.gateway import REFUSALS, first_line
from headrace.spark.kafka import TransactionalWriter, check_columns, connector_package, is_fenced, reason
from headrace.spark.sinks import has_format

FORMAT = "kafka"
TRANSACTIONS, TASKS = "transactions", "tasks"
NAME = "kafka.transactional.id"
MARKER = "headrace-deliveries"
"""The marker topic of sinks whose rows name their topics themselves."""
HEADER = "headrace-version"
NOTHING = Version(-1)
_log = logger(__name__)


class KafkaSink(Sink):
    """Writes each version to Kafka in one transaction."""

    guarantee: ClassVar[str] = EXACTLY_ONCE

    def __init__(self, request: SinkRequest, config: Config) -> None:
        super().__init__(request)
        _check(request)
        self._config = config
        self._topic = request.options.get("topic")
        self._marker = config.kafkaMarkerTopic or (self._topic or MARKER).strip()
        self._writer: TransactionalWriter | None = None
        self._noted: Version | None = None
        """The newest version that Kafka has; None if it must be asked."""

    def identify(self, query: str, number: int) -> None:
        # With the topic in its name, a sink that changed its place among the writers finds no note of another one.
        name = self.request.options.get(NAME) or "-".join(filter(None, ("headrace", query, str(number), (self._topic or "").strip())))
        try:
            self._writer = TransactionalWriter(self.request.session, self.request.options.spark(), self._topic, name, self._marker)
        except REFUSALS as refused:
            raise SinkError(where=self.place, wanted="options that Kafka's producer takes", found=reason(refused)) from None
        self._name = name

    @property
    def writer(self) -> TransactionalWriter:
        assert self._writer is not None, "the sink was told whose it is"
        return self._writer

    def check_follows(self, newest: Version | None, delivered: Version | None) -> None:
        if newest is None:
            return
        noted = self._ask()
        if noted is not None and noted > newest:
            raise SinkError(
                f"the query continues at batch {newest + 1}, and versions up to {noted} would be skipped as already delivered",
                where=self.place,
                wanted=f"versions up to {newest}, as the checkpoint says",
                found=f"a note of version {noted} in consumer group {self._name!r}",
                hint="restore checkpoint and topics from one moment; or set option kafka.transactional.id to a new name, to deliver again",
            )
        if noted is None and (delivered is None or delivered < newest) and self._config.kafkaLostNote != "deliver":
            raise SinkError(
                f"the query was broken off while it delivered version {newest}, and Kafka no longer knows whether it has the version",
                where=self.place,
                wanted=f"a committed offset of consumer group {self._name!r} at partition 0 of topic {self._marker!r}",
                found="none; brokers forget the offsets of groups that were quiet for offsets.retention.minutes (a week by default)",
                hint=f"look whether version {newest} is in the topic; set headrace.kafkaLostNote=deliver to deliver it, perhaps once more",
            )

    def begin(self) -> None:
        try:
            if not self.writer.has_marker_topic():
                if self._marker == (self._topic or "").strip():
                    raise self._missing_topic()
                self.writer.make_marker_topic()
            self._open()
        except REFUSALS as refused:
            raise self._refused(refused) from None

    def _open(self) -> None:
        """Fence off earlier producers, and learn what they have delivered."""
        writer = self.writer
        writer.open()
        noted = writer.settled()
        if noted is None:
            # From now on, a missing note means that Kafka has forgotten it.
            writer.begin()
            writer.note(NOTHING)
            writer.commit()
            noted = NOTHING
        self._noted = noted

    def _ask(self) -> Version | None:
        try:
            return self.writer.noted()
        except REFUSALS as refused:
            raise self._refused(refused) from None

    def deliver(self, version: Version, rows: DataFrame | None) -> None:
        try:
            if self._noted is None:
                # The last delivery failed. Whether its commit took place, the brokers know.
                self._open()
            assert self._noted is not None
            if version <= self._noted:
                _log.info("Kafka has version %d already", version)
            elif rows is not None:
                self._deliver(version, rows)
        except REFUSALS as refused:
            self._noted = None
            if is_fenced(refused):
                raise self._fenced(version) from refused
            raise

    def _deliver(self, version: Version, rows: DataFrame) -> None:
        writer = self.writer
        # A transaction holds back consumers of its topics, so it begins when the rows are there.
        collected = writer.collect(rows)
        writer.begin()
        try:
            fail_point("kafka-begun", version)
            writer.write(rows, collected)
            fail_point("kafka-sent", version)
            writer.note(version)
            fail_point("kafka-noted", version)
            writer.commit()
        except BaseException:
            self._noted = None
            writer.abort()
            raise
        self._noted = version
        fail_point("kafka-committed", version)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()

    def _missing_topic(self) -> SinkError:
        return SinkError(
            where=self.place,
            wanted="a topic that the brokers have",
            found=f"none called {self._marker!r}",
            hint="create it, with the number of partitions that it shall have, before the query starts",
        )

    def _refused(self, refused: BaseException) -> SinkError:
        hint = (
            "the query needs the right to write to the topic, to the transactional id and to read the consumer group of that name; "
            f"or set headrace.kafkaDelivery={TASKS} to deliver without transactions, at least once"
        )
        return SinkError(where=self.place, wanted=f"transactions under the name {self._name!r}", found=reason(refused), hint=hint)

    def _fenced(self, version: Version) -> FencedError:
        return FencedError(
            where=self.place,
            wanted=f"to be the only query that delivers under the name {self._name!r}, before delivering version {version}",
            found="another producer of that name, so Kafka refused this one",
            hint="another query has taken over this checkpoint, or has a copy of it; this one ends",
        )


class KafkaTasksSink(AnyFormatSink):
    """Writes each version to Kafka from all tasks, as Spark's own sink does. After a crash, a version may be written twice."""

    def __init__(self, request: SinkRequest) -> None:
        super().__init__(request)
        _check(request)

    def deliver(self, version: Version, rows: DataFrame | None) -> None:
        if rows is None:
            return
        mark = F.array(F.struct(F.lit(HEADER).alias("key"), F.lit(str(version).encode()).alias("value")))
        given = F.col("headers") if "headers" in rows.columns else None
        super().deliver(version, rows.withColumn("headers", mark if given is None else F.concat(F.coalesce(given, F.array()), mark)))


def _check(request: SinkRequest) -> None:
    """Raise an error if Spark's connector is missing, or if it could not write such rows."""
    if not has_format(request.session, FORMAT):
        raise SinkError(
            where=request.where,
            wanted="Spark's connector for Kafka in the session",
            found="none",
            hint=f"start the session with spark.jars.packages={connector_package(request.session)}",
        )
    if not request.options.get("kafka.bootstrap.servers"):
        raise SinkError(where=request.where, wanted="option 'kafka.bootstrap.servers'", found="none")
    try:
        check_columns(request.session, request.schema, request.options.get("topic"))
    except REFUSALS as refused:
        hint = "a Kafka sink writes the columns value, key, headers, partition and topic, as text or bytes: F.to_json(F.struct('*'))"
        raise SinkError(where=request.where, wanted="columns that can be records of Kafka", found=first_line(refused), hint=hint) from None
