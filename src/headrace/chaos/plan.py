"""The faults of a seed: a pure function. Nothing in it depends on time or on the query, so a seed always gives the same faults."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from random import Random
from typing import Any

from headrace.errors import QueryError
from headrace.runtime.failpoints import DRIVER_POINTS

KINDS = {
    "kill-executor": "an executor is killed in the middle of a batch",
    "kill-idle-executor": "an executor is killed between two batches",
    "hang-executor": "an executor hangs (SIGSTOP) in the middle of a batch or before one; it may come back",
    "kill-two-executors": "two executors are killed at once, in the middle of a batch",
    "damage-copies": "bytes change in working copies of state on the disk of an executor",
    "kill-driver": "the driver is killed at a random moment, and with it all executors; it is started again",
    "kill-driver-at-point": "the driver is killed at a named point of a batch, and started again",
    "kill-driver-and-executor": "an executor is killed, and the driver while that is being repaired",
    "kill-workers": "Python workers are killed in the middle of a batch",
    "store-away": "the durable store cannot be reached for some seconds; the query is started again if it has failed",
    "change-routing": "only changes: rescale, move, rebalance or spread, while batches run",
}
NEED_EXECUTORS = {"kill-executor": 1, "kill-idle-executor": 1, "hang-executor": 1, "damage-copies": 1, "kill-driver-and-executor": 1} | {
    "kill-two-executors": 3
}
"""How many executors there must be for a kind of fault. Two of two would leave none to go on with."""
OFTEN = ("kill-executor", "kill-idle-executor", "hang-executor", "kill-two-executors")
"""Kinds that come three times as often on a cluster: they need no new start of Spark, and are what copies of state are for."""
SELDOM = ("kill-driver", "kill-driver-at-point", "kill-driver-and-executor", "store-away")
"""Kinds that come once, because they take longest; all others come twice."""
FILES_FIRST = 3
"""Batches before the first fault on a checkpoint."""
FAULTS_PER_CHECKPOINT = 100
"""After so many faults the query begins a new checkpoint, so that a comparison does not take longer and longer."""
DELAY_S_MAX = 1.5
CHANGES_MAX = 2


@dataclass(frozen=True)
class Fault:
    """One fault, with all that was drawn for it. Choices among things that only exist later are fractions between 0 and 1."""

    number: int
    kind: str
    files: int
    """Files that come right before the fault. One more comes right after it."""
    delay_s: float
    """Seconds from these files to the fault, if it hits a batch that takes long; less if batches are short."""
    victim: float
    """Which of the executors, or of what else there is."""
    idle: bool
    """True if a hanging executor begins to hang between two batches."""
    away_s: float
    """How long the store is away, or how long an executor hangs that comes back."""
    point: str
    """The fail point of the driver."""
    ahead: int
    """Batches until that point, 1 or 2; or how many workers are killed."""
    changes: tuple[int, ...]
    """Seeds of changes of the routing, made while the files are processed."""

    @property
    def batches(self) -> int:
        """Files that the fault uses up."""
        return self.files + 1

    @property
    def comes_back(self) -> bool:
        """True if a hanging executor goes on after ``away_s``."""
        return self.ahead == 1

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def possible_kinds(executors: int, wanted: Sequence[str] = ()) -> tuple[str, ...]:
    """The kinds of fault that a cluster of so many executors allows, or those of ``wanted``.

    >>> possible_kinds(0)
    ('kill-driver', 'kill-driver-at-point', 'kill-workers', 'store-away', 'change-routing')
    """
    unknown = [kind for kind in wanted if kind not in KINDS]
    if unknown:
        raise QueryError(where="--kind", wanted=f"one of {', '.join(KINDS)}", found=unknown[0])
    chosen = tuple(kind for kind in KINDS if (not wanted or kind in wanted) and NEED_EXECUTORS.get(kind, 0) <= executors)
    if not chosen:
        hint = "give a master with executors, such as --master 'local-cluster[3,1,1024]'"
        raise QueryError(where="--kind", wanted="a kind of fault that the master allows", found=", ".join(wanted), hint=hint)
    return chosen


def plan(seed: int, faults: int, kinds: Sequence[str]) -> tuple[Fault, ...]:
    """The faults of a seed, in order. Kinds are dealt from a deck, in which each comes once to three times before it is shuffled again.

    A longer plan begins with the shorter one of the same seed.
    """
    deck = [*kinds, *(kind for kind in kinds if kind not in SELDOM), *(kind for kind in kinds if kind in OFTEN)]
    found = []
    for number in range(faults):
        round_, at = divmod(number, len(deck))
        kind = Random(f"deck/{seed}/{round_}").sample(deck, len(deck))[at]
        found.append(_fault(number, kind, Random(f"fault/{seed}/{number}")))
    return tuple(found)


def _fault(number: int, kind: str, random: Random) -> Fault:
    # All values are drawn for every kind and in one order, so that a new kind does not change the others.
    files, delay_s, victim, idle = random.randint(1, 2), random.uniform(0, DELAY_S_MAX), random.random(), random.random() < 0.3
    away_s, point, ahead = random.uniform(1, 6), random.choice(DRIVER_POINTS), random.randint(1, 2)
    changes = tuple(random.randrange(2**31) for _ in range(CHANGES_MAX))
    count = random.choice((0, 0, 1, 1, 2))
    if kind == "change-routing":
        count = CHANGES_MAX
    if kind == "kill-driver-at-point":
        files = ahead
    return Fault(number, kind, files, round(delay_s, 3), round(victim, 3), idle, round(away_s, 2), point, ahead, changes[:count])


def batches_of(faults: Sequence[Fault]) -> int:
    """How many batches a campaign needs."""
    checkpoints = 1 + sum(begins_checkpoint(fault) for fault in faults)
    return FILES_FIRST * checkpoints + sum(fault.batches for fault in faults)


def begins_checkpoint(fault: Fault) -> bool:
    """True if the query begins a new checkpoint before a fault, although nothing has failed."""
    return fault.number > 0 and fault.number % FAULTS_PER_CHECKPOINT == 0
