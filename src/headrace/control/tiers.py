"""Borealis' three tiers (2): local, neighbourhood and global optimisers that work together.

| tier          | sees                   | does                                        | runs every |
| ------------- | ---------------------- | ------------------------------------------- | ---------- |
| local         | one instance           | sheds load, where the query allows it       | 1 s        |
| neighbourhood | the instances of a zone| moves slots within the zone                 | 5 s        |
| global        | all instances          | rescales, moves slots across zones          | 30 s       |

The rules, for each operator on its own:
1. A tier runs when its period has passed. It also runs at once if the narrower tier has seen an overload ``patience`` times in a row. So
   a small problem is solved locally and cheaply, and a large one does not wait for half a minute.
2. If two tiers would act at the same moment, only the wider one acts. It sees all that the narrower ones see, and its change makes theirs
   out of date.
3. After slots have moved, no tier acts for ``settle_s``, because all reports still show the old routing. Wider tiers do not wait after
   shedding, since it does not remove the overload; they are shown the load as it would be without shedding.

Under a steady load each tier comes to rest, no two act at once, and none acts on reports from before the last change.

Differences from the paper: it names the tiers and their optimisers, and says that they complement each other. The periods and the rules
are ours. Its local optimiser has further tactics (scheduling, changed operators), which Spark decides here. Its neighbourhood consists of
servers that exchange streams; here it is a fault zone, within which moving state is cheap.

No running query uses it; tests run it on the simulator. It is for queries that can shed load, which is not built into the engine yet.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from headrace.control import elastic_manager, load_balancer
from headrace.control.checks import ascending, between
from headrace.control.decisions import Decision, MoveSlots, Nothing, Shed, moves_between
from headrace.control.observation import Floats, Observation, OperatorLoad
from headrace.control.wording import counted, percent
from headrace.ids import InstanceId, OperatorId

TIERS = ("local", "neighbourhood", "global")


@dataclass(frozen=True)
class TiersConfig:
    """Settings of the tiers. The paper has no values."""

    local_s: float = 1.0
    """Period of the local tier: about one or two micro-batches."""
    neighbourhood_s: float = 5.0
    """Period of the neighbourhood tier: SEEP's interval of reports. A move takes a tenth of it (Borealis 3.2)."""
    global_s: float = 30.0
    """Period of the global tier: several times the 5 s that a new executor takes to start."""
    settle_s: float = 5.0
    """How long no tier acts after slots have moved."""
    patience: int = 3
    """How many overloads in a row call the next tier. Two may still be chance, as SEEP's k = 2 allows."""
    overload: float = 0.9
    """The utilisation from which an instance is overloaded; StreamCloud's upper threshold."""
    shed: bool = False
    """Allow dropping rows. It changes results, so the user must ask for it."""
    shed_queue_rows: float = 1000.0
    """Rows are dropped only if at least this many wait at an instance."""
    shed_step: float = 0.05
    """The share of rows kept changes by at least this much, so that it does not follow every small change of the load."""
    balancer: load_balancer.LoadBalancerConfig = field(default_factory=load_balancer.LoadBalancerConfig)
    """Settings of the neighbourhood tier."""
    manager: elastic_manager.ElasticManagerConfig = field(default_factory=elastic_manager.ElasticManagerConfig)
    """Settings of the global tier."""

    def __post_init__(self) -> None:
        between("tiers", "local_s", self.local_s, 0)
        ascending("tiers", local_s=self.local_s, neighbourhood_s=self.neighbourhood_s, global_s=self.global_s)
        between("tiers", "settle_s", self.settle_s, 0)
        between("tiers", "patience", self.patience, 1)
        between("tiers", "overload", self.overload, 0.01, 1)
        between("tiers", "shed_step", self.shed_step, 0.001, 1)

    def period_s(self, tier: int) -> float:
        return (self.local_s, self.neighbourhood_s, self.global_s)[tier]


@dataclass(frozen=True)
class OperatorMemory:
    """What the tiers remember of one operator."""

    looked_s: tuple[float, float, float]
    """When each tier last ran."""
    troubled: tuple[int, int] = (0, 0)
    """How many runs in a row of the local and of the neighbourhood tier saw an overload."""
    rest_until_s: float = float("-inf")
    """No tier acts before this moment, because slots have moved."""
    keep: tuple[float, ...] = ()
    """The share of its rows that each instance keeps. Instances beyond the end keep all."""


