"""A query on two executors with a monitor, for a browser: ``python -m tests.browser.on_executors WORK``.

It prints the monitor's URL. Each line on its standard input is the id of an executor, which it kills in the middle of a batch. At the end
of the input it stops.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

from pyspark.sql import functions as F

import headrace as hr
from headrace.chaos.processes import die_with, pid_of
from headrace.spark.executors import Executors
from tests.cluster.program import session, wait_until


def kill_in_a_batch(executor: str, executors: Executors, app: str) -> None:
    """An executor that is stopped first cannot end its part of a batch before it is killed."""
    process = pid_of(executor, app)
    os.kill(process, signal.SIGSTOP)
    wait_until("a task of the executor", lambda: executors.running_tasks().get(executor, 0) > 0)
    os.kill(process, signal.SIGKILL)


def main() -> None:
    threading.Thread(target=die_with, args=(os.getppid(),), daemon=True).start()
    work = Path(sys.argv[1])
    spark = session("local-cluster[2,1,1024]")
    rows = hr.stream(spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1000).load())
    counted = rows.groupBy((F.col("value") % 100).alias("k")).count()
    writer = counted.writeStream.outputMode("update").format("noop").queryName("on executors")
    options = {"headrace.instances": 2, "headrace.replicas": 1, "headrace.checkpointSeconds": 2, "headrace.ui": True}
    query = writer.options(**options).option("checkpointLocation", str(work / "ckpt")).trigger(processingTime="500 milliseconds").start()
    executors = Executors.of(spark.sparkContext)
    assert executors is not None
    print(query.ui, flush=True)
    for line in sys.stdin:
        kill_in_a_batch(line.strip(), executors, spark.sparkContext.applicationId)
    query.stop()
    spark.stop()


if __name__ == "__main__":
    main()
