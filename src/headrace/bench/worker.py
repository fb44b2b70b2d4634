"""The process of one lane: ``python -m headrace.bench.worker ORDER``.

It writes events as lines of JSON to standard output, one per batch, and reads commands from standard input. ``finish`` stops
the query, checks the result and ends the process. ``change`` changes the query. If standard input closes, the process ends at once.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

from headrace.bench.model import Lane


def main() -> None:
    # Only events may go through the pipe. Whatever Spark or a library prints goes to the log.
    events = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(2, 1)
    order = json.loads(sys.argv[1])
    told = {word: threading.Event() for word in ("finish", "change")}
    threading.Thread(target=_listen, args=(told,), daemon=True).start()
    try:
        _run(order, events, told)
    except Exception as error:
        _say(events, "failed", reason=f"{type(error).__name__}: {error}")
        os._exit(1)
    # Stopping Spark takes a second and is not needed: its JVM ends with this process.
    os._exit(0)


def _run(order: dict[str, Any], events: TextIO, told: dict[str, threading.Event]) -> None:
    from headrace.bench.runner import Runner, lane_session
    from headrace.spark.gateway import java_version, spark_home

    lane, folder = Lane(**order["lane"]), Path(order["folder"])
    spark = lane_session(order["cores"], order["heap_gb"], order["conf"], lane, folder)
    # Executors of local-cluster have their folders in that of Spark itself.
    leaves = Path(spark_home()) / "work" / str(spark.sparkContext.applicationId)
    _say(events, "ready", java=java_version(spark), leaves=str(leaves))
    runner = Runner(spark, order["bench"], lane, folder)
    for batch in runner.preload():
        _say(events, "preload", batch=asdict(batch))
    if not runner.running:
        runner.start()
    for found in runner.watch():
        if found is not None:
            _say(events, "batch", batch=asdict(found))
        if told["change"].is_set():
            told["change"].clear()
            runner.change()
        if told["finish"].is_set():
            break
    progress = runner.headrace()
    runner.stop()
    _say(events, "finished", headrace=progress, verdict=asdict(runner.check()))


def _say(events: TextIO, event: str, **said: Any) -> None:
    events.write(json.dumps({"event": event, **said}) + "\n")
    events.flush()


def _listen(told: dict[str, threading.Event]) -> None:
    for line in sys.stdin:
        if line.strip() in told:
            told[line.strip()].set()
    # The parent holds the other end of the pipe as long as it lives.
    os._exit(1)


if __name__ == "__main__":
    main()
