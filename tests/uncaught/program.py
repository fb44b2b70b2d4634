"""Runs queries whose user code fails, one after the other, and lets each failure be shown as if it had ended the program. Then runs a
query that is slow enough to be interrupted in the middle of a batch.

    python -m tests.uncaught.program FOLDER

Prints a line `== NAME` on stderr before each part, and `running` on stdout in the middle of the last query's second batch.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark import cloudpickle
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor  # type: ignore[attr-defined]
from pyspark.sql.streaming.state import GroupState

import headrace as hr

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def failing_udf(value):
    raise LookupError(f"no value like {value // 1000}")


def failing_frames(frames: Any) -> Any:
    for frame in frames:
        raise LookupError(f"no frame like {len(frame) // 1000}")
        yield frame


class FailingProcessor(hr.KeyProcessor):
    def process(self, key: Any, rows: Any, state: Any) -> Any:
        raise LookupError("no key like it")


class FailingStateful(StatefulProcessor):
    def init(self, handle: Any) -> None:
        self.handle = handle

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        raise LookupError("no rows like these")
        yield Row()


def failing_state(key: Any, frames: Any, state: GroupState) -> Any:
    raise LookupError("no state like it")
    yield pd.DataFrame()


def failing_sink(frame: DataFrame, batch: int) -> None:
    raise LookupError(f"no sink for {batch}")


def as_they_are(frame: DataFrame, batch: int) -> None:
    frame.collect()


def main(folder: Path) -> None:
    spark = hr.session("failures", master="local[2]", spark__ui__enabled="false", spark__sql__shuffle__partitions="2")

    def source() -> DataFrame:
        return spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1000).load().selectExpr("value", "value % 3 AS k")

    def rows() -> hr.Stream:
        return hr.stream(source())

    def run(name: str, stream: hr.Stream, sink: Callable[[DataFrame, int], None] = as_they_are, mode: str = "update") -> Any:
        writer = stream.writeStream.outputMode(mode).foreachBatch(sink).queryName(name)
        return writer.option("checkpointLocation", str(folder / name)).option("headrace.instances", 2).start()

    failures: dict[str, Callable[[], Any]] = {
        "udf": lambda: run("udf", rows().withColumn("k", F.udf(failing_udf, "long")("value")).groupBy("k").count()),
        "pandas": lambda: run("pandas", hr.stream(source().mapInPandas(failing_frames, "value long, k long")).groupBy("k").count()),
        "processor": lambda: run("processor", rows().groupBy("k").process(FailingProcessor(), "k long", "n long"), mode="append"),
        "stateful": lambda: run(
            "stateful", rows().groupBy("k").transformWithState(FailingStateful(), "k long", "Append", "None"), mode="append"
        ),
        "state": lambda: run(
            "state",
            rows().groupBy("k").applyInPandasWithState(failing_state, "k long", "n long", "Append", "NoTimeout"),
            mode="append",
        ),
        "sink": lambda: run("sink", rows().groupBy("k").count(), failing_sink),
        "mistake": lambda: rows().groupBy("nothing"),
    }
    for name, started in failures.items():
        print(f"== {name}", file=sys.stderr, flush=True)
        try:
            started().awaitTermination()
        except Exception:
            sys.excepthook(*sys.exc_info())

    print("== interrupt", file=sys.stderr, flush=True)
    in_batch = folder / "in-batch"

    @F.udf("long")
    def slow(value):
        if value == 1000:
            in_batch.touch()
        time.sleep(0.005)
        return value % 3

    query = run("interrupt", rows().withColumn("k", slow("value")).groupBy("k").count())

    def tell() -> None:
        # awaitTermination sets the handler when it begins to wait.
        while not (in_batch.exists() and signal.getsignal(signal.SIGINT) is signal.default_int_handler):
            time.sleep(0.01)
        print("running", flush=True)

    threading.Thread(target=tell).start()
    query.awaitTermination()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