@dataclass(frozen=True)
class TiersMemory:
    """What the tiers remember from one observation to the next."""

    operators: Mapping[OperatorId, OperatorMemory] = field(default_factory=dict)


def decide(observation: Observation, config: TiersConfig, memory: TiersMemory) -> tuple[tuple[Decision, ...], TiersMemory]:
    """Decide for each operator, by one tier at a time.

    >>> from headrace.ids import SLOTS
    >>> skewed = OperatorLoad(OperatorId("sum"), np.array([0.9, 0.3]), np.arange(SLOTS) * 2 // SLOTS, np.ones(SLOTS))
    >>> memory = TiersMemory()
    >>> for at_s in (0.0, 1.0, 2.0):
    ...     (decision,), memory = decide(Observation(at_s, (skewed,)), TiersConfig(), memory)
    ...     print(type(decision).__name__, decision.why, sep=": ")
    Nothing: local: Utilisation up to 90.0%, but shedding is not allowed
    Nothing: local: Utilisation up to 90.0%, but shedding is not allowed
    MoveSlots: neighbourhood, called by local: Utilisation of zone '' deviates by 30.0%: move 682 slots
    """
    decisions: list[Decision] = []
    remembered: dict[OperatorId, OperatorMemory] = {}
    for load in observation.operators:
        start = OperatorMemory((float("-inf"), observation.at_s, observation.at_s))
        made, after = _decide_one(load, observation.at_s, config, memory.operators.get(load.operator, start))
        decisions += made
        remembered[load.operator] = after
    return tuple(decisions), TiersMemory(remembered)


def _decide_one(
    load: OperatorLoad, at_s: float, config: TiersConfig, memory: OperatorMemory
) -> tuple[tuple[Decision, ...], OperatorMemory]:
    if at_s < memory.rest_until_s:
        return (Nothing(operator=load.operator, why=f"Slots moved less than {config.settle_s:g} s ago"),), memory
    keep = _keep(memory, load.instances)
    unshed = _without_shedding(load, keep)
    troubled = bool((unshed.cpu >= config.overload).any())
    due = _due(at_s, config, memory, troubled)
    memory = _looked(at_s, memory, due, troubled)
    made: tuple[Decision, ...] = ()
    for tier in sorted(due, reverse=True):
        made = _named(_propose(tier, load, unshed, keep, config), tier, due[tier])
        if not all(isinstance(decision, Nothing) for decision in made):
            break
    if not made:
        made = (Nothing(operator=load.operator, why="No tier is due"),)
    return made, _after(made, at_s, config, memory, keep)


def _due(at_s: float, config: TiersConfig, memory: OperatorMemory, troubled: bool) -> dict[int, bool]:
    """The tiers that run now; True for those that a narrower tier called."""
    due: dict[int, bool] = {}
    for tier in range(len(TIERS)):
        if at_s - memory.looked_s[tier] >= config.period_s(tier):
            due[tier] = False
        elif tier and troubled and tier - 1 in due and memory.troubled[tier - 1] + 1 >= config.patience:
            due[tier] = True
    return due


def _looked(at_s: float, memory: OperatorMemory, due: Mapping[int, bool], troubled: bool) -> OperatorMemory:
    local, neighbourhood, whole = (at_s if tier in due else memory.looked_s[tier] for tier in range(len(TIERS)))
    # A tier that called the next one starts counting again.
    counts = [0 if not troubled or tier + 1 in due else memory.troubled[tier] + (tier in due) for tier in range(len(TIERS) - 1)]
    return replace(memory, looked_s=(local, neighbourhood, whole), troubled=(counts[0], counts[1]))


def _propose(tier: int, load: OperatorLoad, unshed: OperatorLoad, keep: Floats, config: TiersConfig) -> tuple[Decision, ...]:
    if tier == 0:
        return _shed(load, keep, config)
    if tier == 1:
        return (balanced_within_zones(unshed, config.balancer),)
    return (elastic_manager.decide_one(unshed, config.manager),)


