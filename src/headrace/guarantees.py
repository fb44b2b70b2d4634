"""Guarantees and approaches (Borealis 5.1, SEEP 6.2, Floe V): what a query promises after a loss, and how it keeps the promise.

    guarantee   precise    nothing is lost or doubled
                rollback   results leave without waiting for anything; after a loss some may come twice, none is lost
                gap        what was lost is skipped, counted and reported

    approach    checkpoint   state is made durable; what came after the last checkpoint is computed again from the source
                peer         other executors keep copies, and an instance goes on where a copy is
                active       like peer, and a step that seems to hang runs a second time where the copies are; the first to end counts
                upstream     no state is kept safe; windows are computed again from the oldest row that they depend on
                amnesia      nothing is kept safe; what is lost begins empty

The user names one, the other, both or none, beside the settings that say how often and how many. `chosen_safety` makes one whole of these,
and refuses what contradicts itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Guarantee(StrEnum):
    """What a query promises after a loss."""

    PRECISE = "precise"
    ROLLBACK = "rollback"
    GAP = "gap"


class Approach(StrEnum):
    """How a query recovers."""

    CHECKPOINT = "checkpoint"
    PEER = "peer"
    ACTIVE = "active"
    UPSTREAM = "upstream"
    AMNESIA = "amnesia"


GIVES: dict[Approach, tuple[Guarantee, ...]] = {
    Approach.CHECKPOINT: (Guarantee.PRECISE, Guarantee.ROLLBACK, Guarantee.GAP),
    Approach.PEER: (Guarantee.PRECISE, Guarantee.ROLLBACK, Guarantee.GAP),
    Approach.ACTIVE: (Guarantee.PRECISE, Guarantee.ROLLBACK),
    Approach.UPSTREAM: (Guarantee.PRECISE, Guarantee.ROLLBACK),
    Approach.AMNESIA: (Guarantee.GAP,),
}
"""The guarantees that each approach can give. The first is what it gives if the user names none."""

COPYING = (Approach.PEER, Approach.ACTIVE)
"""Approaches that need copies of state on other executors."""
PEERS = "peers"
"""The value of ``acknowledge`` with which results wait for copies."""
SECONDS_OF_COPYING = 30.0
"""How often state is made durable if peers have copies and the user does not say: only the loss of the driver needs it."""
SECONDS_NOT_WAITING = 10.0
"""How often state is made durable if results do not wait and the user does not say."""


@dataclass(frozen=True)
class Contradiction(Exception):
    """Two settings that cannot hold together: the name of one, what it would have to be, and what was found."""

    setting: str
    wanted: str
    found: str


@dataclass(frozen=True)
class Safety:
    """What a query promises after a loss, and by what means."""

    guarantee: Guarantee = Guarantee.PRECISE
    approach: Approach = Approach.CHECKPOINT
    checkpoint_s: float = 0.0
    """How often state is made durable; 0: with every version. It means nothing if the approach takes no checkpoints."""
    replicas: int = 0
    """The number of other executors that keep copies of an instance's state."""
    waits_for_peers: bool = False
    """True if results leave only when the copies are there."""

    @property
    def takes_checkpoints(self) -> bool:
        """True if state is made durable regularly."""
        return self.approach not in (Approach.UPSTREAM, Approach.AMNESIA)

    @property
    def at_home(self) -> bool:
        """True if new state stays on the executors that wrote it, at least for a while."""
        return not self.takes_checkpoints or self.checkpoint_s > 0

    @property
    def commits_first(self) -> bool:
        """True if results leave only when their version is committed."""
        return self.guarantee is Guarantee.PRECISE

    @property
    def replays(self) -> bool:
        """True if lost state is computed again from the source; False if it is skipped."""
        return self.guarantee is not Guarantee.GAP

    def lines(self) -> list[str]:
        """What it means, for people: one line each for normal operation, the loss of an executor, and the loss of the driver."""
        kept = f"{self.guarantee} by {self.approach}: {self._kept()}"
        return [kept, f"executor lost: {self._executor()}", f"driver lost: {self._driver()}"]

    def without_replay(self) -> str:
        """What it means for a source that cannot give rows again."""
        if not self.replays:
            return "rows that are lost are not read again"
        if not self.at_home:
            return "losing executors loses no row; rows of the batch in flight are lost with the driver"
        count = "an executor" if self.replicas == 1 else f"{self.replicas} executors at once"
        return f"losing {count} loses no row; rows since the last checkpoint are lost with the driver"

    def _kept(self) -> str:
        if not self.takes_checkpoints:
            kept = "state stays on the executors, and is not kept safe"
        else:
            kept = f"state is durable {f'every {self.checkpoint_s:g} s' if self.checkpoint_s else 'with every version'}"
        copies = ""
        if self.replicas:
            when = "before results leave" if self.waits_for_peers else "beside the next batch"
            copies = f", and has {self.replicas} {'copy' if self.replicas == 1 else 'copies'} on other executors, made {when}"
        twice = "; a step that seems to hang runs a second time there" if self.approach is Approach.ACTIVE else ""
        return f"{kept}{copies}{twice}; results leave {'when their version is committed' if self.commits_first else 'at once'}"

    def _executor(self) -> str:
        if not self.at_home:
            return "its instances go on elsewhere, with durable state"
        again = self._again("its state")
        return f"its instances go on where the copies are; without a copy, {again}" if self.replicas else again

    def _driver(self) -> str:
        twice = "" if self.commits_first else "; results of the last batch may come twice"
        return f"{self._again('all state')}{twice}" if self.at_home else f"a restart goes on from the last version{twice}"

    def _again(self, what: str) -> str:
        if self.approach is Approach.AMNESIA:
            return f"{what} begins empty, and the gap is counted"
        if not self.replays:
            return f"{what} goes back to the last checkpoint, and the gap is counted"
        if self.approach is Approach.UPSTREAM:
            return "open windows are computed again from the source"
        return "the versions since the last checkpoint are computed again from the source"


