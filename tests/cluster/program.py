"""A query on real executors that come, go and die: ``python -m tests.cluster.program MASTER KIND INPUT WORK``.

It feeds the query file by file, changes it on the way, and prints what it saw as one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark import TaskContext
from pyspark.sql import SparkSession

import headrace as hr
from headrace.api.query import HeadraceQuery
from headrace.chaos.processes import die_with, is_gone, pid_of
from headrace.dashboard.pages.faults import faults_of
from headrace.dashboard.queries import Queries
from headrace.spark.executors import Executors
from tests import archive
from tests.crash import driver

WAIT_S = 60.0


def session(master: str, **settings: str) -> SparkSession:
    spark = hr.session(
        "cluster",
        master=master,
        spark__ui__enabled="false",
        spark__sql__shuffle__partitions="2",
        spark__sql__session__timeZone="UTC",
        spark__driver__memory="512m",
        spark__executor__memory="512m",
        spark__executor__cores="1",
        spark__executor__extraJavaOptions=archive.jvm_options(),
        # The query has a processor of the tests' own, which executors must be able to import.
        spark__executorEnv__PYTHONPATH=os.getcwd(),
        spark__sql__codegen__wholeStage="false",
        spark__sql__codegen__factoryMode="NO_CODEGEN",
        **settings,
    )
    spark.sparkContext.setLogLevel("OFF")
    return spark


def wait_until(what: str, holds: Callable[[], bool]) -> float:
    """Wait, and return the seconds it took."""
    began = time.monotonic()
    while not holds():
        if time.monotonic() - began > WAIT_S:
            sys.exit(f"waited {WAIT_S} s for {what}")
        time.sleep(0.05)
    return time.monotonic() - began


@dataclass
class Story:
    """The changes made to a query, and what was observed."""

    query: HeadraceQuery
    executors: Executors
    files: list[Path]
    source: Path
    seen: dict[str, Any] = field(default_factory=dict)

    def feed(self, files: int) -> list[dict[str, Any]]:
        """Feed this many files, one per batch. Returns the progress of the batches."""
        told = []
        for _ in range(files):
            file = self.files.pop(0)
            shutil.copy2(file, self.source / file.name)
            self.query.processAllAvailable()
            progress = self.query.lastProgress
            assert progress is not None
            ours = progress["headrace"]
            told.append(
                {
                    "version": ours["version"],
                    "homes": {name: each["homes"] for name, each in ours["routing"].items()},
                    "ran": [[i["operator"], i["instance"], i["executor"]] for i in ours["instances"]],
                    "fetched": sum(i["bytesFetched"] for i in ours["instances"]),
                    "changes": ours["changes"],
                    "interruptions": ours["interruptions"],
                    "batchMs": ours["batchMs"],
                }
            )
        return told

    def live(self) -> list[str]:
        return [each.id for each in self.executors.live()]

    def tell(self, short: bool) -> None:
        self.seen["two"] = self.feed(1)
        if not short:
            self.shrink_and_grow()
        victim = self.seen["two"][-1]["homes"]["aggregate"][0] if short else self.seen["grown"][-1]["homes"]["aggregate"][0]
        app = self.query._engine.session.sparkContext.applicationId
        threading.Timer(0.1, lambda: os.kill(pid_of(victim, app), signal.SIGKILL)).start()
        self.seen["victim"] = victim
        killed = self.feed(1)
        # A fast batch may end before Spark notices the loss.
        wait_until("the loss of an executor", lambda: victim not in self.live())
        self.seen["killed"] = [*killed, *self.feed(1)]

    def hang_and_lose(self) -> None:
        """One executor hangs before a batch, and another is killed in the middle of one."""
        calm = self.feed(3)
        app = self.query._engine.session.sparkContext.applicationId
        hung, killed, *_ = calm[-1]["homes"]["aggregate"]
        process = pid_of(hung, app)
        stopped = time.monotonic()
        os.kill(process, signal.SIGSTOP)
        self.seen |= {"calm": calm, "hung": [hung, self.feed(1)[0]], "hungSeconds": time.monotonic() - stopped}
        wait_until("the end of the hanging executor", lambda: is_gone(process))
        victim = pid_of(killed, app)
        # A process that was stopped first cannot end its part of the batch before it is killed.
        os.kill(victim, signal.SIGSTOP)
        threading.Thread(target=self.kill_in_a_task, args=(killed, victim)).start()
        self.seen |= {"killed": [killed, self.feed(1)[0]], "after": self.feed(1)[0]}
        shown = Queries([str(self.source.parent / "checkpoint")]).all()[0]
        self.seen["monitor"] = {**faults_of(shown), "live": self.live()}

    def kill_in_a_task(self, executor: str, process: int) -> None:
        wait_until("a task of the executor", lambda: self.executors.running_tasks().get(executor, 0) > 0)
        os.kill(process, signal.SIGKILL)

    def work_beside(self, flag: Path, hangs: bool) -> None:
        """A job of the user keeps one executor for much longer than a batch takes. The next batch has to wait for it.

        If the other executor hangs, none has nothing to do.
        """
        calm = self.feed(3)
        attempts: list[int] = []
        beside = threading.Thread(target=lambda: attempts.extend(self.long_job(flag)))
        beside.start()
        wait_until("the user's job", lambda: any(self.executors.running_tasks().values()))
        (busy,) = (each for each, tasks in self.executors.running_tasks().items() if tasks)
        enough_s = 10 + 10 * max(batch["batchMs"] for batch in calm[1:]) / 1000
        threading.Timer(enough_s, flag.touch).start()
        if hangs:
            (self.seen["hung"],) = (each for each in self.live() if each != busy)
            os.kill(pid_of(self.seen["hung"], self.query._engine.session.sparkContext.applicationId), signal.SIGSTOP)
        self.seen |= {"busy": busy, "beside": self.feed(1)[0]}
        beside.join()
        self.seen |= {"attempts": attempts, "live": self.live()}

    def long_job(self, flag: Path) -> list[int]:
        """Returns which attempt at its one task succeeded."""

        def work(_: Any) -> int:
            while not flag.exists():
                time.sleep(0.05)
            context = TaskContext.get()
            assert context is not None
            return context.attemptNumber()

        return self.query._engine.session.sparkContext.parallelize([0], 1).map(work).collect()

    def shrink_and_grow(self) -> None:
        self.query.rescale(1)
        self.seen["one"] = self.feed(1)
        wait_until("one executor", lambda: len(self.live()) == 1)
        self.query.rescale(2)
        wait_until("homes on two executors", lambda: len(set(*self.query._engine.routing.homes().values())) == 2)
        self.seen["grown"] = self.feed(1)


def main() -> None:
    threading.Thread(target=die_with, args=(os.getppid(),), daemon=True).start()
    arguments = argparse.ArgumentParser()
    arguments.add_argument("master")
    arguments.add_argument("kind", choices=driver.KINDS)
    for name in ("input", "work"):
        arguments.add_argument(name, type=Path)
    arguments.add_argument("--faults", action="store_true", help="an executor hangs, and another is killed; nothing else")
    arguments.add_argument("--beside", action="store_true", help="a job of the user keeps an executor busy; nothing else")
    arguments.add_argument("--hanging", action="store_true", help="with --beside: the other executor hangs")
    arguments.add_argument("--short", action="store_true", help="an executor dies; none is given back or asked for")
    given = arguments.parse_args()
    # An instance waits for its home as long as the user's job runs there.
    spark = session(given.master, **({"spark__locality__wait": "300s"} if given.beside and not given.hanging else {}))
    source = given.work / "source"
    source.mkdir()
    query = driver.start(
        spark,
        given.kind,
        source,
        given.work / "out",
        given.work / "checkpoint",
        3 if given.faults else 2,
        trigger={"processingTime": "0 seconds"},
        **({} if given.faults or given.beside else {"headrace.readyExecutors": "0"}),
    )
    executors = Executors.of(spark.sparkContext)
    assert executors is not None
    story = Story(query, executors, sorted(given.input.iterdir()), source)
    if given.faults:
        story.hang_and_lose()
    elif given.beside:
        story.work_beside(given.work / "enough", given.hanging)
    else:
        story.tell(given.short)
    query.stop()
    print(json.dumps(story.seen), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
