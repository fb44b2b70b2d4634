"""``kill -9`` of a driver at every step of a delivery to Kafka, and a driver that sleeps in one while another takes over."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from headrace.chaos.processes import kill_session
from headrace.runtime.failpoints import KAFKA_POINTS, ONCE, VARIABLE
from headrace.testing.kafka import Broker
from tests.crash.harness import KILLED, ROOT, RUN_SECONDS_MAX, wait_for_pid
from tests.kafka.calls import answer, assert_each_once, calls, newest

pytestmark = [pytest.mark.spark, pytest.mark.extra, pytest.mark.slow, pytest.mark.crash, pytest.mark.timeout(1200)]
BATCH = 100


class Program:
    """The program on one checkpoint."""

    def __init__(self, broker: Broker, folder: Path, *options: str) -> None:
        self.command = [sys.executable, "-m", "tests.kafka.program", broker.address, str(folder / "checkpoint"), *options]
        self.log, self.marks = folder / "program.log", folder / "marks"
        self.marks.mkdir()

    def start(self, points: str = "") -> subprocess.Popen[bytes]:
        environment = {name: value for name, value in os.environ.items() if name not in (VARIABLE, ONCE)}
        if points:
            environment |= {VARIABLE: points, ONCE: str(self.marks)}
        with open(self.log, "ab") as log:
            return subprocess.Popen(
                self.command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def run(self, points: str = "") -> int:
        process = self.start(points)
        try:
            return process.wait(RUN_SECONDS_MAX)
        finally:
            kill_session(process)

    def said(self) -> str:
        return self.log.read_text(errors="replace")[-3000:]


def given(broker: Broker, batches: int) -> None:
    broker.create("calls", 2)
    broker.create("totals")
    broker.produce("calls", calls(batches * BATCH))


def check(spark: SparkSession, broker: Broker) -> None:
    found = broker.consume("totals")
    assert_each_once(found)
    assert newest(found) == answer(spark, broker, "calls")


@pytest.mark.parametrize("options", [(), ("headrace.checkpointSeconds=1",)], ids=["durable", "replayed"])
def test_each_result_is_there_once(spark: SparkSession, own_broker: Broker, tmp_path: Path, options: tuple[str, ...]) -> None:
    points = ("manifest-before", "manifest-after", *KAFKA_POINTS, "deliver-after")
    given(own_broker, len(points) + 2)
    program = Program(own_broker, tmp_path, *options)
    for version, point in enumerate(points):
        assert program.run(f"{point}@{version}") == KILLED, f"{point}: {program.said()}"
    assert program.run() == 0, program.said()
    assert {path.name.partition("@")[0] for path in program.marks.iterdir()} == set(points)
    check(spark, own_broker)


@pytest.mark.parametrize("point", ["kafka-begun", "kafka-sent", "kafka-noted"])
def test_a_driver_that_wakes_up_after_another_took_over(spark: SparkSession, own_broker: Broker, tmp_path: Path, point: str) -> None:
    given(own_broker, 4)
    sleeping = Program(own_broker, tmp_path)
    zombie = sleeping.start(f"{point}@1=wait,no-locks")
    try:
        mark = sleeping.marks / f"{point}@1"
        wait_for_pid(mark, RUN_SECONDS_MAX)
        assert sleeping.run("no-locks") == 0, sleeping.said()
        check(spark, own_broker)
        mark.unlink()
        assert zombie.wait(RUN_SECONDS_MAX) != 0, "it may not go on"
    finally:
        kill_session(zombie)
    check(spark, own_broker)
    assert "another query has taken over" in sleeping.said()
