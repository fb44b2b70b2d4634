"""An executor dies after another has cached rows that its cancelled task never counted: ``python -m tests.cluster.event_times WORK``.

Two operators read the batch, so that it is cached. What they sum waits in the first task that sees the last row, after the rows are cached
and before the task ends. Meanwhile the other executor is killed. It prints the watermark of the batch, and its interruptions. With
adaptive execution, Spark would fill the cache by a job of its own, which ends before that.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import TaskContext
from pyspark.sql import functions as F
from pyspark.sql.types import LongType

import headrace as hr
from headrace.chaos.processes import die_with, pid_of
from headrace.runtime.whereabouts import executor_id
from headrace.spark.executors import Executors
from tests.cluster.program import session, wait_until

LAST_S = 1000
"""The greatest event time, in seconds. Only the last file has it."""
ROWS = 10


def slow(folder: str) -> Any:
    """Returns its argument. The first task that sees the last event time waits, until it is cancelled."""

    def same(second: int) -> int:
        if second == LAST_S:
            try:
                os.close(os.open(f"{folder}/waiting-{executor_id()}", os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return second
            if len(list(Path(folder).glob("waiting-*"))) == 1:
                while TaskContext.get() is not None:
                    time.sleep(0.1)
        return second

    return F.udf(same, LongType())


def main() -> None:
    threading.Thread(target=die_with, args=(os.getppid(),), daemon=True).start()
    work = Path(sys.argv[1])
    source, flags = work / "source", work / "flags"
    for folder in (source, flags):
        folder.mkdir(parents=True)
    spark = session("local-cluster[2,1,1024]", spark__sql__files__openCostInBytes="1g", spark__sql__adaptive__enabled="false")
    executors = Executors.of(spark.sparkContext)
    assert executors is not None
    wait_until("two executors", lambda: len(executors.live()) == 2)
    rows = hr.stream(spark.readStream.schema("k long, s long").parquet(str(source)))
    timed = rows.withColumn("ts", F.timestamp_seconds("s")).withWatermark("ts", "0 seconds")
    # What is aggregated is computed after the cache.
    total = F.sum(slow(str(flags))("s")).alias("n")
    counts = timed.groupBy("k", F.window("ts", "10 seconds")).agg(total).select("k", "n")
    longer = timed.groupBy("k", F.window("ts", "20 seconds")).agg(total).select("k", "n")
    both = counts.union(longer)
    query = both.writeStream.format("parquet").option("checkpointLocation", str(work / "checkpoint")).start(str(work / "out"))
    # One batch of two files: each is a partition of its own, and so a task.
    for name, second in (("a", 1), ("b", LAST_S)):
        pq.write_table(pa.table({"k": list(range(ROWS)), "s": [second] * ROWS}), work / name)
    for name in "ab":
        os.rename(work / name, source / f"{name}.parquet")
    wait_until("a task that waits", lambda: any(flags.iterdir()))
    (waiting,) = flags.iterdir()
    (other,) = (each.id for each in executors.live() if each.id != waiting.name.removeprefix("waiting-"))
    os.kill(pid_of(other, spark.sparkContext.applicationId), signal.SIGKILL)
    query.processAllAvailable()
    progress = query.lastProgress
    assert progress is not None
    ours = progress["headrace"]
    query.stop()
    print(json.dumps({"interruptions": ours["interruptions"], "watermark": progress["eventTime"]["watermark"]}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
