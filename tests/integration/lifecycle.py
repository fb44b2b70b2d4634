"""Programs that end their queries in ways that need a separate process. Each prints one line of JSON at the end."""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import headrace as hr
from headrace.api.query import HeadraceQuery

KEYS = 3


def session() -> SparkSession:
    quick = {"spark__sql__codegen__wholeStage": "false", "spark__sql__codegen__factoryMode": "NO_CODEGEN"}
    made = hr.session("lifecycle", master="local[2]", spark__ui__enabled="false", spark__sql__shuffle__partitions="2", **quick)
    made.sparkContext.setLogLevel("ERROR")
    return made


def offer(folder: Path, number: int) -> None:
    source = folder / "in"
    source.mkdir(exist_ok=True)
    (source / f"{number:04d}.json").write_text("".join(f'{{"k": {k}}}\n' for k in range(KEYS)))


def start(spark: SparkSession, folder: Path, take: Any) -> HeadraceQuery:
    rows = spark.readStream.schema("k int").option("maxFilesPerTrigger", 1).json(str(folder / "in"))
    writer = hr.stream(rows).groupBy("k").count().writeStream.outputMode("update")
    return writer.option("checkpointLocation", str(folder / "checkpoint")).foreachBatch(take).start()


def interrupt(folder: Path) -> dict[str, Any]:
    """Interrupted by a signal while the first of two batches runs."""
    offer(folder, 0)
    offer(folder, 1)
    delivered: list[int] = []
    signalled = threading.Event()

    def take(rows: DataFrame, version: int) -> None:
        print("in a batch", flush=True)
        signalled.wait(120)
        rows.collect()
        delivered.append(version)

    spark = session()
    query = start(spark, folder, take)
    interrupted = False
    # The batch goes on when the interrupt has come, and is known to the query.
    threading.Thread(target=lambda: (query._engine.gate.stopping.wait(120), signalled.set()), daemon=True).start()
    try:
        query.awaitTermination()
    except KeyboardInterrupt:
        interrupted = True
    failed = query.exception()
    done = {"interrupted": interrupted, "active": query.isActive, "exception": None if failed is None else str(failed)}
    done |= {"delivered": list(delivered), "committed": max(int(p.name) for p in (folder / "checkpoint/commits").glob("[0-9]*"))}
    again = start(spark, folder, lambda rows, version: delivered.append(version))
    again.processAllAvailable()
    again.stop()
    return done | {"restarted": delivered}


def stops(folder: Path) -> dict[str, Any]:
    """Spark's own stop in the middle of batches, then a session that is stopped under an idle query, and one under a busy query."""
    spark = session()
    failed: list[Any] = []
    slow = F.udf(lambda k: time.sleep(0.05) or k, "int")
    files = 0
    for _ in range(2):
        in_batch = threading.Event()
        offer(folder, files)
        offer(folder, files + 1)
        files += 2

        def take(rows: DataFrame, version: int, reached: threading.Event = in_batch) -> None:
            reached.set()
            rows.select(slow("k")).collect()

        query = start(spark, folder, take)
        in_batch.wait(120)
        for each in spark.streams.active:
            each.stop()
        failed.append(query.exception())
    for busy in (False, True):
        reached = threading.Event()
        offer(folder, files)
        files += 1
        query = start(spark, folder, lambda rows, version, reached=reached: (reached.set(), rows.select(slow("k")).collect()))
        if busy:
            reached.wait(120)
        else:
            query.processAllAvailable()
        spark.stop()
        spark = session()
        # On the same checkpoint, in the same process, at once.
        start(spark, folder, lambda rows, version: None).stop()
        failed.append(query.exception())
    last = start(spark, folder, lambda rows, version: None)
    last.processAllAvailable()
    rows = sorted(tuple(row) for row in last.state().select("k", "count").collect())
    last.stop()
    said = [None if each is None else str(each) for each in failed]
    return {"exceptions": said, "rows": rows, "expected": [(k, files) for k in range(KEYS)]}


if __name__ == "__main__":
    part, folder = sys.argv[1:]
    print(json.dumps({"interrupt": interrupt, "stops": stops}[part](Path(folder))), flush=True)
