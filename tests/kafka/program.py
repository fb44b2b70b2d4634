"""A program from Kafka to Kafka, to be killed: ``python -m tests.kafka.program ADDRESS CHECKPOINT [NAME=VALUE...]``.

It reads topic ``calls``, 100 records a batch, until none is left, and exits with 0. After a crash it continues where it was.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import headrace as hr
from headrace.chaos.processes import die_with
from headrace.testing.kafka import Broker, connector
from tests.kafka.calls import read, to_kafka, totals


def main() -> None:
    threading.Thread(target=die_with, args=(os.getppid(),), daemon=True).start()
    address, checkpoint, *options = sys.argv[1:]
    broker = Broker(Path(), port=int(address.rpartition(":")[2]))
    spark = hr.session(
        "kafka crash",
        master="local[2]",
        spark__jars=connector(),
        spark__ui__enabled="false",
        spark__sql__shuffle__partitions="2",
        spark__sql__session__timeZone="UTC",
        spark__driver__memory="512m",
        spark__sql__codegen__wholeStage="false",
        spark__sql__codegen__factoryMode="NO_CODEGEN",
    )
    spark.sparkContext.setLogLevel("OFF")
    rows = hr.stream(read(spark, broker, "calls", maxOffsetsPerTrigger=100))
    writer = to_kafka(totals(rows), broker, "totals", Path(checkpoint)).options(**dict(each.split("=") for each in options))
    writer.trigger(availableNow=True).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
