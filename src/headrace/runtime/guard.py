"""Finds executors that hang, whatever the query does: it runs a batch, delivers, ships a checkpoint, or moves state.

    any work of the query takes longer than 1 s   -> all executors are asked for a sign of life, every 2 s
    one is silent for 5 s, although others answer -> it is killed and replaced, and Spark runs its lost tasks again

Nothing is broken off here, so it also covers jobs of sinks and of users' functions. Those who run jobs of Headrace's own learn of the loss
like of any other. In a step, `Watch` (`runtime/recovery.py`) is sooner: it runs the step again elsewhere, and kills later. Spark alone
notices an executor that hangs after two minutes.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from pyspark.errors import PySparkException

from headrace.control import suspicion
from headrace.logs import log_fields, logger
from headrace.runtime.asking import Questions
from headrace.spark.executors import Executors
from headrace.spark.gateway import GONE

LOOK_S = 0.25
"""How often the guard looks whether work takes long."""
ASK_AFTER_S = 1.0
ASK_EVERY_S = 2.0
PAUSE_S = 2.0
"""If a look comes this late, the driver itself was paused, and the answers may have waited in it."""
_log = logger(__name__)


@dataclass(frozen=True)
class Killing:
    """An executor that was killed because it did not answer."""

    executor: str
    during: str
    """What the query was doing."""
    after_s: float
    """How long that had taken."""


@dataclass
class Guard:
    """Watches the executors while a query works, in a thread of its own."""

    query: str
    executors: Executors
    answer_s: float = suspicion.SILENT_S
    """How long an executor may be silent. Raised if the steps of the query take long."""
    proven: frozenset[str] = frozenset()
    """Executors that have worked in a step. Others must have answered once before they are killed."""
    replaced: set[str] = field(default_factory=set)
    """Executors that were killed here, or by the watch of a step."""
    _works: dict[int, tuple[str, float]] = field(default_factory=dict)
    """What the query is doing, and since when."""
    _numbers: Iterator[int] = field(default_factory=itertools.count)
    _killings: list[Killing] = field(default_factory=list)
    _looked_s: float = float("-inf")
    _ended: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.questions = Questions(self.executors.answers)

    def start(self) -> None:
        threading.Thread(target=self._run, name="headrace-guard", daemon=True).start()

    def stop(self) -> None:
        self._ended.set()

    @contextmanager
    def working(self, what: str) -> Iterator[None]:
        """Inside, the query works on executors. ``what`` is for messages."""
        number = next(self._numbers)
        self._works[number] = what, time.monotonic()
        try:
            yield
        finally:
            self._works.pop(number, None)

    def drain_killings(self) -> list[Killing]:
        """The executors that were killed here since the last call."""
        with self._lock:
            found, self._killings = self._killings, []
        return found

    def replace(self, executors: Iterable[str]) -> None:
        """Kill executors, and let Spark request others."""
        with self._lock:
            for each in sorted(set(executors) - self.replaced):
                _log.warning("executor %s does not answer, or holds on to tasks that were cancelled; it is killed and replaced", each)
                self.executors.replace(each)
                self.replaced.add(each)
                self.questions.forget([each])

    def _run(self) -> None:
        logged = ""
        with log_fields(query=self.query):
            while not self._ended.wait(LOOK_S):
                try:
                    self.look()
                    logged = ""
                except (PySparkException, *GONE) as failed:
                    # Spark may be shutting down. Then the query itself reports why.
                    text = f"{type(failed).__name__}: {failed}"
                    if text != logged:
                        _log.info("executors cannot be watched; trying again: %s", text)
                    logged = text

    def look(self) -> None:
        """Ask executors if the query has worked for long, and kill those that have been silent for too long."""
        now_s = time.monotonic()
        if now_s - self._looked_s > PAUSE_S:
            self.questions.begin_anew()
        self._looked_s = now_s
        works = list(self._works.copy().values())
        if not works:
            return
        what, began_s = min(works, key=lambda work: work[1])
        took_s = now_s - began_s
        if took_s < ASK_AFTER_S:
            return
        live = frozenset(each.id for each in self.executors.live()) - self.replaced
        heard_s = self.questions.heard_s()
        # Only the silence during this work counts.
        silent_s = {each: min(waited_s, took_s) for each, waited_s in self.questions.silent_s().items()}
        hanging = suspicion.unresponsive(live, self.proven | heard_s.keys(), silent_s, heard_s, self.answer_s)
        for each in sorted(hanging):
            _log.warning("executor %s has been silent for %.1f s, %.1f s after the begin of: %s", each, silent_s[each], took_s, what)
        if hanging:
            with self._lock:
                self._killings += [Killing(each, what, took_s) for each in sorted(hanging)]
            self.replace(hanging)
        if now_s - self.questions.last_s > ASK_EVERY_S:
            self.questions.ask(live - hanging)
