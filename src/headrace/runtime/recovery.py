"""Recovery inside a batch: if an executor is lost or hangs, the step's jobs are cancelled and run again at once on the others.

    watch the executors while the jobs run
      one is gone                      -> cancel the jobs, give its instances new homes, run the step again
      the step takes far too long, and -> the same, without the executors that still work on it
      only some executors still work      (after the batch, those that still hold on to their tasks are killed and replaced)

Spark would run lost tasks again by itself, but it waits for shuffle files that never come back, and it notices a hanging executor only
after minutes. A step that runs again computes everything anew. Nothing that an earlier attempt wrote counts, because no manifest names it.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from pyspark.errors import PySparkException

from headrace.ids import OperatorId
from headrace.logs import logger
from headrace.runtime.placement import Placement
from headrace.spark.executors import Executors
from headrace.spark.gateway import GONE
from headrace.state.routing import Routing

LOOK_S = 0.1
"""How often executors are looked at while jobs run."""
ATTEMPTS_MAX = 4
"""How often a step is tried before its failure ends the batch; Spark tries a task as often."""
STEPS_REMEMBERED = 20
PATIENCE = 5.0
"""A step that takes this many times as long as the median of the last ones may have met a hanging executor."""
PATIENCE_S_MIN = 2.0
"""Steps are not suspected before this time, because a garbage collection or a busy machine can delay them."""

_log = logger(__name__)
_tags = itertools.count()


@dataclass(frozen=True)
class Interruption:
    """An attempt at a step that was broken off."""

    executors: tuple[str, ...]
    hung: bool
    """True if they did not answer; False if they were gone."""
    after_ms: float
    """How long the attempt had run."""

    def to_json(self) -> dict[str, Any]:
        return {"executors": list(self.executors), "hung": self.hung, "afterMs": round(self.after_ms, 1)}


@dataclass
class Watch:
    """Looks at the executors while one attempt at a step runs, and cancels its jobs if it cannot end."""

    executors: Executors
    tag: str
    patience_s: float | None
    """After how long executors that still work are suspected; None if that is not known."""
    before: frozenset[str]
    """Executors that were there when the attempt began."""
    proven: frozenset[str] = frozenset()
    """Executors that were there in an earlier step. One that has just started may be slow, and is not suspected."""
    began_s: float = field(default_factory=time.monotonic)
    interruption: Interruption | None = None
    _ended: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        """Look until the attempt has ended, or its jobs were cancelled. Runs in a thread of its own."""
        try:
            while not self._ended.wait(LOOK_S):
                if self.look() is not None:
                    self.executors.context.cancelJobsWithTag(self.tag)
                    return
        except (PySparkException, *GONE) as failed:
            # Spark may be shutting down. Then the batch itself fails, and says why.
            _log.info("executors cannot be watched: %s", failed)

    def end(self) -> None:
        self._ended.set()

    def look(self) -> Interruption | None:
        """Why the attempt cannot end, or None."""
        if self.interruption is None:
            took_s = time.monotonic() - self.began_s
            lost = self.before - {each.id for each in self.executors.live()}
            hung = self._suspects() if self.patience_s is not None and took_s > self.patience_s else frozenset()
            if lost or hung:
                self.interruption = Interruption(tuple(sorted(lost or hung)), not lost, took_s * 1000)
        return self.interruption

    def _suspects(self) -> frozenset[str]:
        """Executors that still work while others have nothing to do. If all work, the step is large; if none does, the driver is busy."""
        working = frozenset(each for each, tasks in self.executors.running_tasks().items() if tasks) & self.before
        return working & self.proven if len(working) < len(self.before) else frozenset()


@dataclass
class Recovery:
    """Watches the steps of a query that runs on executors."""

    placement: Placement
    steps_s: dict[bool, deque[float]] = field(default_factory=dict)
    """How long the last undisturbed steps took: those with the batch's rows, and flushes."""
    interruptions: list[Interruption] = field(default_factory=list)
    """Those of the current batch."""
    proven: frozenset[str] = frozenset()
    """Executors that were there in the last undisturbed step."""
    replaced: set[str] = field(default_factory=set)
    """Executors that were killed here. That they go is no loss."""

    @property
    def executors(self) -> Executors:
        return self.placement.executors

    @contextmanager
    def watching(self, is_flush: bool) -> Iterator[Watch]:
        """Inside, the Spark jobs of this thread, and of threads that inherit from it, are watched."""
        context, lately = self.executors.context, self.steps_s.setdefault(is_flush, deque(maxlen=STEPS_REMEMBERED))
        before = frozenset(each.id for each in self.executors.live()) - self.replaced - self.placement.released
        watch = Watch(self.executors, f"headrace-step-{next(_tags)}", self._patience_s(lately), before, self.proven)
        context.addJobTag(watch.tag)
        watcher = threading.Thread(target=watch.run, name="headrace-watch", daemon=True)
        watcher.start()
        try:
            yield watch
        finally:
            watch.end()
            watcher.join()
            context.removeJobTag(watch.tag)
        if watch.interruption is None:
            lately.append(time.monotonic() - watch.began_s)
            self.proven = before

    def _patience_s(self, lately: Collection[float]) -> float | None:
        """How long a step may take. None for the first one, and after an interruption: then the others have more to do."""
        return max(PATIENCE_S_MIN, PATIENCE * median(lately)) if lately and not self.interruptions else None

    def begin_again(self, interruption: Interruption, routing: Mapping[OperatorId, Routing]) -> None:
        """Give the instances of a step homes with which it can run again."""
        names = ", ".join(interruption.executors)
        what = "do not answer" if interruption.hung else "were lost"
        _log.warning("executors %s: %s; the step runs again after %.0f ms", what, names, interruption.after_ms)
        self.interruptions.append(interruption)
        if interruption.hung:
            self.placement.avoided |= set(interruption.executors)
        self.placement.settle(routing)

    def end_batch(self) -> tuple[Interruption, ...]:
        """Replace suspects that still hold on to their tasks, and trust the others again. Returns the batch's interruptions."""
        avoided, found = self.placement.avoided, tuple(self.interruptions)
        self.interruptions.clear()
        if avoided:
            for each in _hanging(avoided - self.replaced, self.executors.running_tasks()):
                _log.warning("executor %s holds on to tasks that were cancelled; it is killed and replaced", each)
                self.executors.replace(each)
                self.replaced.add(each)
            # One that was killed may still be listed for a while.
            avoided.intersection_update(self.replaced)
        return found


def _hanging(avoided: Collection[str], running: Mapping[str, int]) -> list[str]:
    """Suspects with tasks that have not ended.

    >>> _hanging({"1", "2", "3"}, {"1": 0, "2": 1})
    ['2']
    """
    return sorted(each for each in avoided if running.get(each))
