"""Breaks off Spark jobs as soon as an executor is lost.

Left alone, Spark waits for shuffle files of the lost executor, which never come back, and only then runs the job's tasks again.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from pyspark.errors import PySparkException

from headrace.logs import logger
from headrace.spark.executors import Executors
from headrace.spark.gateway import GONE

LOOK_S = 0.1
"""How often to look for lost executors."""
_log = logger(__name__)
_tags = itertools.count()


@contextmanager
def broken_off_on_loss(executors: Executors, besides: Collection[str] = ()) -> Iterator[None]:
    """Inside, the Spark jobs of this thread are cancelled, and so fail, when one of the executors is lost, ``besides`` these."""
    context, tag, ended = executors.context, f"headrace-lending-{next(_tags)}", threading.Event()
    before = frozenset(each.id for each in executors.live()) - frozenset(besides)

    def watch() -> None:
        try:
            while not ended.wait(LOOK_S):
                if before - {each.id for each in executors.live()}:
                    context.cancelJobsWithTag(tag)
                    return
        except (PySparkException, *GONE) as failed:
            # Spark may be shutting down. Then the jobs fail by themselves.
            _log.info("executors cannot be watched: %s", failed)

    context.addJobTag(tag)
    watcher = threading.Thread(target=watch, name="headrace-loss", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()
        context.removeJobTag(tag)
