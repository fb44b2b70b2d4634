"""A real Kafka broker for tests and demos: one process in KRaft mode on the loopback address, and a client to fill and read topics.

    broker = Broker(folder)
    broker.start()
    broker.create("calls", partitions=4)
    broker.produce("calls", [Record(b"value", key=b"key")])
    ...                                     # spark.readStream.format("kafka").option("kafka.bootstrap.servers", broker.address)
    broker.kill(); broker.start()           # as after kill -9 of the broker; topics and offsets are those of before
    broker.consume("results")               # what a consumer with isolation.level=read_committed sees
    broker.stop()

The broker's jars, and Spark's connector for Kafka, are in a folder that ``scripts/setup-kafka`` fills. The client is librdkafka's, in C. It
shares no code with the client of Kafka's own that sources and sinks use, so it is a witness of its own for what they wrote.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.errors import SessionError, require

JARS = "HEADRACE_JARS"
"""Environment variable: the folder with the jars."""
START_S_MAX = 120.0
"""A broker that does not answer after so long has failed."""
STOP_S_MAX = 30.0
CLUSTER_ID = "4L6g3nShT-eMCtK--X86sw"
"""Any id would do."""
TRIES = 3
"""How often to choose other ports, if somebody took those that were free."""
_JVM = ("-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-Dorg.apache.logging.log4j.level=WARN")
_SETTINGS = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "auto.create.topics.enable": "false",
    # One broker has one copy of everything.
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "group.initial.rebalance.delay.ms": "0",
    # A broker that was killed may register again when its last session has ended.
    "broker.session.timeout.ms": "1500",
    "broker.heartbeat.interval.ms": "300",
}


@dataclass(frozen=True)
class Record:
    """A record of a topic. Its topic and place are known if it was consumed."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes], ...] = ()
    partition: int | None = None
    topic: str = ""
    offset: int = -1
    timestamp_ms: int = -1


def jars_folder() -> Path | None:
    """The folder with the jars; None if they were not fetched."""
    given = os.environ.get(JARS)
    places = [Path(given)] if given else [Path(".jars"), Path(__file__).parents[3] / ".jars"]
    return next((place.absolute() for place in places if (place / ".fetched").exists()), None)


def why_not() -> str | None:
    """Why there can be no broker here; None if there can."""
    if jars_folder() is None:
        return "no Kafka here: run scripts/setup-kafka, which needs Maven (mvn)"
    try:
        import confluent_kafka  # noqa: F401
    except ImportError:
        return "no client for Kafka here: pip install confluent-kafka"
    return None


def connector(*more: str) -> str:
    """The value of ``spark.jars`` for a session with the fetched connector. ``more``: other folders of the jars, such as ``tables``."""
    return ",".join(sorted(str(jar) for folder in ("connector", *more) for jar in (_jars() / folder).glob("*.jar")))


def _jars() -> Path:
    why = why_not()
    if why is not None:
        raise SessionError(where="a Kafka broker for tests", wanted=f"its jars in .jars or ${JARS}, and a client", found=why)
    found = jars_folder()
    assert found is not None
    return found


