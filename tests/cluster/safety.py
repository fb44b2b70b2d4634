"""A query whose executors are lost: ``python -m tests.cluster.safety WORK FAULTS OPTION=VALUE...``.

It counts and sums by key on `local-cluster[3,1,1024]`, one file per batch. Its results and its state are compared with counts of plain
Python. FAULTS are letters: k kill an executor that has state in the middle of a batch, i kill one while the query is idle, h let one hang,
p let one hang that only keeps copies, 2 kill two at once, r rescale to four instances. It prints what it saw as one line of JSON.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import headrace as hr
from headrace.chaos.processes import die_with, pid_of
from headrace.spark.executors import Executors
from tests.cluster.program import session, wait_until

KEYS, ROWS = 3000, 2000


class Story:
    """The query, what was fed, and what came out."""

    def __init__(self, work: Path, options: dict[str, str]) -> None:
        self.work, self.source = work, work / "in"
        self.source.mkdir(parents=True)
        self.spark = session("local-cluster[3,1,1024]")
        self.app = self.spark.sparkContext.applicationId
        executors = Executors.of(self.spark.sparkContext)
        assert executors is not None
        self.executors, self.random = executors, random.Random(5)
        wait_until("three executors", lambda: len(executors.live()) == 3)
        self.rows: Counter[int] = Counter()
        self.sums: Counter[int] = Counter()
        self.got: dict[int, tuple[int, int]] = {}
        self.batches: list[dict[str, Any]] = []
        read = self.spark.readStream.schema("k long, v long").option("maxFilesPerTrigger", 1).parquet(str(self.source))
        counted = hr.stream(read).groupBy("k").agg(F.count("*").alias("n"), F.sum("v").alias("s"))
        writer = counted.writeStream.outputMode("update").foreachBatch(self.take).option("headrace.instances", 3)
        for name, value in options.items():
            writer = writer.option(f"headrace.{name}", value)
        self.query = writer.option("checkpointLocation", str(work / "checkpoint")).start()

    def take(self, rows: DataFrame, _: int) -> None:
        self.got |= {row.k: (row.n, row.s) for row in rows.collect()}

    def feed(self, batches: int = 1) -> None:
        for _ in range(batches):
            keys = [self.random.randrange(KEYS) for _ in range(ROWS)]
            values = [self.random.randrange(100) for _ in range(ROWS)]
            for key, value in zip(keys, values, strict=True):
                self.rows[key] += 1
                self.sums[key] += value
            name = f"{len(self.batches):03d}.parquet"
            pq.write_table(pa.table({"k": keys, "v": values}), self.work / name)
            os.rename(self.work / name, self.source / name)
            self.query.processAllAvailable()
            progress = self.query.lastProgress
            assert progress is not None
            ours = progress["headrace"]
            self.batches.append(
                {
                    "homes": next(iter(ours["routing"].values()))["homes"],
                    "rebuilt": ours["versionsRebuilt"],
                    "interruptions": ours["interruptions"],
                    "replicas": ours["replicas"],
                    "batchMs": ours["batchMs"],
                }
            )

    def lose(self, fault: str) -> None:
        homes = list(dict.fromkeys(self.batches[-1]["homes"]))
        peers = [each.id for each in self.executors.live() if each.id not in homes]
        victims = peers[:1] if fault == "p" else homes[: 2 if fault == "2" else 1]
        processes = [pid_of(each, self.app) for each in victims]

        def strike() -> None:
            for process in processes:
                os.kill(process, signal.SIGSTOP if fault in "hp" else signal.SIGKILL)

        if fault in "k2":
            threading.Timer(0.15, strike).start()
        else:
            strike()
        if fault == "i":
            wait_until("the loss", lambda: not set(victims) & {each.id for each in self.executors.live()})
        self.feed(2)
        wait_until("the loss", lambda: not set(victims) & {each.id for each in self.executors.live()})
        wait_until("other executors", lambda: len(self.executors.live()) == 3)
        self.feed(2)

    def end(self) -> dict[str, Any]:
        wanted = {key: (count, self.sums[key]) for key, count in self.rows.items()}
        state = {row.k: (row.n, row.s) for row in self.query.state().collect()}
        failed = self.query.exception()
        self.query.stop()
        self.spark.stop()
        return {"results": self.got == wanted, "state": state == wanted, "failed": str(failed or ""), "batches": self.batches}


def main() -> None:
    threading.Thread(target=die_with, args=(os.getppid(),), daemon=True).start()
    work, faults, *options = sys.argv[1:]
    story = Story(Path(work), dict(option.split("=", 1) for option in options))
    story.feed(3)
    for fault in faults:
        if fault == "r":
            story.query.rescale(4)
            story.feed()
        else:
            story.lose(fault)
    print(json.dumps(story.end()))


if __name__ == "__main__":
    main()
