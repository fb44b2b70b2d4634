"""Repairs of PySpark's Python workers: shorter garbage collection, no false error when a session stops, and no end by Ctrl-C.

Tasks import this module, so it imports no other module of the package.
"""

from __future__ import annotations

import gc
import importlib
import logging
import select
import signal
import sys
import threading
from typing import Any

_log = logging.getLogger(__name__)
_modules_frozen = 0


def freeze_modules() -> None:
    """Exclude the objects of all loaded modules from garbage collection.

    PySpark's daemon collects garbage after every task, and visits every object of every module: 60 ms for some hundred new objects, in
    which the worker takes no other task. Modules are never unloaded. A task calls this when it begins, before it has made objects of its
    own. Later calls do something only if more modules were loaded.
    """
    global _modules_frozen
    ignore_interrupts()
    end_quietly()
    if len(sys.modules) != _modules_frozen:
        gc.collect()
        gc.freeze()
        _modules_frozen = len(sys.modules)


def ignore_interrupts() -> None:
    """Let Ctrl-C reach the driver alone, which lets the batch finish.

    A terminal sends it to all processes of the program, and PySpark's workers end by it in the middle of their tasks. They set their
    handler right before they call ``main``.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    worker: Any = importlib.import_module("pyspark.worker")
    if getattr(worker.main, "headrace", False):
        return

    def main(*args: Any, **more: Any) -> Any:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        return main_of_pyspark(*args, **more)

    main_of_pyspark = worker.main
    vars(main)["headrace"] = True
    worker.main = main


def end_quietly() -> None:
    """Make an idle worker end without an error message when its session stops.

    Spark then closes the worker's socket. PySpark takes that for a failure and reports it through the closed socket. Over a Unix domain
    socket, which ``session`` asks for, this fails at once and prints "failed to flush the output".
    """
    worker: Any = importlib.import_module("pyspark.worker")
    report = getattr(worker, "handle_worker_exception", None)
    if report is None:
        # The driver's PySpark has it: the contract says so. The PySpark of this worker is another one.
        _log.warning("pyspark.worker has no handle_worker_exception; idle workers may print errors when the session stops")
        return
    if getattr(report, "headrace", False):
        return

    def report_if_open(failure: BaseException, outfile: Any, *rest: Any, **more: Any) -> None:
        if _has_hung_up(outfile):
            _log.debug("not reported, since Spark closed the socket: %s", failure)
        else:
            report(failure, outfile, *rest, **more)

    vars(report_if_open)["headrace"] = True
    worker.handle_worker_exception = report_if_open


def _has_hung_up(stream: Any) -> bool:
    """True if the other end of a socket is closed."""
    poller = select.poll()
    poller.register(stream.fileno(), 0)
    return any(event & (select.POLLHUP | select.POLLERR) for _, event in poller.poll(0))
