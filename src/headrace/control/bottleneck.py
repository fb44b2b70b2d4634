"""SEEP's bottleneck detector (5.1): what was above delta in k consecutive reports, one every r seconds, is split.

The reports are the CPU utilisation of instances. An instance's slots are cut into contiguous parts of equal load (SEEP's key intervals);
the first stays, each other one gets a new instance.
The detector only scales out, as in the paper: give it together with a policy that scales in, where that is wanted.

Where this departs from the paper:
- How many parts one trigger makes is not said there: here ceil(utilisation / delta), at least 2.
- Reports closer than half of r to the last one are not counted, so that a faster reporter does not make the detector nervous.
- The counts of all instances of an operator start again after one of them was split: their last reports show the old routing.
- A slot is never cut. An instance where one slot makes nearly all the load is left alone, since a split would buy a machine for nothing.
  Splits lower the load of the instance, so under a steady load there is an end to them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from headrace.control.checks import between
from headrace.control.decisions import Decision, Nothing, ScaleOut, moves_between
from headrace.control.observation import Flags, Observation, OperatorLoad, Owners
from headrace.ids import SLOTS, OperatorId
from headrace.state.levelling import running, with_idle


@dataclass(frozen=True)
class BottleneckConfig:
    period_s: float = 5.0
    """r."""
    reports: int = 2
    """k."""
    threshold: float = 0.7
    """delta; 0.5 to 0.7 is the best trade between machines and latency (Fig. 9)."""
    hot_slot_share: float = 0.9
    """An instance is not split where one slot makes more of its load than this: it would stay at nine tenths of what it was."""
    instances_max: int = SLOTS

    def __post_init__(self) -> None:
        where = "bottleneck detector"
        between(where, "period_s", self.period_s, 0)
        between(where, "reports", self.reports, 1)
        between(where, "threshold", self.threshold, 0.01, 0.99)
        between(where, "hot_slot_share", self.hot_slot_share, 0.5, 1)
        between(where, "instances_max", self.instances_max, 1, SLOTS)


@dataclass(frozen=True)
class BottleneckMemory:
    """Per operator and instance: how many reports in a row were above the threshold."""

    counts: Mapping[OperatorId, tuple[int, ...]] = field(default_factory=dict)
    counted_at_s: float | None = None


def decide(observation: Observation, config: BottleneckConfig, memory: BottleneckMemory) -> tuple[tuple[Decision, ...], BottleneckMemory]:
    """Split what was too busy for long enough.

    >>> busy = OperatorLoad(OperatorId("map"), np.array([0.8, 0.4]), np.arange(SLOTS) * 2 // SLOTS, np.ones(SLOTS))
    >>> decisions, memory = decide(Observation(0.0, (busy,)), BottleneckConfig(), BottleneckMemory())
    >>> decisions[0].why
    'no instance was above 0.7 in 2 reports in a row'
    >>> (split,), memory = decide(Observation(5.0, (busy,)), BottleneckConfig(), memory)
    >>> split.instances, split.moves, split.why
    (3, (Move(slots=((1024, 2048),), to=2),), 'CPU above 0.7 in 2 reports in a row: instance 0 (0.80) becomes 2')
    """
    last = memory.counted_at_s
    if last is not None and observation.at_s - last < config.period_s / 2:
        return (Nothing(why=f"only {observation.at_s - last:g} s since the last report; one every {config.period_s:g} s counts"),), memory
    decisions: list[Decision] = []
    counts: dict[OperatorId, tuple[int, ...]] = {}
    for load in observation.operators:
        before = _resized(memory.counts.get(load.operator, ()), load.instances)
        now = np.where(load.cpu > config.threshold, before + 1, 0)
        decision = _decide_one(load, config, now >= config.reports)
        # Counting starts again when the routing changes; nothing else forgets.
        counts[load.operator] = tuple((now * isinstance(decision, Nothing)).tolist())
        decisions.append(decision)
    return tuple(decisions), BottleneckMemory(counts, observation.at_s)


def _resized(counts: tuple[int, ...], instances: int) -> Owners:
    """Instances that came since the last report start from 0."""
    known = np.array(counts[:instances], dtype=np.int64)
    return np.pad(known, (0, instances - len(known)))


def _decide_one(load: OperatorLoad, config: BottleneckConfig, over: Flags) -> Decision:
    if not over.any():
        return Nothing(operator=load.operator, why=f"no instance was above {config.threshold:g} in {config.reports} reports in a row")
    room = config.instances_max - load.instances
    splittable = over & ~_hot(load, config.hot_slot_share)
    if not splittable.any():
        why = f"instances {_named(over)} are above {config.threshold:g}, but one slot makes over {config.hot_slot_share:.0%} of their load"
        return Nothing(operator=load.operator, why=why)
    if room <= 0:
        why = f"instances {_named(over)} are above {config.threshold:g}, but there are {config.instances_max} instances, the most allowed"
        return Nothing(operator=load.operator, why=why)
    parts = _parts(load, config, splittable, room)
    owners = split(load, parts)
    named = ", ".join(f"instance {i} ({load.cpu[i]:.2f}) becomes {parts[i]}" for i in np.flatnonzero(parts > 1)[:5])
    more = int((parts > 1).sum()) - 5
    why = f"CPU above {config.threshold:g} in {config.reports} reports in a row: {named}" + (f" and {more} more" if more > 0 else "")
    instances = int(owners.max()) + 1
    return ScaleOut(operator=load.operator, instances=max(instances, load.instances), moves=moves_between(load.owners, owners), why=why)


def _hot(load: OperatorLoad, share: float) -> Flags:
    """Which instances have a slot that makes more than this share of their load, or only one slot at all."""
    weights = with_idle(load.slot_cpu())
    heaviest = np.zeros(load.instances)
    np.maximum.at(heaviest, load.owners, weights)
    alone = np.bincount(load.owners, minlength=load.instances) < 2
    return alone | (heaviest > share * load.per_instance(weights))


def _parts(load: OperatorLoad, config: BottleneckConfig, splittable: Flags, room: int) -> Owners:
    """How many instances each becomes; the busiest first where there is no room for all."""
    wanted = np.where(splittable, np.maximum(2, np.ceil(load.cpu / config.threshold)), 1).astype(np.int64)
    slots = np.bincount(load.owners, minlength=load.instances)
    wanted = np.minimum(wanted, np.maximum(slots, 1))
    busiest = np.argsort(-load.cpu, kind="stable")
    added = wanted[busiest] - 1
    left = room - (np.cumsum(added) - added)
    parts = np.ones(load.instances, dtype=np.int64)
    parts[busiest] = 1 + np.clip(added, 0, np.maximum(left, 0))
    return parts


def split(load: OperatorLoad, parts: Owners) -> Owners:
    """Owners after each instance's slots were cut into so many contiguous parts of equal load; new instances come after the last.

    >>> load = OperatorLoad(OperatorId("map"), np.array([0.8, 0.4]), np.arange(SLOTS) * 2 // SLOTS)
    >>> np.bincount(split(load, np.array([3, 1]))).tolist()
    [683, 2048, 682, 683]
    """
    order = np.argsort(load.owners, kind="stable")
    owners = load.owners[order]
    weights = with_idle(load.slot_cpu())
    middle = running(owners, weights[order]) + weights[order] / 2
    part = np.floor(middle / load.per_instance(weights)[owners] * parts[owners]).astype(np.int64).clip(0, parts[owners] - 1)
    # Parts that got no slot, since one slot was as heavy as several parts, are left out of the numbering.
    keys, index = np.unique(owners * (parts.max() + 1) + part, return_inverse=True)
    first = np.r_[True, np.diff(keys // (parts.max() + 1)) != 0]
    number = np.where(first, keys // (parts.max() + 1), load.instances + np.cumsum(~first) - 1)
    after = np.empty_like(load.owners)
    after[order] = number[index]
    return after


def _named(which: Flags) -> str:
    numbers = np.flatnonzero(which)
    return ", ".join(map(str, numbers[:5])) + (f" and {len(numbers) - 5} more" if len(numbers) > 5 else "")
