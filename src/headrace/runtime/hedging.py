"""Hedging, the approach *active*: a second attempt at a step runs beside one that seems to hang. The first to end counts.

    a step takes 1.5 times as long as usual, and an executor is silent    -> the step runs a second time, without these executors;
    for 0.3 s, or works for twice as long while others have nothing to do    when one of the two ends, the other is cancelled

A wrong suspicion costs work, but neither time nor results. So it may come much earlier than one that breaks a step off. The second attempt
needs executors that can read the state of the suspects' instances: peers with acknowledged copies, or all if state is durable. If it wins,
the instances live where it ran.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from pyspark import inheritable_thread_target
from pyspark.sql import SparkSession

from headrace.ids import OperatorId
from headrace.logs import logger
from headrace.runtime.loss import broken_off_on_loss
from headrace.runtime.placement import Homes, Placement
from headrace.state.routing import Routing

CANCEL_S = 0.1
"""How often the loser is cancelled, until it has ended."""
_log = logger(__name__)
_tags = itertools.count()


class Attempt(Protocol):
    """An attempt at a step."""

    def run_in_order(self) -> None: ...


A = TypeVar("A", bound=Attempt)


@dataclass
class Hedge(Generic[A]):
    """The second attempt at a step. It must be made in the thread of the batch, before the first attempt has its tag."""

    placement: Placement
    session: SparkSession
    routing: Mapping[OperatorId, Routing]
    second: Callable[[Mapping[OperatorId, Homes]], A]
    """Makes the second attempt, with these homes."""
    suspects: frozenset[str] = frozenset()
    homes: dict[OperatorId, Homes] = field(default_factory=dict)
    won: A | None = None
    """The second attempt, when it has ended well."""
    _thread: threading.Thread | None = None
    _tag: str = ""

    def __post_init__(self) -> None:
        # Spark's local properties of this thread are copied now.
        self._work = inheritable_thread_target(self.session)(self._run)

    @property
    def has_begun(self) -> bool:
        return self._thread is not None

    def begin(self, suspects: frozenset[str]) -> None:
        """Run the step a second time, without these executors. Does nothing if that cannot be, or has begun already."""
        homes = None if self.has_begun else self.placement.elsewhere(self.routing, suspects)
        if homes is None:
            return
        _log.warning("executors %s seem to hang; the step runs a second time without them", ", ".join(sorted(suspects)))
        self.suspects, self.homes, self._tag = suspects, homes, f"headrace-hedge-{next(_tags)}"
        self._thread = threading.Thread(target=self._work, name="headrace-hedge", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        context = self.placement.executors.context
        context.addJobTag(self._tag)
        try:
            with broken_off_on_loss(self.placement.executors, besides=self.suspects):
                attempt = self.second(self.homes)
                attempt.run_in_order()
                self.won = attempt
        except Exception as failed:
            # It was cancelled, or met a loss of its own. Then the first attempt counts, or the step runs again.
            _log.info("the second attempt at a step has failed: %s", failed)
        finally:
            context.removeJobTag(self._tag)

    def wait(self, seconds: float) -> bool:
        """Wait for the second attempt. True if it has won."""
        if self._thread is not None:
            self._thread.join(seconds)
        return self.won is not None

    def cancel(self) -> None:
        """End the second attempt."""
        while self._thread is not None and self._thread.is_alive():
            self.placement.executors.context.cancelJobsWithTag(self._tag)
            self._thread.join(CANCEL_S)
