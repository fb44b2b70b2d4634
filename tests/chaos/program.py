"""The process that faults hit: it holds a Spark session and the query, and executes commands, one line of JSON each.

Starting Spark takes longer than most faults, so one process is used for many of them. It starts and stops the query on command.
``rig.Rig`` is the other end.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
from pathlib import Path
from random import Random
from typing import Any

from pyspark.sql import SparkSession

import headrace as hr
from headrace.errors import HeadraceError
from headrace.runtime.failpoints import VARIABLE
from tests.changes import change_at_random
from tests.chaos import query
from tests.cluster import program as cluster
from tests.crash import driver


class Program:
    """One command, one answer."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark
        self.query: hr.HeadraceQuery | None = None

    @property
    def running(self) -> hr.HeadraceQuery:
        assert self.query is not None, "no query was started"
        return self.query

    def start(self, source: str, output: str, checkpoint: str, order: list[str], options: dict[str, Any]) -> None:
        self.query = query.start(self.spark, Path(source), Path(output), Path(checkpoint), tuple(order), **options)

    def settle(self) -> None:
        """Wait until all that was fed has been processed."""
        self.running.processAllAvailable()

    def stop(self) -> None:
        self.running.stop()

    def wait(self) -> None:
        """Wait until the query ends by itself."""
        self.running.awaitTermination()

    def change(self, seed: int) -> str:
        """Change the routing at random, and return how."""
        before = {name: routing.instances for name, routing in self.running.routing().items()}
        change_at_random(self.running, Random(seed))
        after = {name: routing.instances for name, routing in self.running.routing().items()}
        changed = [f"{name} {before[name]} -> {n}" for name, n in after.items() if n != before[name]]
        return ", ".join(changed) or "slots moved"

    def arm(self, points: str) -> None:
        """Set the fail points of the driver."""
        os.environ[VARIABLE] = points

    def executors(self) -> list[int]:
        """The process ids of the executors, if there are any."""
        found = cluster.Executors.of(self.spark.sparkContext)  # type: ignore[attr-defined]
        app = self.spark.sparkContext.applicationId
        return [] if found is None else [cluster.pid_of(each.id, app) for each in found.live()]


def answer(program: Program, line: str) -> dict[str, Any]:
    request = json.loads(line)
    try:
        return {"result": getattr(program, request.pop("do"))(**request)}
    except HeadraceError as error:
        return {"error": str(error), "kind": type(error).__name__, "ours": True}
    except BaseException as error:
        return {"error": str(error), "kind": type(error).__name__, "ours": False}


def main() -> None:
    threading.Thread(target=driver.die_with, args=(os.getppid(),), daemon=True).start()
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--master", default="local[2,4]")
    given = arguments.parse_args()
    # The JVM writes to the same output; answers have a channel of their own.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    spark = driver.session() if given.master.startswith("local[") else cluster.session(given.master)
    program = Program(spark)
    print(json.dumps({"result": "ready"}), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(program, line)), file=answers, flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