def _named(decisions: tuple[Decision, ...], tier: int, called: bool) -> tuple[Decision, ...]:
    by = f"{TIERS[tier]}, called by {TIERS[tier - 1]}" if called else TIERS[tier]
    return tuple(replace(decision, why=f"{by}: {decision.why}") for decision in decisions)


def _after(made: tuple[Decision, ...], at_s: float, config: TiersConfig, memory: OperatorMemory, keep: Floats) -> OperatorMemory:
    """The memory after these decisions: the shares kept, and how long reports are out of date."""
    shares = keep.copy()
    moved = False
    for decision in made:
        if isinstance(decision, Shed):
            shares[decision.instance] = decision.keep
        elif not isinstance(decision, Nothing):
            moved = True
    # Overloads that were counted under the old routing do not count under the new one.
    memory = replace(memory, rest_until_s=at_s + config.settle_s, troubled=(0, 0)) if moved else memory
    return replace(memory, keep=tuple(shares.tolist()) if (shares < 1).any() else ())


# Local.


def _keep(memory: OperatorMemory, instances: int) -> Floats:
    known = np.array(memory.keep[:instances])
    return np.pad(known, (0, instances - len(known)), constant_values=1.0)


def _without_shedding(load: OperatorLoad, keep: Floats) -> OperatorLoad:
    return load if (keep == 1).all() else replace(load, cpu=load.cpu / keep)


def _shed(load: OperatorLoad, keep: Floats, config: TiersConfig) -> tuple[Decision, ...]:
    """Let each overloaded instance keep only the rows that it can process, and more again as soon as it can."""
    highest = f"Utilisation up to {percent(load.cpu.max())}"
    if not config.shed:
        refused = ", but shedding is not allowed" if load.cpu.max() >= config.overload else ""
        return (Nothing(operator=load.operator, why=highest + refused),)
    arriving = load.per_instance(load.rows_per_slot)
    # Rows that it could process with its whole time slice, from those that it did with the part it used.
    able = load.rows_in_per_s / np.maximum(load.cpu, 1e-9)
    share = np.where(arriving > 0, config.overload * able / np.maximum(arriving, 1e-9), 1.0).clip(0.01, 1.0)
    starts = (load.cpu >= config.overload) & (load.queue_rows >= config.shed_queue_rows)
    changes = (starts | (keep < 1)) & ((np.abs(share - keep) >= config.shed_step) | ((share == 1) & (keep < 1)))
    shed = tuple(
        Shed(
            operator=load.operator,
            instance=InstanceId(int(i)),
            keep=float(share[i]),
            why=f"Input {arriving[i]:,.0f} rows/s, capacity {able[i]:,.0f} rows/s: keep {percent(share[i])} of the rows",
        )
        for i in np.flatnonzero(changes)
    )
    return shed or (Nothing(operator=load.operator, why=f"{highest}; the shares of rows kept do not change"),)


# Neighbourhood.


def balanced_within_zones(load: OperatorLoad, config: load_balancer.LoadBalancerConfig) -> Decision:
    """Run the load balancer in each zone on its own, so that no slot leaves its zone."""
    names, zone_of = np.unique(np.array(load.zones), return_inverse=True)
    owners, slot_cpu = load.owners.copy(), load.slot_cpu()
    reasons: list[str] = []
    for zone, name in enumerate(names):
        inside = np.flatnonzero(zone_of == zone)
        deviation = float(load.cpu[inside].std())
        if deviation <= config.imbalance_max:
            continue
        slots = np.flatnonzero(zone_of[load.owners] == zone)
        numbers = np.searchsorted(inside, load.owners[slots])
        swept, _ = load_balancer.swept(numbers, slot_cpu[slots], len(inside), config.gain_min)
        owners[slots] = inside[swept]
        count = int((swept != numbers).sum())
        if count:
            reasons.append(f"Utilisation of zone {str(name)!r} deviates by {percent(deviation)}: move {counted(count, 'slot')}")
    if not reasons:
        return Nothing(operator=load.operator, why="No zone can be balanced better")
    return MoveSlots(operator=load.operator, moves=moves_between(load.owners, owners), why=", ".join(reasons))
