"""Parallel recovery in a running query: lost instances are split over the executors that can read their state (SEEP 4.2, Fig. 13).

The routing may only change between two attempts at a version. So the whole version begins again with the new routing, which its manifest
and its record in the journal contain. Parts are joined again when as many executors are there as before, and a batch has been calm.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace

from headrace.control.parallel import Load, heirs, joined, split
from headrace.ids import InstanceId, OperatorId
from headrace.logs import logger
from headrace.runtime.elastic import LiveRouting, RoutingChange
from headrace.runtime.placement import Placement
from headrace.spark.executors import Executor
from headrace.state.routing import Routing

PROTOCOL = "parallel recovery"
_log = logger(__name__)


class ReroutedError(Exception):
    """The routing has changed because executors were lost. The version begins again."""


@dataclass(frozen=True)
class Split:
    """An operator whose lost instances are split."""

    before: Routing
    after: Routing
    executors: int
    """How many executors there were before the loss."""


@dataclass
class ParallelRecovery:
    """Splits the instances of lost executors, and joins them later. Splits are made in the batch's thread, under the batch lock."""

    elastic: LiveRouting
    placement: Placement
    parts_max: int
    splits: dict[OperatorId, Split] = field(default_factory=dict)

    def split(self, lost: Collection[str], executors: int) -> bool:
        """Split the instances of lost executors, of which there were this many before. False if that does not pay."""
        if self.parts_max < 2:
            return False
        live = [each for each in self.placement.trusted() if each.id not in lost]
        changed = [op for op, routing in self.elastic.routing.items() if self._split(op, routing, lost, live, executors)]
        return bool(changed)

    def missing(self) -> frozenset[str]:
        """Executors that are homes, but are gone or suspected to hang."""
        return frozenset(home.id for each in self.placement.homes.values() for home in each) - self._there()

    def split_missing(self) -> bool:
        """Split the instances whose executors were lost while no step ran. Called between batches, under the batch lock."""
        lost = self.missing()
        return bool(lost) and self.split(lost, len(self._there() | lost))

    def _there(self) -> frozenset[str]:
        return frozenset(each.id for each in self.placement.executors.live()) - self.placement.avoided

    def instances(self) -> list[int]:
        """The number of instances of each operator, as if none were split. Parts need no executors of their own."""
        routing, splits = self.elastic.routing, self.splits.copy()
        return [splits[op].before.instances if op in splits else each.instances for op, each in routing.items()]

    def _split(self, op: OperatorId, before: Routing, lost: Collection[str], live: list[Executor], executors: int) -> bool:
        homes = self.placement.homes.get(op, ())
        if before.recreations or before.spread or len(homes) != before.instances or not {home.id for home in homes} & set(lost):
            return False
        by_id, shares = {each.id: each for each in live}, self.placement.shares(op, before)
        loads = {each.id: Load((), each.cores) for each in live}
        for home in homes:
            if home.id in loads:
                loads[home.id] = loads[home.id].plus(1.0)
        routing, found = before, list(homes)
        for at, home in enumerate(homes):
            if home.id in by_id:
                continue
            able = [each.id for each in live if self.placement.can_read(each, shares[at])]
            chosen = heirs(loads, able, self.parts_max)
            if not chosen:
                # Nobody has all of its state. Then one heir gets what is missing from others, or the state is computed again.
                return False
            routing, before_count = split(routing, InstanceId(at), len(chosen), self.elastic.work.slots.get(op)), routing.instances
            chosen = chosen[: routing.instances - before_count + 1]
            found[at] = by_id[chosen[0]]
            found += [by_id[each] for each in chosen[1:]]
            for each in chosen:
                loads[each] = loads[each].plus(1.0 / len(chosen))
        if routing.instances == before.instances:
            return False
        self._reroute(op, before, replace(routing, epoch=before.next_epoch), tuple(found), executors)
        return True

    def _reroute(self, op: OperatorId, before: Routing, after: Routing, homes: tuple[Executor, ...], executors: int) -> None:
        self.elastic.routing[op] = after
        self.placement.homes[op] = homes
        earlier = self.splits.get(op)
        is_further = earlier is not None and earlier.after is before
        original, count = (earlier.before, earlier.executors) if earlier is not None and is_further else (before, executors)
        self.splits[op] = Split(original, after, count)
        self._report(op, before, after, "executors were lost; their slots are split over the others")

    def _report(self, op: OperatorId, before: Routing, after: Routing, why: str) -> None:
        counts = before.instances, after.instances, after.moved_from(before)
        _log.warning("%s: %d -> %d instances", why, before.instances, after.instances, operator=op)
        self.elastic.news.append(RoutingChange(op, after.epoch, *counts, PROTOCOL, why, 0.0))

    def can_join(self, executors: int) -> bool:
        """True if there are splits, and as many executors as before."""
        # Somebody else may have changed the routing meanwhile. Then it stays as it is.
        for op, each in list(self.splits.items()):
            if self.elastic.routing[op] is not each.after:
                del self.splits[op]
        return any(executors >= each.executors for each in self.splits.values())

    def join(self, executors: int) -> None:
        """Join split instances again, between two batches. Their state is brought to its homes first."""
        for op, each in list(self.splits.items()):
            if executors >= each.executors:
                self.elastic.perform(
                    op,
                    "other executors have come; split instances are joined",
                    lambda now, was=each: joined(now, was.before) if now is was.after else now,  # type: ignore[misc]
                )
                self.splits.pop(op, None)
