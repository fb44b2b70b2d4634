"""SEEP's bottleneck detector (5.1): splits instances whose utilisation was above delta in k reports in a row, one every r seconds.

A split divides an instance's slots into contiguous ranges of equal load (SEEP's key intervals). The first range stays with the instance,
and each other one gets a new instance. The detector only scales out, as in the paper.

Differences from the paper:
- In a running query stages run one after another. To the instances of the operator with the largest share of the critical path, the time
  of all other stages is added (`critical_path.effective`), so that operators that are busy 45% of the time each are found too.
- The paper does not say into how many parts an instance is split. Here it is ceil(utilisation / delta), at least 2.
- Reports that come within half of r after the last one are not counted, so the rate of reports does not matter.
- When the routing has changed, counting starts again for all instances of the operator, because their last reports show the old routing.
  A split that was decided and not performed changes nothing: it is decided again at the next report.
- A slot is never divided. If one slot has nearly all the load of an instance, a split would not help, and the instance is left alone.
  Every split lowers the load of an instance, so under a steady load the splits end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from headrace.control.checks import between
from headrace.control.critical_path import effective
from headrace.control.decisions import Decision, Nothing, ScaleOut, moves_between
from headrace.control.observation import Flags, Observation, OperatorLoad, Owners
from headrace.control.wording import counted, limit, percent
from headrace.ids import SLOTS, OperatorId
from headrace.state.levelling import running_totals, with_idle


@dataclass(frozen=True)
class BottleneckConfig:
    """Settings, with the paper's values."""

    period_s: float = 5.0
    """r: the interval of reports."""
    reports: int = 2
    """k: how many reports in a row must be above the threshold."""
    threshold: float = 0.7
    """delta: the utilisation above which an instance is too busy. 0.5 to 0.7 is the best trade between machines and latency (Fig. 9)."""
    hot_slot_share: float = 0.9
    """An instance is not split if one slot has more than this share of its load."""
    instances_max: int = SLOTS

    def __post_init__(self) -> None:
        where = "bottleneck detector"
        between(where, "period_s", self.period_s, 0)
        between(where, "reports", self.reports, 1)
        between(where, "threshold", self.threshold, 0.01, 0.99)
        between(where, "hot_slot_share", self.hot_slot_share, 0.5, 1)
        between(where, "instances_max", self.instances_max, 1, SLOTS)


@dataclass(frozen=True, eq=False)
class BottleneckMemory:
    """What the detector remembers from one report to the next."""

    counts: Mapping[OperatorId, tuple[int, ...]] = field(default_factory=dict)
    """Per operator and instance: how many reports in a row were above the threshold."""
    owners: Mapping[OperatorId, Owners] = field(default_factory=dict)
    """Per operator: the owners of its slots while these reports were counted."""
    counted_at_s: float | None = None
    """When the last report was counted."""


def decide(observation: Observation, config: BottleneckConfig, memory: BottleneckMemory) -> tuple[tuple[Decision, ...], BottleneckMemory]:
    """Split the instances that were too busy in enough reports in a row.

    >>> busy = OperatorLoad(OperatorId("map"), np.array([0.8, 0.4]), np.arange(SLOTS) * 2 // SLOTS, np.ones(SLOTS))
    >>> decisions, memory = decide(Observation(0.0, (busy,)), BottleneckConfig(), BottleneckMemory())
    >>> decisions[0].why
    'No instance was above 70% in 2 reports in a row'
    >>> (split,), memory = decide(Observation(5.0, (busy,)), BottleneckConfig(), memory)
    >>> split.instances, split.moves, split.why
    (3, (Move(slots=((1024, 2048),), to=2),), 'Utilisation > 70% in 2 reports in a row: split instance 0 (80.0%) into 2')
    """
    last = memory.counted_at_s
    if last is not None and observation.at_s - last < config.period_s / 2:
        why = f"Only {observation.at_s - last:g} s since the last report; one every {config.period_s:g} s is counted"
        return (Nothing(why=why),), memory
    decisions: list[Decision] = []
    counts: dict[OperatorId, tuple[int, ...]] = {}
    for load in effective(observation):
        now = np.where(load.cpu > config.threshold, _counted(memory, load) + 1, 0)
        counts[load.operator] = tuple(now.tolist())
        decisions.append(_decide_one(load, config, now >= config.reports))
    owners = {load.operator: load.owners for load in observation.operators}
    return tuple(decisions), BottleneckMemory(counts, owners, observation.at_s)


def _counted(memory: BottleneckMemory, load: OperatorLoad) -> Owners:
    """How many reports in a row each instance was above the threshold before this one; 0 if the routing has changed since."""
    counts, owners = memory.counts.get(load.operator, ()), memory.owners.get(load.operator)
    if owners is None or len(counts) != load.instances or not np.array_equal(owners, load.owners):
        return np.zeros(load.instances, dtype=np.int64)
    return np.array(counts, dtype=np.int64)


