"""Kafka's own client, in the driver's JVM: a producer whose transactions have results and their version, and what the brokers note of it.

The classes come with Spark's connector for Kafka, which is no part of PySpark. So they are checked when a sink is made, and not by the
contract. Rows never leave the JVM: Spark collects them in the driver, and Spark's own writer turns each into a record.

The version is a committed offset of a consumer group that has the name of the producer, at partition 0 of the *marker topic*. Kafka commits
such an offset in the same transaction as the records: either all of it is there, or nothing.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from headrace.errors import SinkError
from headrace.ids import Version
from headrace.logs import logger, suppressed
from headrace.spark.gateway import GONE, REFUSALS, first_line, java_failure, java_frame, jvm_of, none, printed, scala_map, singleton
from headrace.spark.plans import analyzed, empty_frame

_log = logger(__name__)
_FENCED = ("ProducerFencedException", "InvalidProducerEpochException", "FencedInstanceIdException")
"""Kafka's exceptions for a producer that another one of its name has replaced."""
TRANSACTION_TIMEOUT = "transaction.timeout.ms"
TRANSACTION_MS = 300_000
"""How long Kafka waits for the end of a transaction: a large version must be sent within it. Kafka's brokers allow 15 minutes at most."""
ASK_S = 60
"""How long to wait for an answer of the brokers."""
POLL_S = 0.05
CLOSE_S = 5
_PRODUCERS_OWN = ("key.serializer", "value.serializer")


def is_fenced(failure: BaseException) -> bool:
    """True if Kafka refused a producer because another one of its name has taken over."""
    text = printed(failure)
    return any(name in text for name in _FENCED)


def reason(failure: BaseException) -> str:
    """What Kafka says: its client wraps the reason in exceptions that only say that something failed."""
    found = java_failure(failure)
    return first_line(failure) if found is None else ": ".join(dict.fromkeys(found.messages))


def connector_package(session: SparkSession) -> str:
    """What Maven calls the connector for this Spark."""
    return f"org.apache.spark:spark-sql-kafka-0-10_2.13:{session.version}"


def check_columns(session: SparkSession, schema: StructType, topic: str | None) -> None:
    """Raise Spark's exception unless rows of this schema can be written to Kafka."""
    output = analyzed(empty_frame(session, schema)).output()
    singleton(_connector(session), "KafkaWriter").validateQuery(output, _option(session, topic))


def _connector(session: SparkSession) -> Any:
    return jvm_of(session).org.apache.spark.sql.kafka010


def _option(session: SparkSession, value: str | None) -> Any:
    return none(session) if value is None else jvm_of(session).scala.Some(value)


def newest_offsets(session: SparkSession, source: Any) -> str | None:
    """The newest offsets of a running query's source now, as JSON. It asks the brokers, in some milliseconds; None without an answer.

    Sources are not made for several threads: call it inside ``foreachBatch``.
    """
    try:
        newest = source.kafkaOffsetReader().fetchLatestOffsets(none(session))
        return str(singleton(_connector(session), "JsonUtils").partitionOffsets(newest))
    except REFUSALS as refused:
        _log.info("Kafka did not say how many rows wait: %s", reason(refused))
        return None


