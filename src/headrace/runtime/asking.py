"""Asks executors for a sign of life, each in a thread of its own, because one that hangs answers only after minutes or never."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from pyspark.errors import PySparkException

from headrace.logs import logger, suppressed
from headrace.spark.gateway import GONE

_log = logger(__name__)


@dataclass
class Questions:
    """The questions that executors were asked. Several threads use it."""

    answers: Callable[[str], bool]
    """Asks one executor. Blocks until it answers; False if it cannot be reached."""
    clock: Callable[[], float] = time.monotonic
    last_s: float = float("-inf")
    """When executors were asked last."""
    _open: dict[str, float] = field(default_factory=dict)
    """By executor that has not answered: when it was asked first."""
    _asking: dict[str, threading.Thread] = field(default_factory=dict)
    _answered: dict[str, float] = field(default_factory=dict)
    """By executor: when it answered last."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def ask(self, executors: Iterable[str]) -> None:
        """Ask executors, except those that have not answered the last question."""
        with self._lock:
            self.last_s = self.clock()
            for each in executors:
                if each in self._asking and self._asking[each].is_alive():
                    continue
                self._open.setdefault(each, self.last_s)
                self._asking[each] = threading.Thread(target=self._ask, args=(each,), name=f"headrace-ask-{each}", daemon=True)
                self._asking[each].start()

    def _ask(self, executor: str) -> None:
        # Spark may be shutting down. Then the batch itself fails, and says why.
        with suppressed(_log, f"executor {executor} cannot be asked", PySparkException, *GONE):
            if self.answers(executor):
                self._answered[executor] = self.clock()
                self._open.pop(executor, None)

    def silent_s(self) -> dict[str, float]:
        """The executors that have not answered, and for how long."""
        now_s = self.clock()
        return {each: now_s - asked_s for each, asked_s in self._open.copy().items()}

    def heard_s(self) -> dict[str, float]:
        """The executors that have ever answered, and how long ago they did so last."""
        now_s = self.clock()
        return {each: now_s - answered_s for each, answered_s in self._answered.copy().items()}

    def begin_anew(self) -> None:
        """Count the silence of executors from now on: the driver was paused, and answers may have waited in it."""
        now_s = self.clock()
        for each in self._open.copy():
            if each in self._open:
                self._open[each] = now_s

    def forget(self, executors: Iterable[str]) -> None:
        """Forget executors that are gone."""
        for each in executors:
            self._open.pop(each, None)
            self._asking.pop(each, None)
            self._answered.pop(each, None)
