"""Decisions of policies. Only the runtime or the simulator performs them. Every decision has its reason.

Numbers are absolute where a decision might be performed late or twice: ``instances`` and ``total`` are targets, not differences.
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
    """Slots, and the instance that will own them."""

    slots: SlotRanges
    to: InstanceId


@dataclass(frozen=True, kw_only=True)
class Decision:
    """Base of all decisions."""

    why: str
    """The reason, as one sentence for users."""


@dataclass(frozen=True, kw_only=True)
class Nothing(Decision):
    """Change nothing."""

    operator: OperatorId | None = None
    """None if the decision is about the whole query."""


@dataclass(frozen=True, kw_only=True)
class Rescale(Decision):
    """Change the number of instances. Without moves, slots are assigned as for ``query.rescale``.

    Instances stay numbered 0, 1, ...: new ones come after the last, and those with the highest numbers are removed.
    """

    operator: OperatorId
    instances: int
    moves: tuple[Move, ...] = ()

    def __post_init__(self) -> None:
        if not 1 <= self.instances <= SLOTS:
            raise InvariantError(f"an operator has 1 to {SLOTS} instances, not {self.instances}")


@dataclass(frozen=True, kw_only=True)
class ScaleOut(Rescale):
    """Add instances, and give them slots."""


@dataclass(frozen=True, kw_only=True)
class ScaleIn(Rescale):
    """Remove instances, and give their slots to the others."""


@dataclass(frozen=True, kw_only=True)
class MoveSlots(Decision):
    """Give some slots to other owners, all at once."""

    operator: OperatorId
    moves: tuple[Move, ...]


@dataclass(frozen=True, kw_only=True)
class Shed(Decision):
    """Drop rows of an instance. This changes results, so policies decide it only where the user allows it."""

    operator: OperatorId
    instance: InstanceId
    keep: float
    """The share of rows to keep; 1 ends the shedding."""


@dataclass(frozen=True, kw_only=True)
class RequestExecutors(Decision):
    """Request executors."""

    total: int
    """How many there should be in all: working, ready and starting."""


@dataclass(frozen=True, kw_only=True)
class ReleaseExecutors(Decision):
    """Release ready executors."""

    count: int
    """How many to release."""


def moves_between(before: Owners, after: Owners) -> tuple[Move, ...]:
    """The moves that turn one table of owners into another.

    >>> before = np.zeros(SLOTS, dtype=np.int64)
    >>> after = before.copy()
    >>> after[[3, 4, 9]] = 1
    >>> moves_between(before, after)
    (Move(slots=((3, 5), (9, 10)), to=1),)
    """
    changed = np.flatnonzero(before != after)
    taken = ranges_by_owner(after, int(after.max()) + 1, changed)
    return tuple(Move(ranges, InstanceId(taker)) for taker, ranges in enumerate(taken) if ranges)


def owners_after(owners: Owners, moves: Iterable[Move]) -> Owners:
    """The owners after these moves.

    >>> int(owners_after(np.zeros(SLOTS, dtype=np.int64), [Move(((0, 10),), InstanceId(1))]).sum())
    10
    """
    after = owners.copy()
    for move in moves:
        for lo, hi in move.slots:
            after[lo:hi] = move.to
    return after


def routed(routing: Routing, decision: Rescale | MoveSlots) -> Routing:
    """The routing after a decision.

    >>> grown = ScaleOut(operator=OperatorId("sum"), instances=2, moves=(Move(((0, 10),), InstanceId(1)),), why="busy")
    >>> routed(Routing.even(1), grown).ranges
    (((10, 4096),), ((0, 10),))
    """
    instances = decision.instances if isinstance(decision, Rescale) else routing.instances
    if not decision.moves:
        return routing.rescaled(instances)
    owners = owners_after(routing.table(), decision.moves)
    require(int(owners.max()) < instances, f"after the moves all slots belong to instances 0 to {instances - 1}")
    return Routing(ranges_by_owner(owners, instances), routing.next_epoch)
