"""The process from which an executor forks its Python workers. It imports what tasks need once, before any fork.

    python -m headrace.spark.worker_daemon        Spark starts it if `spark.python.daemon.module` says so; `hr.session` sets that

PySpark's own daemon imports nothing. Each worker then imports PySpark, pandas, pyarrow and the instance task for itself: 1.3 s of CPU.
That counts after the loss of an executor: the tasks of all others are cancelled, which ends their workers, and new ones run the step again.

PySpark does not import before the fork because libraries may start threads, which a fork does not copy. Of these modules only pyarrow
starts one: that of jemalloc, which is made for forks. If there is any other, PySpark's own daemon takes over.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

MODULE = "headrace.spark.worker_daemon"
PYSPARK = "pyspark.daemon"
PRELOADED = ("pyspark.worker", "numpy", "pyarrow", "pyarrow.compute", "pandas", "headrace.runtime.task", "headrace.runtime.staged")
FORK_SAFE = frozenset({"jemalloc_bg_thd"})
"""The names of threads that survive a fork, or are started again after it."""
THREADS = Path("/proc/self/task")


def preload() -> None:
    """Import what tasks need, and exclude it from the garbage collection of all workers."""
    for name in PRELOADED:
        importlib.import_module(name)
    importlib.import_module("headrace.spark.worker").freeze_modules()


def may_fork() -> bool:
    """True if this process has no thread that a fork would break. False if that cannot be seen."""
    try:
        others = [each for each in THREADS.iterdir() if each.name != str(os.getpid())]
        return all((each / "comm").read_text().strip() in FORK_SAFE for each in others)
    except OSError:
        return False


def main() -> None:
    """Preload, and work as PySpark's daemon."""
    preload()
    if not may_fork():
        os.execv(sys.executable, [sys.executable, "-m", PYSPARK, *sys.argv[1:]])
    importlib.import_module(PYSPARK).manager()


if __name__ == "__main__":
    main()
