"""A query over windows whose executors are lost: ``python -m tests.cluster.windows WORK FAULTS OPTION=VALUE...``.

It counts and sums by key and window on `local-cluster[3,1,1024]`, one file per batch. Each window must come once, and be that of plain
Python. FAULTS are those of ``tests.cluster.safety``.
"""

from __future__ import annotations

import json
import os
import random
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
from headrace.chaos.processes import die_with
from headrace.spark.executors import Executors
from tests.cluster import safety
from tests.cluster.program import session, wait_until

KEYS, ROWS = 50, 500
STEP_S, SPREAD_S, WINDOW_S = 20, 30, 30
BEGIN_S = 1_800_000_000


class Story(safety.Story):
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
        self.windows: dict[tuple[int, int], tuple[int, int]] = {}
        self.came: list[tuple[int, int, int, int]] = []
        self.batches: list[dict[str, Any]] = []
        read = self.spark.readStream.schema("k long, s long, v long").option("maxFilesPerTrigger", 1).parquet(str(self.source))
        rows = hr.stream(read.select("k", "v", F.timestamp_seconds("s").alias("ts"))).withWatermark("ts", "10 seconds")
        counted = rows.groupBy("k", F.window("ts", f"{WINDOW_S} seconds")).agg(F.count("*").alias("n"), F.sum("v").alias("s"))
        flat = counted.select("k", F.unix_seconds("window.start").alias("w"), "n", "s")
        writer = flat.writeStream.outputMode("append").foreachBatch(self.take).option("headrace.instances", 3)
        for name, value in options.items():
            writer = writer.option(f"headrace.{name}", value)
        self.query = writer.option("checkpointLocation", str(work / "checkpoint")).start()

    def take(self, rows: DataFrame, _: int) -> None:
        self.came += [(row.k, row.w, row.n, row.s) for row in rows.collect()]

    def feed(self, batches: int = 1) -> None:
        for _ in range(batches):
            begin_s = BEGIN_S + STEP_S * len(self.batches)
            draw = self.random.randrange
            self._give([(draw(KEYS), begin_s + draw(SPREAD_S), draw(100)) for _ in range(ROWS)])

    def _give(self, rows: list[tuple[int, int, int]]) -> None:
        for key, second, value in rows:
            at = key, second - second % WINDOW_S
            count, total = self.windows.get(at, (0, 0))
            self.windows[at] = count + 1, total + value
        keys, seconds, values = (list(each) for each in zip(*rows, strict=True))
        name = f"{len(self.batches):03d}.parquet"
        pq.write_table(pa.table({"k": keys, "s": seconds, "v": values}), self.work / name)
        os.rename(self.work / name, self.source / name)
        self.query.processAllAvailable()
        progress = self.query.lastProgress
        assert progress is not None
        ours = progress["headrace"]
        homes = next(iter(ours["routing"].values()))["homes"]
        self.batches.append({"homes": homes, "rebuilt": ours["versionsRebuilt"], "changes": ours["changes"]})

    def end(self) -> dict[str, Any]:
        durable = list((self.work / "checkpoint" / "headrace" / "manifests").glob("[0-9]*"))
        records = list((self.work / "checkpoint" / "headrace" / "journal").glob("*.json"))
        last_s = BEGIN_S + 100_000
        self._give([(KEYS, last_s, 0)])
        wanted = Counter((key, window, *both) for (key, window), both in self.windows.items() if window < last_s - WINDOW_S)
        failed = self.query.exception()
        self.query.stop()
        self.spark.stop()
        return {
            "results": Counter(self.came) == wanted,
            "failed": str(failed or ""),
            "batches": self.batches,
            "durable": len(durable),
            "records": len(records),
        }


def main() -> None:
    threading.Thread(target=die_with, args=(os.getppid(),), daemon=True).start()
    work, faults, *options = sys.argv[1:]
    story = Story(Path(work), dict(option.split("=", 1) for option in options))
    story.feed(6)
    for fault in faults:
        if fault == "r":
            story.query.rescale(4)
            story.feed()
        else:
            story.lose(fault)
    print(json.dumps(story.end()))


if __name__ == "__main__":
    main()
