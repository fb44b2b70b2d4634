"""A small closed loop: an operator with given costs of slots, observed and changed by a policy."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from hypothesis import strategies as st

from headrace.control.decisions import Decision, MoveSlots, Nothing, Rescale, Shed, owners_after
from headrace.control.observation import Floats, Observation, OperatorLoad, Owners, loads_of
from headrace.ids import SLOTS, OperatorId

NAME = OperatorId("sum")


def even(instances: int) -> Owners:
    return np.arange(SLOTS) * instances // SLOTS


def load(cpu: Iterable[float], owners: Owners | None = None, rows: Floats | None = None, zones: tuple[str, ...] = ()) -> OperatorLoad:
    each = np.array(list(cpu))
    return OperatorLoad(NAME, each, even(len(each)) if owners is None else owners, np.ones(SLOTS) if rows is None else rows, zones=zones)


def observed(*operators: OperatorLoad, at_s: float = 0.0) -> Observation:
    return Observation(at_s, operators)


@dataclass
class Model:
    """An instance uses the CPU that its slots cost, and no more than all of it."""

    slot_cost: Floats
    instances: int
    owners: Owners = field(init=False)
    at_s: float = 0.0
    changes: list[Decision] = field(default_factory=list)
    hidden: bool = False
    """True if an instance ever used all of its CPU, which hides how much more it needs."""

    def __post_init__(self) -> None:
        self.owners = even(self.instances)

    def loads(self) -> Floats:
        return loads_of(self.owners, self.slot_cost, self.instances)

    def observe(self, period_s: float = 5.0) -> Observation:
        self.at_s += period_s
        self.hidden |= bool(self.loads().max() > 1)
        return observed(load(self.loads().clip(max=1), self.owners, self.slot_cost * 1000), at_s=self.at_s)

    def perform(self, decisions: Iterable[Decision]) -> bool:
        """Whether anything changed. What a rescale leaves without an owner, or gives to nobody, is found here."""
        acted = False
        for decision in decisions:
            assert decision.why
            if isinstance(decision, Nothing):
                continue
            assert isinstance(decision, Rescale | MoveSlots)
            assert_moves_are_disjoint(decision)
            self.owners = owners_after(self.owners, decision.moves)
            self.instances = decision.instances if isinstance(decision, Rescale) else self.instances
            assert self.owners.min() >= 0
            assert self.owners.max() < self.instances
            self.changes.append(decision)
            acted = True
        return acted


class Loop(Model):
    """With zones, and with rows that are shed."""

    keep: np.ndarray
    zones: str = "x"

    def observe(self, period_s: float = 1.0) -> Observation:
        self.at_s += period_s
        keep = np.ones(self.instances) if not hasattr(self, "keep") else np.resize(self.keep, self.instances)
        keep[len(getattr(self, "keep", ())) :] = 1.0
        self.keep = keep
        self.hidden |= bool(self.loads().max() > 1)
        wanted = self.loads() * keep
        cpu = wanted.clip(max=1)
        queue = np.where(wanted > 1, 5000.0, 0.0)
        zones = tuple(self.zones[i % len(self.zones)] for i in range(self.instances))
        each = OperatorLoad(NAME, cpu, self.owners, self.slot_cost * 1000, rows_in_per_s=cpu * 1000, queue_rows=queue, zones=zones)
        return Observation(self.at_s, (each,))

    def perform(self, decisions: tuple[Decision, ...]) -> bool:  # type: ignore[override]
        for decision in decisions:
            if isinstance(decision, Shed):
                self.keep[decision.instance] = decision.keep
                self.changes.append(decision)
        rest = [decision for decision in decisions if not isinstance(decision, Shed)]
        return super().perform(rest) or len(rest) < len(decisions)


def assert_moves_are_disjoint(decision: Rescale | MoveSlots) -> None:
    """No slot is given to two instances."""
    times = np.zeros(SLOTS, dtype=np.int64)
    for move in decision.moves:
        for lo, hi in move.slots:
            assert 0 <= lo < hi <= SLOTS
            times[lo:hi] += 1
    assert times.max(initial=0) <= 1


@st.composite
def slot_costs(draw: st.DrawFn, total_max: float = 20.0) -> Floats:
    """Any way that work may lie on the slots: even, skewed, a few hot ones, many idle ones."""
    rng = np.random.default_rng(draw(st.integers(0, 2**31)))
    shape = draw(st.sampled_from(["even", "zipf", "normal", "hot", "sparse"]))
    work = {
        "even": np.ones(SLOTS),
        "zipf": rng.zipf(1.6, SLOTS).clip(max=2000).astype(np.float64),
        "normal": np.exp(-(((np.arange(SLOTS) - rng.uniform(0, SLOTS)) / rng.uniform(50, 1000)) ** 2)),
        "hot": np.where(rng.random(SLOTS) < 3 / SLOTS, 500.0, 1.0),
        "sparse": (rng.random(SLOTS) < 0.01) * rng.random(SLOTS) + np.eye(1, SLOTS, 7)[0],
    }[shape]
    return np.asarray(work / work.sum() * draw(st.floats(0.01, total_max)))
