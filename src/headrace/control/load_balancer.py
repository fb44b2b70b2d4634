"""StreamCloud's load balancer (V.B, Fig. 12 lines 10-12): moves slots from the most to the least loaded instances while that helps.

It acts if the standard deviation of the instances' utilisation is above UIT. It makes steps as long as each lowers the deviation by more
than MIT, as a share of the first deviation. So every plan lowers the deviation by more than MIT, no later plan undoes an earlier one, and
a steady load comes to rest.

Differences from the paper:
- The standard deviation as printed lacks the 1/n.
- In the paper a step moves one bucket from the most to the least loaded instance. With 4096 slots one slot hardly changes the deviation
  of many instances, so any MIT would end the search at once. Here a step is a sweep: the most loaded gives to the least loaded, the
  second to the second least, and so on. Each gives as many slots, heaviest first, as fit into half of the difference. For two instances
  with one heavy slot each, this is the paper's step.
- A slot heavier than half of the difference, but lighter than the difference, moves only if no lighter one can. A still heavier slot
  never moves; there the paper's algorithm stops, while this one goes on with lighter slots.
- The paper measures tuples per bucket (T_b) and CPU per instance. Here a slot has a share of its owner's CPU, in proportion to rows.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.control.assignment import relieved
from headrace.control.checks import between
from headrace.control.decisions import Decision, MoveSlots, Nothing, moves_between
from headrace.control.observation import Floats, Observation, OperatorLoad, Owners, loads_of
from headrace.control.wording import counted, limit, percent

SWEEPS_MAX = 64
"""Bounds the work of one decision. The deviation falls quickly, so only a few sweeps are made."""


@dataclass(frozen=True)
class LoadBalancerConfig:
    imbalance_max: float = 0.1
    """UIT: the deviation of utilisation above which slots are moved. The paper gives no value. 0.1 is a third of the way from the target
    (0.6) to the upper threshold (0.9), so an instance three deviations above the mean is just not overloaded."""
    gain_min: float = 0.05
    """MIT: the least gain of a step, as a share of the first deviation. The paper gives no value. Smaller gains are not worth moving
    state, and are lost in the noise of utilisation measured over seconds."""

    def __post_init__(self) -> None:
        between("load balancer", "imbalance_max", self.imbalance_max, 0, 1)
        between("load balancer", "gain_min", self.gain_min, 1e-6, 1)


def decide(observation: Observation, config: LoadBalancerConfig) -> tuple[Decision, ...]:
    """Move slots of each operator that is out of balance.

    >>> import numpy as np
    >>> from headrace.ids import SLOTS, OperatorId
    >>> skewed = OperatorLoad(OperatorId("sum"), np.array([0.9, 0.3]), np.arange(SLOTS) * 2 // SLOTS, np.ones(SLOTS))
    >>> (decision,) = decide(Observation(0.0, (skewed,)), LoadBalancerConfig())
    >>> decision.moves, decision.why
    ((Move(slots=((0, 682),), to=1),), 'Utilisation deviates by 30.0% > 10%: move 682 slots (expected 0.0%)')
    """
    return tuple(balance(load, config) for load in observation.operators)


def balance(load: OperatorLoad, config: LoadBalancerConfig) -> Decision:
    """The moves for one operator, or the reason why there are none."""
    before = float(load.cpu.std())
    if before <= config.imbalance_max:
        return Nothing(operator=load.operator, why=f"Utilisation deviates by {percent(before)}, at most {limit(config.imbalance_max)}")
    owners, after = swept(load.owners, load.slot_cpu(), load.instances, config.gain_min)
    moves = moves_between(load.owners, owners)
    if not moves:
        uneven = f"Utilisation deviates by {percent(before)} > {limit(config.imbalance_max)}"
        return Nothing(operator=load.operator, why=f"{uneven}, but no move lowers that by {limit(config.gain_min)}")
    count = counted(int((owners != load.owners).sum()), "slot")
    why = f"Utilisation deviates by {percent(before)} > {limit(config.imbalance_max)}: move {count} (expected {percent(after)})"
    return MoveSlots(operator=load.operator, moves=moves, why=why)


def swept(owners: Owners, slot_cpu: Floats, instances: int, gain_min: float) -> tuple[Owners, float]:
    """Sweep while each sweep lowers the deviation by ``gain_min`` of the first deviation. Returns the owners and the deviation then."""
    loads = loads_of(owners, slot_cpu, instances)
    at_first = deviation = float(loads.std())
    for _ in range(SWEEPS_MAX):
        tried = relieved(owners, slot_cpu, loads)
        loads_tried = loads_of(tried, slot_cpu, instances)
        gained = deviation - float(loads_tried.std())
        if gained <= gain_min * at_first:
            break
        owners, loads, deviation = tried, loads_tried, deviation - gained
    return owners, deviation
