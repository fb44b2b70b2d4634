"""A query while an executor hangs outside of a step: ``python -m tests.cluster.hanging WORK MOMENT OPTION=VALUE...``.

An executor with state is stopped (SIGSTOP) at a MOMENT: delivery to a user's function that runs a shuffle of its own (function), delivery
to files (files), shipping of a checkpoint (shipping), state that moves ahead of a rescale (moving), copies that are made beside the
batches (copies). It prints how long the query took to go on, and what ``safety`` prints.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import headrace as hr
from headrace.api.writer import StreamWriter
from headrace.chaos.processes import die_with, pid_of
from tests.cluster import safety
from tests.cluster.program import wait_until


class Story(safety.Story):
    """The same query with a second sink: files with the even values."""

    moment = ""
    """When the next executor is stopped; empty: at none."""
    stopped = ""
    stopped_s = 0.0

    def start(self, rows: DataFrame, writer: StreamWriter) -> hr.HeadraceQuery:
        even = hr.stream(rows).filter("v % 2 = 0").writeStream.format("parquet").option("path", str(self.work / "even"))
        return hr.start(writer, even, checkpointLocation=str(self.work / "checkpoint"))

    def take(self, rows: DataFrame, batch: int) -> None:
        if self.moment == "function":
            self.stop()
            # Six tasks and a shuffle, so that the executor has a part in it, and others wait for its files.
            found = rows.repartition(6, "k").groupBy("k").agg(F.first("n").alias("n"), F.first("s").alias("s")).collect()
            self.got |= {row.k: (row.n, row.s) for row in found}
        else:
            super().take(rows, batch)
        if self.moment == "files":
            # The files are written next.
            self.stop()

    def stop(self) -> None:
        """Let the executor hang that has the first instance."""
        self.moment, self.stopped = "", self.batches[-1]["homes"][0]
        os.kill(pid_of(self.stopped, self.app), signal.SIGSTOP)
        self.stopped_s = time.monotonic()

    def hang(self, moment: str) -> float:
        """Let an executor hang at this moment. Returns how long the query, or what it did beside the batches, took to go on."""
        if moment in ("function", "files"):
            self.moment = moment
            self.feed()
        elif moment == "shipping":
            version = self.query._engine.checkpoint.current.version
            self.stop()
            wait_until("a checkpoint", lambda: self._checkpointed(version))
        elif moment == "moving":
            self.stop()
            self.query.rescale(4)
        else:
            # After the copies of the first batch, those of the second one wait for a while: copies may take a tenth of the time.
            self.feed(2)
            self.stop()
            wait_until("the loss", lambda: self.stopped not in {each.id for each in self.executors.live()})
        return time.monotonic() - self.stopped_s

    def _checkpointed(self, version: int) -> bool:
        return self.query.checkpoint() >= version

    def even(self) -> bool:
        """True if the files have exactly the even values that were fed."""
        rows = self.spark.read.parquet(str(self.work / "even")).collect()
        return Counter((row.k, row.v) for row in rows) == Counter({each: n for each, n in self.pairs.items() if each[1] % 2 == 0})


def main() -> None:
    threading.Thread(target=die_with, args=(os.getppid(),), daemon=True).start()
    work, moment, *options = sys.argv[1:]
    story = Story(Path(work), dict(option.split("=", 1) for option in options), decommissions=False)
    story.feed(3)
    if "replicas" in " ".join(options):
        wait_until("copies", lambda: story.copied() >= 1)
    seen: dict[str, Any] = {"seconds": story.hang(moment)}
    story.feed(2)
    wait_until("another executor", lambda: len(story.executors.live()) == 3)
    story.feed()
    seen["even"] = story.even()
    seen["stopped"] = story.stopped
    print(json.dumps(story.end() | seen))


if __name__ == "__main__":
    main()