def chosen_safety(*, guarantee: str, recovery: str, checkpoint_s: float | None, replicas: int | None, acknowledge: str | None) -> Safety:
    """What a query promises and does, from the settings that the user has given. Empty text, and None, stand for those that were not.

    Raises Contradiction if they cannot hold together.

    >>> print(*chosen_safety(guarantee="", recovery="upstream", checkpoint_s=None, replicas=None, acknowledge=None).lines(), sep="\\n")
    precise by upstream: state stays on the executors, and is not kept safe; results leave when their version is committed
    executor lost: open windows are computed again from the source
    driver lost: open windows are computed again from the source
    """
    approach = Approach(recovery) if recovery else Approach.PEER if replicas else Approach.CHECKPOINT
    promised = Guarantee(guarantee) if guarantee else GIVES[approach][0]
    _check(promised, approach, checkpoint_s, replicas, acknowledge)
    usual_s = 0.0
    if approach in COPYING and recovery:
        usual_s = SECONDS_OF_COPYING
    elif promised is not Guarantee.PRECISE:
        usual_s = SECONDS_NOT_WAITING
    interval_s = usual_s if checkpoint_s is None else checkpoint_s
    copies = (replicas or 1) if approach in COPYING else 0
    # Copies make recovery faster, but exactness does not depend on them: what has no copy is computed again.
    waits = (approach is Approach.ACTIVE and interval_s > 0) if acknowledge is None else acknowledge == PEERS
    return Safety(promised, approach, interval_s, copies, bool(copies) and waits)


def _check(guarantee: Guarantee, approach: Approach, checkpoint_s: float | None, replicas: int | None, acknowledge: str | None) -> None:
    if guarantee not in GIVES[approach]:
        others = [each.value for each in Approach if guarantee in GIVES[each]]
        raise Contradiction("recovery", f"{' or '.join(others)}: these give the guarantee {guarantee}", repr(approach.value))
    if approach in COPYING and replicas == 0:
        raise Contradiction("replicas", f"1 or more, because the approach {approach} needs copies of state", "0")
    if approach not in COPYING and replicas:
        raise Contradiction("replicas", f"0, because the approach {approach} makes no copies of state", str(replicas))
    if approach in (Approach.UPSTREAM, Approach.AMNESIA) and checkpoint_s is not None:
        raise Contradiction("checkpointSeconds", f"no value, because the approach {approach} takes no checkpoints", f"{checkpoint_s:g}")
    if approach is Approach.ACTIVE and acknowledge not in (None, PEERS):
        why = "because the second job of the approach active needs the newest state"
        raise Contradiction("acknowledge", f"{PEERS}, {why}", repr(acknowledge))
