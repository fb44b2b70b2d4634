"""A query whose executors are lost: ``python -m tests.cluster.safety WORK FAULTS OPTION=VALUE...``.

It counts and sums by key on `local-cluster[3,1,1024]`, one file per batch. Its results and its state are compared with counts of plain
Python. FAULTS are letters: k kill an executor that has state in the middle of a batch, i kill one while the query is idle, h let one hang,
p let one hang that only keeps copies, g let one pause for 1.5 s as in a garbage collection, 2 kill two at once, 3 kill all,
d decommission one by the query's handle, D by the command line, P let Spark decommission one by itself (SIGPWR),
r rescale to four instances, m to one, j wait until split instances are joined, s wait until copies are made. With D or P,
Spark's own decommissioning is on. It prints what it saw as one line of JSON.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import headrace as hr
from headrace.api.writer import StreamWriter
from headrace.chaos.processes import die_with, pid_of
from headrace.spark.executors import Executors
from tests.cluster.program import session, wait_until

KEYS, ROWS = 3000, 2000
PAUSE_S = 1.5


class Story:
    """The query, what was fed, and what came out."""

    def __init__(self, work: Path, options: dict[str, str], decommissions: bool) -> None:
        self.work, self.source = work, work / "in"
        self.source.mkdir(parents=True)
        self.spark = session("local-cluster[3,1,1024]", spark__decommission__enabled=str(decommissions).lower())
        self.app = self.spark.sparkContext.applicationId
        executors = Executors.of(self.spark.sparkContext)
        assert executors is not None
        self.executors, self.random = executors, random.Random(5)
        wait_until("three executors", lambda: len(executors.live()) == 3)
        self.rows: Counter[int] = Counter()
        self.sums: Counter[int] = Counter()
        self.pairs: Counter[tuple[int, int]] = Counter()
        self.got: dict[int, tuple[int, int]] = {}
        self.batches: list[dict[str, Any]] = []
        read = self.spark.readStream.schema("k long, v long").option("maxFilesPerTrigger", 1).parquet(str(self.source))
        counted = hr.stream(read).groupBy("k").agg(F.count("*").alias("n"), F.sum("v").alias("s"))
        writer = counted.writeStream.outputMode("update").foreachBatch(self.take).option("headrace.instances", 3)
        for name, value in options.items():
            writer = writer.option(f"headrace.{name}", value)
        self.query = self.start(read, writer)

    def start(self, rows: DataFrame, writer: StreamWriter) -> hr.HeadraceQuery:
        """Start the query. ``rows`` are those of its source."""
        return writer.option("checkpointLocation", str(self.work / "checkpoint")).start()

    def take(self, rows: DataFrame, _: int) -> None:
        self.got |= {row.k: (row.n, row.s) for row in rows.collect()}

    def feed(self, batches: int = 1) -> None:
        for _ in range(batches):
            keys = [self.random.randrange(KEYS) for _ in range(ROWS)]
            values = [self.random.randrange(100) for _ in range(ROWS)]
            for key, value in zip(keys, values, strict=True):
                self.rows[key] += 1
                self.sums[key] += value
                self.pairs[key, value] += 1
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
                    "instances": len(ours["instances"]),
                    "changes": [change["why"] for change in ours["changes"]],
                }
            )

    def copied(self) -> int:
        """The newest version that peers have copies of."""
        found = self.query._engine.replicas.keeping.copied({each.id for each in self.executors.live()})
        return -1 if found is None else found.version

    def lose(self, fault: str) -> None:
        homes = list(dict.fromkeys(self.batches[-1]["homes"]))
        peers = [each.id for each in self.executors.live() if each.id not in homes]
        victims = peers[:1] if fault == "p" else homes[: int(fault) if fault in "23" else 1]
        processes = [pid_of(each, self.app) for each in victims]
        kind = {"h": signal.SIGSTOP, "p": signal.SIGSTOP, "P": signal.SIGPWR}.get(fault, signal.SIGKILL)

        def strike() -> None:
            for process in processes:
                os.kill(process, kind)

        if fault == "g":
            os.kill(processes[0], signal.SIGSTOP)
            threading.Timer(PAUSE_S, lambda: os.kill(processes[0], signal.SIGCONT)).start()
            self.feed(2)
            return
        if fault == "d":
            self.query.decommission(victims[0])
        elif fault == "D":
            command = [sys.executable, "-c", "from headrace.cli import main; main()", "ctl", "decommission"]
            said = subprocess.run([*command, str(self.work / "checkpoint"), victims[0]], capture_output=True, text=True, check=True).stdout
            assert said.startswith(f"handed over: {victims[0]}"), said
        elif fault in "k23":
            threading.Timer(0.15, strike).start()
        else:
            strike()
        if fault == "i":
            wait_until("the loss", lambda: not set(victims) & {each.id for each in self.executors.live()})
        began_s = time.monotonic()
        self.feed()
        self.batches[-1]["seconds"] = time.monotonic() - began_s
        self.feed()
        wait_until("the loss", lambda: not set(victims) & {each.id for each in self.executors.live()})
        wait_until("other executors", lambda: len(self.executors.live()) == 3)
        self.feed(2)

    def end(self) -> dict[str, Any]:
        wanted = {key: (count, self.sums[key]) for key, count in self.rows.items()}
        state = {row.k: (row.n, row.s) for row in self.query.state().collect()}
        failed, live = self.query.exception(), [each.id for each in self.executors.live()]
        gaps = [gap.to_json() for gap in self.query.gaps()]
        self.query.stop()
        self.spark.stop()
        return {
            "results": self.got == wanted,
            "state": state == wanted,
            "rows": {"fed": sum(self.rows.values()), "counted": sum(count for count, _ in state.values())},
            "too many": [key for key, (count, _) in state.items() if count > self.rows[key]],
            "gaps": gaps,
            "failed": str(failed or ""),
            "live": live,
            "batches": self.batches,
        }


def main() -> None:
    threading.Thread(target=die_with, args=(os.getppid(),), daemon=True).start()
    work, faults, *options = sys.argv[1:]
    story = Story(Path(work), dict(option.split("=", 1) for option in options), decommissions=bool(set(faults) & set("DP")))
    story.feed(3)
    for fault in faults:
        if fault in "rm":
            story.query.rescale(4 if fault == "r" else 1)
            story.feed()
        elif fault == "s":
            wait_until("copies", lambda: story.copied() >= 1)
        elif fault == "j":
            wait_until("joined instances", lambda: {each.instances for each in story.query.routing().values()} == {3})
            story.feed()
        else:
            story.lose(fault)
    print(json.dumps(story.end()))


if __name__ == "__main__":
    main()