def _decide_one(load: OperatorLoad, config: BottleneckConfig, over: Flags) -> Decision:
    if not over.any():
        return Nothing(operator=load.operator, why=f"No instance was above {limit(config.threshold)} {_in_a_row(config.reports)}")
    room = config.instances_max - load.instances
    splittable = over & ~_hot(load, config.hot_slot_share)
    if not splittable.any():
        whose = "its load" if over.sum() == 1 else "the load of each"
        why = f"{_named(over)} above {limit(config.threshold)}, but one slot has over {limit(config.hot_slot_share)} of {whose}"
        return Nothing(operator=load.operator, why=why)
    if room <= 0:
        most = f"{counted(config.instances_max, 'instance')} {'is' if config.instances_max == 1 else 'are'} the most allowed"
        return Nothing(operator=load.operator, why=f"{_named(over)} above {limit(config.threshold)}, but {most}")
    parts = _parts(load, config, splittable, room)
    owners = split_owners(load, parts)
    named = ", ".join(f"instance {i} ({percent(load.cpu[i])}) into {parts[i]}" for i in np.flatnonzero(parts > 1)[:5])
    more = int((parts > 1).sum()) - 5
    why = f"Utilisation > {limit(config.threshold)} {_in_a_row(config.reports)}: split {named}" + (f" and {more} more" if more > 0 else "")
    instances = int(owners.max()) + 1
    return ScaleOut(operator=load.operator, instances=max(instances, load.instances), moves=moves_between(load.owners, owners), why=why)


def _hot(load: OperatorLoad, share: float) -> Flags:
    """Which instances have only one slot, or a slot with more than this share of their load."""
    weights = with_idle(load.slot_cpu())
    heaviest = np.zeros(load.instances)
    np.maximum.at(heaviest, load.owners, weights)
    alone = np.bincount(load.owners, minlength=load.instances) < 2
    return alone | (heaviest > share * load.per_instance(weights))


def _parts(load: OperatorLoad, config: BottleneckConfig, splittable: Flags, room: int) -> Owners:
    """Into how many parts each instance is split. If there is no room for all, the busiest come first."""
    wanted = np.where(splittable, np.maximum(2, np.ceil(load.cpu / config.threshold)), 1).astype(np.int64)
    slots = np.bincount(load.owners, minlength=load.instances)
    wanted = np.minimum(wanted, np.maximum(slots, 1))
    busiest = np.argsort(-load.cpu, kind="stable")
    added = wanted[busiest] - 1
    left = room - (np.cumsum(added) - added)
    parts = np.ones(load.instances, dtype=np.int64)
    parts[busiest] = 1 + np.clip(added, 0, np.maximum(left, 0))
    return parts


def split_owners(load: OperatorLoad, parts: Owners) -> Owners:
    """Owners of slots after each instance is split into this many contiguous parts of equal load. New instances come after the last.

    >>> load = OperatorLoad(OperatorId("map"), np.array([0.8, 0.4]), np.arange(SLOTS) * 2 // SLOTS)
    >>> np.bincount(split_owners(load, np.array([3, 1]))).tolist()
    [683, 2048, 682, 683]
    """
    order = np.argsort(load.owners, kind="stable")
    owners = load.owners[order]
    weights = with_idle(load.slot_cpu())
    middle = running_totals(owners, weights[order]) + weights[order] / 2
    part = np.floor(middle / load.per_instance(weights)[owners] * parts[owners]).astype(np.int64).clip(0, parts[owners] - 1)
    # If one slot is as heavy as several parts, some parts get no slot; they get no number either.
    keys, index = np.unique(owners * (parts.max() + 1) + part, return_inverse=True)
    first = np.r_[True, np.diff(keys // (parts.max() + 1)) != 0]
    number = np.where(first, keys // (parts.max() + 1), load.instances + np.cumsum(~first) - 1)
    after = np.empty_like(load.owners)
    after[order] = number[index]
    return after


def _in_a_row(reports: int) -> str:
    return "in the last report" if reports == 1 else f"in {reports} reports in a row"


def _named(which: Flags) -> str:
    """The beginning of a sentence about these instances.

    >>> _named(np.array([False, True])), _named(np.array([True, True]))
    ('Instance 1 is', 'Instances 0, 1 are')
    """
    numbers = np.flatnonzero(which)
    if len(numbers) == 1:
        return f"Instance {numbers[0]} is"
    return f"Instances {', '.join(map(str, numbers[:5]))}" + (f" and {len(numbers) - 5} more" if len(numbers) > 5 else "") + " are"
