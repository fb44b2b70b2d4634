"""A query on executors that share no folder: ``python -m tests.stores.program MASTER CHECKPOINT INPUT OUTPUT``.

It counts and sums by key, one file per batch. With ``--kill N`` it kills one executor when N batches have ended.
"""

from __future__ import annotations

import argparse
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

from headrace.chaos.processes import die_with, pid_of
from headrace.spark.executors import Executors
from tests.cluster.program import session
from tests.crash.driver import start


def kill_one(query: Any, batches: int) -> None:
    """Kill the executor on which the first instance lives, when so many batches have ended."""
    while (last := query.lastProgress) is None or last["batchId"] + 1 < batches:
        time.sleep(0.05)
    context = query._engine.session.sparkContext
    executors = Executors.of(context)
    assert executors is not None
    victim = executors.live()[0].id
    os.kill(pid_of(victim, context.applicationId), signal.SIGKILL)
    print(f"killed executor {victim}", flush=True)


def main() -> None:
    threading.Thread(target=die_with, args=(os.getppid(),), daemon=True).start()
    arguments = argparse.ArgumentParser()
    for name in ("master", "checkpoint", "input", "output"):
        arguments.add_argument(name)
    arguments.add_argument("--kill", type=int, default=0)
    arguments.add_argument("--conf", action="append", default=[])
    arguments.add_argument("--option", action="append", default=[])
    given = arguments.parse_args()
    spark = session(given.master, **dict(each.split("=", 1) for each in given.conf))
    options = {f"headrace.{name}": value for name, _, value in (each.partition("=") for each in given.option)}
    query = start(spark, "running", given.input, Path(given.output), given.checkpoint, 2, **options)
    if given.kill:
        threading.Thread(target=kill_one, args=(query, given.kill), daemon=True).start()
    query.awaitTermination()
    print("finished", flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
