"""Decommissioning with notice: an executor hands its state over before it goes, so that nothing is computed again.

    no new instances  ->  bring its instances' state to other executors, while batches go on  ->  between two batches: move the instances,
    bring what was written meanwhile, restore the copies on peers, and let Spark decommission it

Spark gives an executor no more tasks once it is decommissioned, and lets it end about a second later. State cannot be lent then. So the
notice must come here first: `query.decommission`, or ``headrace ctl decommission CHECKPOINT EXECUTOR``. If Spark decommissions an executor
by itself (SIGPWR), its instances move at once, with state from peers or from the durable store, or computed again if neither has it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from headrace.errors import MissingRunError, QueryError
from headrace.logs import logger
from headrace.runtime.elastic import LiveRouting
from headrace.runtime.placement import Placement
from headrace.runtime.safety.replicas import Replicas
from headrace.spark.executors import Executor

_log = logger(__name__)


@dataclass(frozen=True)
class Departures:
    """Lets executors of a query go in good order."""

    elastic: LiveRouting
    placement: Placement | None
    """None if the driver does all the work."""
    replicas: Replicas | None

    def decommission(self, name: str) -> tuple[str, ...]:
        """Let an executor go, or all executors on a host. Returns when it has handed its state over, with the ids of those that go."""
        placement = self.placement
        if placement is None:
            found, hint = "a local master, where the driver does all the work", "use a cluster"
            raise QueryError(where="decommission", wanted="a query on executors", found=found, hint=hint)
        live = placement.executors.live()
        going = _named(name, live, placement.trusted())
        began_s = time.monotonic()
        placement.leaving |= going
        try:
            # Most of the state moves while batches go on.
            self.elastic.rehome()
            with self.elastic.lock:
                self._hand_over(placement, going)
        except BaseException:
            placement.leaving -= going
            raise
        _log.info("executors %s have handed their state over in %.1f s", ", ".join(sorted(going)), time.monotonic() - began_s)
        return tuple(sorted(going))

    def _hand_over(self, placement: Placement, going: frozenset[str]) -> None:
        """The last part, between two batches: nothing is written meanwhile."""
        routing = self.elastic.routing
        placement.settle(routing)
        try:
            placement.ensure(routing)
        except MissingRunError as missing:
            _log.warning("state was lost before it was handed over; the next batch computes it again: %s", missing)
        if self.replicas is not None:
            self.replicas.after_version(routing)
        for each in sorted(going):
            placement.executors.decommission(each, "Headrace was asked to let it go")
        placement.left |= going


def _named(name: str, live: tuple[Executor, ...], trusted: tuple[Executor, ...]) -> frozenset[str]:
    """The executors with this id, or on this host."""
    going = frozenset(each.id for each in live if name in (each.id, each.host))
    names = ", ".join(f"{each.id} on {each.host}" for each in live) or "none"
    if not going:
        raise QueryError(where="decommission", wanted=f"an executor or a host: {names}", found=repr(name))
    if not {each.id for each in trusted} - going:
        wanted, hint = "an executor that can take over", "start another one first, or stop the query"
        raise QueryError(where="decommission", wanted=wanted, found=f"none besides {', '.join(sorted(going))}", hint=hint)
    return going
