"""What Headrace does for the Python workers that its tasks run in."""

from __future__ import annotations

import gc
import importlib
import select
import sys
from typing import Any

_modules_frozen = 0


def freeze_modules() -> None:
    """Keep what is loaded out of the collector's sight.

    PySpark's daemon collects garbage after every task, and to do so walks through every object of every module: 60 ms, in which the
    worker can take no other task, for some hundred new objects. Modules are there to stay. Called at the beginning of a task, when little
    else is; again only when a task has loaded more.
    """
    global _modules_frozen
    end_quietly()
    if len(sys.modules) != _modules_frozen:
        gc.collect()
        gc.freeze()
        _modules_frozen = len(sys.modules)


def end_quietly() -> None:
    """Let a worker that waits for its next task end without a word when its session is stopped.

    Spark then closes the worker's socket. PySpark takes that for a failure, which it would tell to whoever has just hung up; over a
    Unix domain socket, which ``session`` asks for, it notices at once that nobody listens, and prints "failed to flush the output".
    """
    theirs: Any = importlib.import_module("pyspark.worker")
    tell = getattr(theirs, "handle_worker_exception", None)
    if tell is None or getattr(tell, "headrace", False):
        return

    def told(failure: BaseException, outfile: Any, *rest: Any, **more: Any) -> None:
        if not _has_hung_up(outfile):
            tell(failure, outfile, *rest, **more)

    vars(told)["headrace"] = True
    theirs.handle_worker_exception = told


def _has_hung_up(stream: Any) -> bool:
    poller = select.poll()
    poller.register(stream.fileno(), 0)
    return any(event & (select.POLLHUP | select.POLLERR) for _, event in poller.poll(0))
