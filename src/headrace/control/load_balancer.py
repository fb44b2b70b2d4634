"""StreamCloud's load balancer (V.B, Fig. 12 lines 10-12): move slots from the most to the least loaded while that helps.

It acts when the standard deviation of the instances' CPU utilisation is above UIT, and stops when a further step would lower it by less
than MIT, as a share of what it was at first; that last step is not made. Every plan so lowers the deviation by more than MIT, which is
why a steady load comes to rest: no plan is ever undone by a later one.

Where this departs from the paper:
- The printed standard deviation lacks the 1/n.
- A step there is one bucket from the most to the least loaded. With 4096 slots a single one hardly changes the deviation of many
  instances, so that any MIT would end the search at once. A step here is a sweep: the most loaded gives to the least loaded, the second
  to the second least and so on, each as many slots, heaviest first, as fit into half of the difference. For two instances with a heavy
  slot each this is the paper's step.
- A bucket heavier than half of the difference, but lighter than the difference, moves only where no lighter one can. A heavier one never
  moves: there the paper's algorithm stops, ours goes on with lighter ones.
- The paper measures tuples per bucket (T_b) and CPU per instance; a slot's CPU is its owner's, in proportion to rows.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.control.assignment import relieved
from headrace.control.checks import between
from headrace.control.decisions import Decision, MoveSlots, Nothing, moves_between
from headrace.control.observation import Floats, Observation, OperatorLoad, Owners, loads_of

SWEEPS_MAX = 64
"""A bound on the work of one decision; the deviation falls so quickly that a few sweeps are made."""


@dataclass(frozen=True)
class LoadBalancerConfig:
    imbalance_max: float = 0.1
    """UIT. The paper gives none. A third of the way from its target (0.6) to its upper threshold (0.9): even an instance three deviations
    above the mean is then just not overloaded."""
    gain_min: float = 0.05
    """MIT. The paper gives none. Moving state costs more than a twentieth of the imbalance is worth, and it is well above the noise of
    utilisation measured over seconds."""

    def __post_init__(self) -> None:
        between("load balancer", "imbalance_max", self.imbalance_max, 0, 1)
        between("load balancer", "gain_min", self.gain_min, 1e-6, 1)


def decide(observation: Observation, config: LoadBalancerConfig) -> tuple[Decision, ...]:
    """Moves for each operator that is out of balance.

    >>> import numpy as np
    >>> from headrace.ids import SLOTS, OperatorId
    >>> skewed = OperatorLoad(OperatorId("sum"), np.array([0.9, 0.3]), np.arange(SLOTS) * 2 // SLOTS, np.ones(SLOTS))
    >>> (decision,) = decide(Observation(0.0, (skewed,)), LoadBalancerConfig())
    >>> decision.moves, decision.why
    ((Move(slots=((0, 682),), to=1),), 'CPU deviates by 0.300, more than 0.1; 682 slots moved make it 0.000')
    """
    return tuple(balance(load, config) for load in observation.operators)


def balance(load: OperatorLoad, config: LoadBalancerConfig) -> Decision:
    """The moves for one operator, or why there are none."""
    before = float(load.cpu.std())
    if before <= config.imbalance_max:
        return Nothing(operator=load.operator, why=f"CPU deviates by {before:.3f}, not more than {config.imbalance_max:g}")
    owners, after = swept(load.owners, load.slot_cpu(), load.instances, config.gain_min)
    moves = moves_between(load.owners, owners)
    if not moves:
        why = f"CPU deviates by {before:.3f}, more than {config.imbalance_max:g}, but no move lowers it by {config.gain_min:.0%}"
        return Nothing(operator=load.operator, why=why)
    count = int((owners != load.owners).sum())
    why = f"CPU deviates by {before:.3f}, more than {config.imbalance_max:g}; {count} slots moved make it {after:.3f}"
    return MoveSlots(operator=load.operator, moves=moves, why=why)


def swept(owners: Owners, slot_cpu: Floats, instances: int, gain_min: float) -> tuple[Owners, float]:
    """Sweep as long as each lowers the deviation by ``gain_min`` of what it was at first; the owners then, and the deviation."""
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