class TransactionalWriter:
    """Writes versions to Kafka, each in one transaction. One thread at a time may use it."""

    def __init__(self, session: SparkSession, options: Mapping[str, str], topic: str | None, name: str, marker: str) -> None:
        """``options`` are the writer's, ``name`` the producer's ``transactional.id``, ``marker`` the topic at which versions are noted."""
        self._session, self._topic, self._name, self._marker = session, topic, name, marker
        self._jvm = jvm_of(session)
        self._given = self._parameters(options)
        self._opened = 0
        self._used: Any = None
        """What the producer was made with: under this, Spark's writer finds it in its pool."""
        self._cached: Any = None
        self._producer: Any = None

    def _parameters(self, options: Mapping[str, str]) -> dict[str, Any]:
        """What Spark's own sink would give to its producers."""
        insensitive = singleton(self._jvm.org.apache.spark.sql.catalyst.util, "CaseInsensitiveMap").apply(
            scala_map(self._session, dict(options))
        )
        found = singleton(_connector(self._session), "KafkaSourceProvider").kafkaParamsForProducer(insensitive)
        return {str(name): found.get(name) for name in found.keySet()}

    def noted(self) -> Version | None:
        """The newest version that Kafka has; -1 if the writer was begun, but nothing was written yet. None if Kafka knows nothing of it.

        What an earlier producer has begun does not count, until Kafka has finished it.
        """
        client = self._admin()
        try:
            return self._fetched(client, stable=False)
        finally:
            client.close()

    def settled(self) -> Version | None:
        """As ``noted``, for the open writer: all that earlier producers had begun is decided. The brokers may need a moment to tell."""
        client = self._admin()
        until = time.monotonic() + ASK_S
        try:
            while True:
                # If an answer is still to come, Kafka's client leaves the place out, as if it had no offset at all.
                found = self._fetched(client, stable=True)
                if found is not None or self._fetched(client, stable=False) is None:
                    return found
                if time.monotonic() > until:
                    wanted = f"the committed offset of consumer group {self._name!r} within {ASK_S} s"
                    raise SinkError(where="the Kafka sink", wanted=wanted, found="that a transaction of it is still open")
                time.sleep(POLL_S)
        finally:
            client.close()

    def _fetched(self, client: Any, stable: bool) -> Version | None:
        options = self._jvm.org.apache.kafka.clients.admin.ListConsumerGroupOffsetsOptions().requireStable(stable)
        found = self._answer(client.listConsumerGroupOffsets(self._name, options).partitionsToOffsetAndMetadata()).get(self._place())
        return None if found is None else Version(int(found.offset()) - 1)

    def has_marker_topic(self) -> bool:
        """True if the marker topic is there. To ask does not create it, whatever the brokers do for other clients."""
        client = self._admin()
        try:
            self._answer(client.describeTopics(self._jvm.java.util.List.of(self._marker)).allTopicNames())
            return True
        except REFUSALS as refused:
            if "UnknownTopicOrPartitionException" in printed(refused):
                return False
            raise
        finally:
            client.close()

    def make_marker_topic(self) -> None:
        """Create the marker topic. Nothing is ever written to it."""
        admin = self._jvm.org.apache.kafka.clients.admin
        client = self._admin()
        try:
            some, empty = self._jvm.java.util.Optional.of(1), self._jvm.java.util.Optional.empty()
            topic = admin.NewTopic(self._marker, some, empty)
            self._answer(client.createTopics(self._jvm.java.util.List.of(topic)).all())
            _log.info("created the topic %r, at whose partition 0 delivered versions are noted", self._marker)
        except REFUSALS as refused:
            if "TopicExistsException" not in printed(refused):
                raise
        finally:
            client.close()

    def _answer(self, future: Any) -> Any:
        return future.get(ASK_S, self._jvm.java.util.concurrent.TimeUnit.SECONDS)

    def _admin(self) -> Any:
        parameters = {name: value for name, value in self._given.items() if name not in _PRODUCERS_OWN}
        updater = self._jvm.org.apache.spark.kafka010.KafkaConfigUpdater("driver", scala_map(self._session, parameters))
        return self._jvm.org.apache.kafka.clients.admin.AdminClient.create(updater.setAuthenticationConfigIfNeeded().build())

    def _place(self) -> Any:
        return self._jvm.org.apache.kafka.common.TopicPartition(self._marker, 0)

    def open(self) -> None:
        """Become the only producer of this name. What an earlier one has begun is finished or undone; what it tries later is refused."""
        self.close()
        self._opened += 1
        parameters = self._jvm.java.util.HashMap()
        # Spark pools producers by their parameters. The client's id lets every start have a new one.
        own = {"transactional.id": self._name, "client.id": f"{self._name}-{id(self):x}-{self._opened}"}
        for name, value in {TRANSACTION_TIMEOUT: str(TRANSACTION_MS), **self._given, **own}.items():
            parameters.put(name, value)
        self._used = parameters
        self._cached = singleton(_connector(self._session).producer, "InternalKafkaProducerPool").acquire(parameters)
        self._producer = self._cached.producer()
        self._producer.initTransactions()

    def begin(self) -> None:
        """Begin a transaction."""
        self._producer.beginTransaction()

    def collect(self, rows: DataFrame) -> Any:
        """Compute rows, and hold them in the driver."""
        return java_frame(rows).queryExecution().executedPlan().executeCollectIterator()._2()

    def write(self, rows: DataFrame, collected: Any) -> None:
        """Send rows that were collected, and wait until the brokers have them."""
        output = java_frame(rows).queryExecution().analyzed().output()
        task = _connector(self._session).KafkaWriteTask(self._used, output, _option(self._session, self._topic))
        try:
            task.execute(collected)
        finally:
            task.close()

    def note(self, version: int) -> None:
        """Note a version in the transaction; -1 before the first."""
        offset = self._jvm.org.apache.kafka.clients.consumer.OffsetAndMetadata(version + 1, f"headrace version {version}")
        group = self._jvm.org.apache.kafka.clients.consumer.ConsumerGroupMetadata(self._name)
        self._producer.sendOffsetsToTransaction(self._jvm.java.util.Map.of(self._place(), offset), group)

    def commit(self) -> None:
        """Commit the transaction: consumers with ``read_committed`` see it from now on."""
        self._producer.commitTransaction()

    def abort(self) -> None:
        """Undo the transaction, if the brokers can be reached. Otherwise the next producer of this name does it, or Kafka after a while."""
        with suppressed(_log, "a transaction was not aborted", *REFUSALS, *GONE):
            self._producer.abortTransaction()

    def close(self) -> None:
        """Close the producer. Does nothing without one, or if the JVM has ended."""
        producer, cached, self._producer, self._cached = self._producer, self._cached, None, None
        if producer is None:
            return
        with suppressed(_log, "the producer of a sink was not closed", *REFUSALS, *GONE):
            producer.close(self._jvm.java.time.Duration.ofSeconds(CLOSE_S))
            singleton(_connector(self._session).producer, "InternalKafkaProducerPool").release(cached)