@dataclass
class Broker:
    """One broker. Topics stay in its folder when it is stopped or killed."""

    folder: Path
    settings: dict[str, str] = field(default_factory=dict)
    """Settings of the broker, such as ``offsets.retention.minutes``."""
    port: int = 0
    _process: subprocess.Popen[bytes] | None = None
    _guard: subprocess.Popen[bytes] | None = None
    """Kills the broker if this process ends without doing so: its input then ends."""

    @property
    def address(self) -> str:
        """The value of the option ``kafka.bootstrap.servers``."""
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start the broker, with the topics that it had, and wait until it answers."""
        require(self._process is None, "the broker is not running")
        again = self.port != 0
        for attempt in range(TRIES):
            if not again:
                self._format()
            self._run()
            if self._answers():
                return
            self.kill()
            if again or attempt == TRIES - 1:
                break
        raise SessionError(where=f"the Kafka broker in {self.folder}", wanted="a broker that answers", found=self._last_words())

    def stop(self) -> None:
        """Stop the broker in good order. Does nothing if it does not run."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the broker, as ``kill -9`` does."""
        self._end(signal.SIGKILL)

    def _end(self, how: int) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        assert self._guard is not None
        self._guard.kill()
        self._guard.communicate()
        process.send_signal(how)
        try:
            process.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _format(self) -> None:
        self.port, controller = _free_ports(2)
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        listeners = f"PLAINTEXT://127.0.0.1:{self.port}"
        settings = {
            **_SETTINGS,
            "listeners": f"{listeners},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": listeners,
            "controller.quorum.bootstrap.servers": f"127.0.0.1:{controller}",
            "log.dirs": str(self.folder / "data"),
            **self.settings,
        }
        self._config.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        tool = [*self._java("kafka.tools.StorageTool"), "format", "--standalone", "-t", CLUSTER_ID, "-c", str(self._config)]
        done = subprocess.run(tool, capture_output=True, text=True)
        if done.returncode:
            raise SessionError(where=f"the Kafka broker in {self.folder}", wanted="a formatted folder", found=done.stderr[-1000:])

    def _run(self) -> None:
        with open(self._log, "ab") as log:
            command = [*self._java("kafka.Kafka"), str(self._config)]
            # Ctrl-C in a terminal is for the program, which stops its broker itself.
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        killing = ["sh", "-c", f"read -r _; kill -9 {self._process.pid}"]
        self._guard = subprocess.Popen(killing, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True)

    def _java(self, main: str) -> list[str]:
        home = os.environ.get("JAVA_HOME")
        java = str(Path(home) / "bin" / "java") if home else "java"
        return [java, *_JVM, "-cp", str(_jars() / "broker" / "*"), main]

    @property
    def _config(self) -> Path:
        return self.folder / "server.properties"

    @property
    def _log(self) -> Path:
        return self.folder / "broker.log"

    def _answers(self) -> bool:
        """Wait until the broker answers. False if it ended instead."""
        import confluent_kafka

        assert self._process is not None
        until = time.monotonic() + START_S_MAX
        while time.monotonic() < until and self._process.poll() is None:
            if not _accepts(self.port):
                time.sleep(0.05)
                continue
            try:
                self._admin().list_topics(timeout=5)
                return True
            except confluent_kafka.KafkaException:
                time.sleep(0.1)
        return False

    def _last_words(self) -> str:
        return self._log.read_text(errors="replace")[-1500:] if self._log.exists() else "nothing"

    def _admin(self) -> Any:
        from confluent_kafka.admin import AdminClient

        return AdminClient({"bootstrap.servers": self.address, "log_level": 0})

    def create(self, topic: str, partitions: int = 1, **config: str) -> None:
        """Create a topic. ``config`` has its settings with ``_`` for a dot: ``cleanup_policy="compact"``."""
        from confluent_kafka.admin import NewTopic

        settings = {name.replace("_", "."): value for name, value in config.items()}
        self._ask("create_topics", [NewTopic(topic, partitions, 1, config=settings)])

    def grow(self, topic: str, partitions: int) -> None:
        """Give a topic more partitions: so many in all."""
        from confluent_kafka.admin import NewPartitions

        self._ask("create_partitions", [NewPartitions(topic, partitions)])

    def forget(self, group: str) -> None:
        """Delete the committed offsets of a consumer group, as brokers do when it was quiet for long."""
        self._ask("delete_consumer_groups", [group])

    def groups(self) -> list[str]:
        """The names of the consumer groups that the broker knows."""
        admin = self._admin()
        return sorted(group.group_id for group in admin.list_consumer_groups().result(60).valid)

    def _ask(self, method: str, what: list[Any]) -> None:
        # The answers come as long as the client lives.
        admin = self._admin()
        for future in getattr(admin, method)(what).values():
            future.result(60)

    def produce(self, topic: str, records: Iterable[Record], producer: Any = None) -> None:
        """Append records to a topic, and wait until the broker has them. ``producer`` is one of ``self.producer``, to be used again."""
        producer = producer or self.producer()
        for record in records:
            send(producer, topic, record)
        left = producer.flush(60)
        require(left == 0, f"the broker took all records, but {left} are left")

    def producer(self, **settings: Any) -> Any:
        """A producer of librdkafka. ``settings`` have ``_`` for a dot: ``transactional_id="a"``."""
        import confluent_kafka

        own = {name.replace("_", "."): value for name, value in settings.items()}
        return confluent_kafka.Producer({"bootstrap.servers": self.address, "linger.ms": 5, "log_level": 0, **own})

    @contextmanager
    def transaction(self, name: str, commit: bool = True) -> Iterator[Any]:
        """A transaction of this ``transactional.id``: gives a producer, and commits or aborts at the end."""
        producer = self.producer(transactional_id=name)
        producer.init_transactions(60)
        producer.begin_transaction()
        yield producer
        producer.flush(60)
        producer.commit_transaction(60) if commit else producer.abort_transaction(60)

    def consume(self, *topics: str, committed: bool = True) -> list[Record]:
        """All records of topics that are there now, as a consumer with ``isolation.level=read_committed`` sees them, or one without."""
        import confluent_kafka as client

        level = "read_committed" if committed else "read_uncommitted"
        settings = {"bootstrap.servers": self.address, "group.id": "headrace-tests", "isolation.level": level, "enable.auto.commit": False}
        consumer = client.Consumer({**settings, "enable.partition.eof": True, "auto.offset.reset": "earliest", "log_level": 0})
        try:
            known = consumer.list_topics(timeout=30).topics
            places = [client.TopicPartition(topic, part, 0) for topic in topics for part in known[topic].partitions]
            consumer.assign(places)
            found: list[Record] = []
            ended: set[tuple[Any, Any]] = set()
            while len(ended) < len(places):
                for message in consumer.consume(10_000, 0.5):
                    error = message.error()
                    if error is None:
                        found.append(_record(message))
                    elif error.code() == client.KafkaError._PARTITION_EOF:
                        ended.add((message.topic(), message.partition()))
                    else:
                        raise client.KafkaException(error)
            return found
        finally:
            consumer.close()


def send(producer: Any, topic: str, record: Record) -> None:
    """Give a record to a producer; wait if its queue is full."""
    where = {} if record.partition is None else {"partition": record.partition}
    when = {} if record.timestamp_ms < 0 else {"timestamp": record.timestamp_ms}
    while True:
        try:
            producer.produce(topic, record.value, record.key, headers=list(record.headers), **where, **when)
            return
        except BufferError:
            producer.poll(0.1)


def _record(message: Any) -> Record:
    headers = tuple(message.headers() or ())
    place = (message.partition(), message.topic(), message.offset(), message.timestamp()[1])
    return Record(message.value(), message.key(), headers, *place)


def _accepts(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), 1):
            return True
    except OSError:
        return False


def _free_ports(count: int) -> Sequence[int]:
    """Ports that nobody listens on. They are held together, so that they differ."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [int(each.getsockname()[1]) for each in held]
    finally:
        for each in held:
            each.close()
