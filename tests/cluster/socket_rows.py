"""A query on a socket whose executors are lost: ``python -m tests.cluster.socket_rows WORK FAULTS OPTION=VALUE...``.

It counts and sums by key on `local-cluster[3,1,1024]`, with rows from a server of its own. Its results and its state are compared with
counts of plain Python. FAULTS are letters: k kill an executor in the middle of a batch, i kill one while the query is idle, d kill one
after all runs were removed from the disks of executors, so that state is computed again, c take a checkpoint, a kill all executors. It
prints what it saw as one line of JSON.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import signal
import socket
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import headrace as hr
from headrace.api.query import HeadraceQuery
from headrace.chaos.processes import die_with, pid_of
from headrace.errors import HeadraceError
from headrace.spark.executors import Executors
from tests.cluster.program import session, wait_until

KEYS, ROWS = 300, 2000


class Server:
    """Sends lines to the one query that connects."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self._connection: socket.socket | None = None
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            self._connection, _ = self._listening.accept()

    def send(self, lines: list[str]) -> None:
        wait_until("a connection", lambda: self._connection is not None)
        assert self._connection is not None
        self._connection.sendall("".join(f"{line}\n" for line in lines).encode())


class Story:
    """The query, what was sent, and what came out."""

    def __init__(self, work: Path, options: dict[str, str]) -> None:
        work.mkdir(parents=True)
        self.work, self.options, self.server = work, options, Server()
        self.spark = session("local-cluster[3,1,1024]")
        self.app = self.spark.sparkContext.applicationId
        executors = Executors.of(self.spark.sparkContext)
        assert executors is not None
        self.executors, self.random = executors, random.Random(5)
        wait_until("three executors", lambda: len(executors.live()) == 3)
        self.rows: Counter[int] = Counter()
        self.sums: Counter[int] = Counter()
        self.got: dict[int, tuple[int, int]] = {}
        self.seen: dict[str, Any] = {"rebuilt": 0, "refused": "", "failed": "", "kept": [], "explained": ""}
        self.query = self.start()
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            self.query.explain()
        self.seen["explained"] = printed.getvalue()

    def start(self) -> HeadraceQuery:
        read = self.spark.readStream.format("socket").option("host", "127.0.0.1").option("port", self.server.port).load()
        parts = F.split("value", ",")
        rows = hr.stream(read.select(parts[0].cast("long").alias("k"), parts[1].cast("long").alias("v")))
        writer = rows.groupBy("k").agg(F.count("*").alias("n"), F.sum("v").alias("s")).writeStream.outputMode("update")
        writer = writer.foreachBatch(self.take).option("headrace.instances", 3)
        for name, value in {**self.options, "workingDirectory": str(self.work / "home")}.items():
            writer = writer.option(f"headrace.{name}", value)
        return writer.option("checkpointLocation", str(self.work / "checkpoint")).start()

    def take(self, rows: DataFrame, _: int) -> None:
        self.got |= {row.k: (row.n, row.s) for row in rows.collect()}

    def wanted(self) -> dict[int, tuple[int, int]]:
        return {key: (count, self.sums[key]) for key, count in self.rows.items()}

    def feed(self, batches: int = 1) -> None:
        for _ in range(batches):
            lines = []
            for _ in range(ROWS):
                key, value = self.random.randrange(KEYS), self.random.randrange(100)
                self.rows[key] += 1
                self.sums[key] += value
                lines.append(f"{key},{value}")
            self.server.send(lines)
            # Rows arrive at the query one by one, so that they may fill more than one batch.
            wait_until("all rows", lambda: self.counted() >= sum(self.rows.values()) or not self.query.isActive)
            failure = self.query.exception()
            if failure is not None:
                raise failure
            self.seen["rebuilt"] = max(self.seen["rebuilt"], *(p["headrace"]["versionsRebuilt"] for p in self.query.recentProgress))
            self.seen["kept"].append(self.kept())

    def counted(self) -> int:
        return sum(count for count, _ in self.got.values())

    def kept(self) -> int:
        """How many batches' rows Spark keeps on executors."""
        java: Any = self.spark.sparkContext._jsc
        return len(java.getPersistentRDDs())

    def lose(self, fault: str) -> None:
        progress = self.query.lastProgress
        assert progress is not None
        homes = next(iter(progress["headrace"]["routing"].values()))["homes"]
        victims = [each.id for each in self.executors.live()] if fault == "a" else homes[:1]
        processes = [pid_of(each, self.app) for each in victims]
        if fault == "d":
            for run in (self.work / "home").rglob("*.arrow"):
                run.unlink()

        def strike() -> None:
            for process in processes:
                os.kill(process, signal.SIGKILL)

        if fault == "k":
            threading.Timer(0.15, strike).start()
        else:
            strike()
            wait_until("the loss", lambda: not set(victims) & {each.id for each in self.executors.live()})
        self.feed(2)
        wait_until("the loss", lambda: not set(victims) & {each.id for each in self.executors.live()})
        wait_until("other executors", lambda: len(self.executors.live()) == 3)
        self.feed(2)

    def tell(self, faults: str) -> None:
        self.feed(3)
        for fault in faults:
            if fault == "c":
                self.query.checkpoint()
                self.feed()
            else:
                self.lose(fault)

    def end(self) -> dict[str, Any]:
        state = {row.k: (row.n, row.s) for row in self.query.state().collect()}
        self.query.stop()
        try:
            self.start()
        except HeadraceError as refused:
            self.seen["refused"] = str(refused)
        return {**self.seen, "results": self.got == self.wanted(), "state": state == self.wanted()}


def main() -> None:
    threading.Thread(target=die_with, args=(os.getppid(),), daemon=True).start()
    work, faults, *options = sys.argv[1:]
    story = Story(Path(work), dict(option.split("=", 1) for option in options))
    try:
        story.tell(faults)
    except HeadraceError as failed:
        print(json.dumps({**story.seen, "failed": f"{type(failed).__name__}: {failed}"}))
    else:
        print(json.dumps(story.end()))
    story.spark.stop()


if __name__ == "__main__":
    main()
