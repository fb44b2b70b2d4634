"""Watches a query's executors: lets instances move to new ones, keeps the pool filled, and starts the guard (``guard.py``)."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, field

from pyspark.errors import PySparkException

from headrace.errors import HeadraceError
from headrace.logs import logger, suppressed
from headrace.runtime.elastic import LiveRouting
from headrace.runtime.placement import Placement
from headrace.runtime.recovery import Recovery
from headrace.spark.executors import Executor
from headrace.spark.gateway import GONE

PERIOD_S = 0.5
_log = logger(__name__)


@dataclass
class Caretaker:
    """Watches the executors for one query, in a thread of its own."""

    query: str
    elastic: LiveRouting
    placement: Placement
    recovery: Recovery
    seen: tuple[Executor, ...] = ()
    ended: threading.Event = field(default_factory=threading.Event)

    def start(self) -> None:
        self.placement.guard.start()
        threading.Thread(target=self._run, name="headrace-caretaker", daemon=True).start()

    def stop(self) -> None:
        if self.ended.is_set():
            return
        self.ended.set()
        self.placement.guard.stop()
        if self.placement.pool is not None:
            with suppressed(_log, "executors were not given back", PySparkException, *GONE, level=logging.INFO, query=self.query):
                self.placement.pool.leave()

    def _run(self) -> None:
        logged = ""
        while not self.ended.wait(PERIOD_S):
            try:
                self.look()
                logged = ""
            except (PySparkException, *GONE, HeadraceError) as failed:
                # Spark may be shutting down. In that case the query itself reports why.
                text = f"{type(failed).__name__}: {failed}"
                if text != logged:
                    _log.warning("executors cannot be watched; trying again: %s", text, exc_info=True, query=self.query)
                logged = text

    def look(self) -> None:
        """Choose homes again if executors have come or gone, and tell the pool what the query needs."""
        self.recovery.tend()
        live = self.placement.trusted()
        # An interrupted batch gives instances homes by itself. Moving state beside it would only keep it waiting.
        if not self.recovery.interruptions:
            self._arrange(live)
        pool = self.placement.pool
        if pool is not None and pool.tend(*self.need(live)):
            with self.elastic.lock:
                pool.tend(*self.need(live), between_batches=True)

    def _arrange(self, live: tuple[Executor, ...]) -> None:
        """Give instances homes on the executors that there are now, and join those that were split."""
        parallel = self.recovery.parallel
        if parallel.can_join(len(live)):
            # Joining gives instances homes, too. Before that, one batch must have been calm.
            if self.recovery.calm:
                parallel.join(len(live))
                self.seen = ()
        elif live != self.seen:
            _log.info("live executors: %s", ", ".join(each.id for each in live) or "none", query=self.query)
            self.seen = live
            if not self._split_missing():
                self.elastic.rehome()

    def _split_missing(self) -> bool:
        """Split the instances of executors that went while no batch ran; False if there are none, or that does not pay."""
        if not self.recovery.parallel.missing():
            return False
        with self.elastic.lock:
            return self.recovery.parallel.split_missing()

    def need(self, live: tuple[Executor, ...]) -> tuple[int, frozenset[str]]:
        """What this query needs of the pool: the number of executors, and those that are homes now."""
        executors = self.placement.executors_for(self.recovery.parallel.instances(), live)
        return executors, frozenset(home.id for homes in self.placement.homes.values() for home in homes)
