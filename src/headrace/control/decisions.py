"""What policies decide. Only the runtime or the simulator performs it; every decision says why it was made.

Numbers are absolute where a decision might be performed twice or late: ``instances`` and ``total`` are what shall be, not what to add.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from headrace.control.observation import Owners
from headrace.errors import InvariantError, require
from headrace.ids import SLOTS, InstanceId, OperatorId
from headrace.state.levelling import ranges_by_owner
from headrace.state.routing import Routing
from headrace.state.slots import SlotRanges


@dataclass(frozen=True)
class Move:
    """Slots that get another owner."""

    slots: SlotRanges
    to: InstanceId


@dataclass(frozen=True, kw_only=True)
class Decision:
    why: str


@dataclass(frozen=True, kw_only=True)
class Nothing(Decision):
    """Leave it as it is."""

    operator: OperatorId | None = None


@dataclass(frozen=True, kw_only=True)
class Rescale(Decision):
    """Another number of instances. Without moves, the routing deals the slots out as it does for `rescale`.

    Instances stay numbered 0, 1, ...: new ones come after the last, and those with the highest numbers go.
    """

    operator: OperatorId
    instances: int
    moves: tuple[Move, ...] = ()

    def __post_init__(self) -> None:
        if not 1 <= self.instances <= SLOTS:
            raise InvariantError(f"an operator has 1 to {SLOTS} instances, not {self.instances}")


@dataclass(frozen=True, kw_only=True)
class ScaleOut(Rescale):
    """More instances, and what they take over."""


@dataclass(frozen=True, kw_only=True)
class ScaleIn(Rescale):
    """Fewer instances, and who takes over what the others had."""


@dataclass(frozen=True, kw_only=True)
class MoveSlots(Decision):
    """Other owners for some slots, all at once."""

    operator: OperatorId
    moves: tuple[Move, ...]


@dataclass(frozen=True, kw_only=True)
class Shed(Decision):
    """Keep only a share of an instance's rows; 1 ends it. Changes results, so it is only decided where it is allowed."""

    operator: OperatorId
    instance: InstanceId
    keep: float


@dataclass(frozen=True, kw_only=True)
class RequestExecutors(Decision):
    """So many executors shall there be in all, working, ready and starting."""

    total: int


@dataclass(frozen=True, kw_only=True)
class ReleaseExecutors(Decision):
    """Give back so many of the ready executors."""

    count: int


def moves_between(before: Owners, after: Owners) -> tuple[Move, ...]:
    """What leads from one table of owners to another.

    >>> before = np.zeros(SLOTS, dtype=np.int64)
    >>> after = before.copy()
    >>> after[[3, 4, 9]] = 1
    >>> moves_between(before, after)
    (Move(slots=((3, 5), (9, 10)), to=1),)
    """
    changed = np.flatnonzero(before != after)
    taken = ranges_by_owner(after, int(after.max()) + 1, changed)
    return tuple(Move(ranges, InstanceId(taker)) for taker, ranges in enumerate(taken) if ranges)


def moved(owners: Owners, moves: Iterable[Move]) -> Owners:
    """The owners after these moves.

    >>> int(moved(np.zeros(SLOTS, dtype=np.int64), [Move(((0, 10),), InstanceId(1))]).sum())
    10
    """
    after = owners.copy()
    for move in moves:
        for lo, hi in move.slots:
            after[lo:hi] = move.to
    return after


def routed(routing: Routing, decision: Rescale | MoveSlots) -> Routing:
    """The routing that a decision leads to.

    >>> grown = ScaleOut(operator=OperatorId("sum"), instances=2, moves=(Move(((0, 10),), InstanceId(1)),), why="busy")
    >>> routed(Routing.even(1), grown).ranges
    (((10, 4096),), ((0, 10),))
    """
    instances = decision.instances if isinstance(decision, Rescale) else routing.instances
    if not decision.moves:
        return routing.rescaled(instances)
    owners = moved(routing.table(), decision.moves)
    require(int(owners.max()) < instances, f"moves go to instances 0 to {instances - 1}, and none that goes keeps slots")
    return Routing(ranges_by_owner(owners, instances), routing.epoch + 1)
