"""Breaks off Spark jobs as soon as an executor is lost, or hangs.

Left alone, Spark waits for shuffle files of a lost executor, which never come back, and only then runs the job's tasks again. It notices an
executor that hangs after two minutes.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from pyspark.errors import PySparkException

from headrace.logs import logger
from headrace.spark.executors import Executors
from headrace.spark.gateway import GONE

LOOK_S = 0.1
"""How often to look for lost executors."""
_log = logger(__name__)
_tags = itertools.count()


@dataclass
class Suspects:
    """Finds executors that hang: those that have worked all the time since we began to look, while another one has nothing to do.

    >>> suspects = Suspects(frozenset({"1", "2", "3"}), patience_s=4.0, proven=frozenset("12"))
    >>> suspects.look(2.5, {"1": 1, "2": 1}), suspects.look(3.5, {"1": 1, "2": 0, "3": 1}), suspects.look(4.5, {"1": 1, "3": 1})
    (frozenset(), frozenset(), frozenset({'1'}))
    """

    executors: frozenset[str]
    patience_s: float | None
    """After how long executors are suspected; None: never."""
    proven: frozenset[str]
    """Those that may be suspected."""
    _always: frozenset[str] | None = field(default=None, init=False)

    def is_early(self, took_s: float) -> bool:
        """True while it is too early to look: half of the patience, so that work from before has ended."""
        return self.patience_s is None or took_s < self.patience_s / 2

    def look(self, took_s: float, running: dict[str, int]) -> frozenset[str]:
        """The suspects after so many seconds, by the number of tasks that each executor runs now."""
        if self.patience_s is None or self.is_early(took_s):
            return frozenset()
        working = frozenset(each for each, tasks in running.items() if tasks) & self.executors
        self._always = working if self._always is None else self._always & working
        return self._always & self.proven if took_s > self.patience_s and working < self.executors else frozenset()


@dataclass
class BrokenOff:
    """Why jobs were broken off."""

    hung: frozenset[str] = frozenset()
    """Executors that did not answer."""


@contextmanager
def broken_off_on_loss(
    executors: Executors,
    besides: Collection[str] = (),
    patience_s: float | None = None,
    proven: Collection[str] = frozenset(),
    suspected: Callable[[], Collection[str]] = frozenset,
) -> Iterator[BrokenOff]:
    """Inside, the Spark jobs of this thread are cancelled, and so fail, when one of the executors is lost or hangs, ``besides`` these.

    ``patience_s`` is how long the jobs may take before executors that still work are suspected to hang; None if that is not known. Only
    those of ``proven`` are suspected. ``suspected`` are those that others suspect.
    If one is added, the jobs are cancelled too: tasks that wait for it would keep the cores of healthy executors busy.
    """
    context, tag, ended = executors.context, f"headrace-lending-{next(_tags)}", threading.Event()
    before = frozenset(each.id for each in executors.live()) - frozenset(besides) - frozenset(suspected())
    suspects, broken, began_s = Suspects(before, patience_s, frozenset(proven)), BrokenOff(), time.monotonic()

    def watch() -> None:
        try:
            while not ended.wait(LOOK_S):
                took_s = time.monotonic() - began_s
                if not suspects.is_early(took_s):
                    broken.hung = suspects.look(took_s, executors.running_tasks())
                if broken.hung or before & frozenset(suspected()) or before - {each.id for each in executors.live()}:
                    context.cancelJobsWithTag(tag)
                    return
        except (PySparkException, *GONE) as failed:
            # Spark may be shutting down. Then the jobs fail by themselves.
            _log.info("executors cannot be watched: %s", failed)

    context.addJobTag(tag)
    watcher = threading.Thread(target=watch, name="headrace-loss", daemon=True)
    watcher.start()
    try:
        yield broken
    finally:
        ended.set()
        watcher.join()
        context.removeJobTag(tag)
