"""StreamCloud's elastic manager (V.B, Fig. 12): how many instances each operator needs, from their average CPU utilisation.

Outside of [LUT, UUT] the operator gets as many instances as bring the average to the target TUT; within, an imbalance is levelled by the
load balancer. Each operator is decided on its own, as subclusters are in the paper.

    n := ceil(n * U_av / TUT)                           load-aware provisioning
    n := n + 1 or n - 1, towards that                   individual provisioning

The new number follows from the load n * U_av alone, so that under a steady load the second decision would be the first again: nothing.

Where this departs from the paper:
- ``ceil(n * U_av / TUT)`` is the usual form; the paper only says that size, load and TUT decide. It never grows below LUT nor shrinks
  above UUT, whatever the rounding.
- Individual decommissioning waits until one instance less does not exceed TUT. Else one instance at 0.91 would become two at 0.455,
  below LUT, and then one again, for ever.
- Provisioning moves slots to the new instances in the same decision, levelled by load, where Fig. 12 would leave that to the
  balancing of lines 10-12; so a period either rescales or balances, never both from one and the same measurement.
- Which instances go is not said there: here those with the highest numbers, since instances stay numbered without gaps. Offload deals
  their slots out to the least loaded, neighbours together (`headrace.state.levelling`). The heaviest first would level skewed loads a
  little better (CPU deviates by 0.00 instead of 0.04 for Zipf's law on 24 instances), but cuts the key space into a hundred times as many
  ranges, each of which costs something at every batch.
- A measured utilisation saturates at 1, so that a heavy overload takes several decisions: from n to 5n/3 with TUT 0.6, and again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from headrace.control import load_balancer
from headrace.control.checks import ascending, between
from headrace.control.decisions import Decision, Nothing, Rescale, ScaleIn, ScaleOut, moves_between
from headrace.control.observation import Observation, OperatorLoad
from headrace.errors import QueryError
from headrace.ids import SLOTS
from headrace.state.levelling import levelled

PROVISIONING = ("load-aware", "individual")


@dataclass(frozen=True)
class ElasticManagerConfig:
    lower: float = 0.5
    """LUT, as in the paper's experiment."""
    upper: float = 0.9
    """UUT."""
    target: float = 0.6
    """TUT."""
    provisioning: str = "load-aware"
    instances_min: int = 1
    instances_max: int = SLOTS
    balancer: load_balancer.LoadBalancerConfig = field(default_factory=load_balancer.LoadBalancerConfig)

    def __post_init__(self) -> None:
        where = "elastic manager"
        between(where, "lower", self.lower, 0, 1)
        between(where, "upper", self.upper, 0, 1)
        between(where, "target", self.target, 0.01, 1)
        ascending(where, lower=self.lower, target=self.target, upper=self.upper)
        between(where, "instances_min", self.instances_min, 1, SLOTS)
        between(where, "instances_max", self.instances_max, 1, SLOTS)
        ascending(where, instances_min=self.instances_min, instances_max=self.instances_max)
        if self.provisioning not in PROVISIONING:
            raise QueryError(where=where, wanted=f"provisioning of {' or '.join(PROVISIONING)}", found=repr(self.provisioning))


def decide(observation: Observation, config: ElasticManagerConfig) -> tuple[Decision, ...]:
    """Rescale or balance each operator.

    >>> import numpy as np
    >>> from headrace.ids import OperatorId
    >>> busy = OperatorLoad(OperatorId("sum"), np.full(4, 0.95), np.arange(SLOTS) % 4, np.ones(SLOTS))
    >>> (decision,) = decide(Observation(0.0, (busy,)), ElasticManagerConfig())
    >>> decision.instances, decision.why
    (7, 'average CPU 0.950 is above 0.9: 7 instances instead of 4 make it 0.543')
    """
    return tuple(decide_one(load, config) for load in observation.operators)


def decide_one(load: OperatorLoad, config: ElasticManagerConfig) -> Decision:
    """Fig. 12 for one operator."""
    # Rounded, or the mean of many times 0.9 might be a little above 0.9.
    average = round(float(load.cpu.mean()), 9)
    needed = instances_needed(load.instances, average, config)
    if needed == load.instances:
        return _balanced(load, config, average)
    side = f"above {config.upper:g}" if average > config.upper else f"below {config.lower:g}"
    if config.lower <= average <= config.upper:
        side = f"in range, but instances are limited to {config.instances_min} to {config.instances_max}"
    predicted = average * load.instances / needed
    why = f"average CPU {average:.3f} is {side}: {needed} instances instead of {load.instances} make it {predicted:.3f}"
    return _rescaled(load, needed, why)


def instances_needed(instances: int, average: float, config: ElasticManagerConfig) -> int:
    """ComputeNewConfiguration, for either way of provisioning.

    >>> [instances_needed(10, average, ElasticManagerConfig()) for average in (0.95, 0.9, 0.5, 0.45, 0.0)]
    [16, 10, 10, 8, 1]
    >>> [instances_needed(10, average, ElasticManagerConfig(provisioning="individual")) for average in (0.95, 0.45)]
    [11, 9]
    >>> instances_needed(2, 0.455, ElasticManagerConfig(provisioning="individual"))
    2
    """
    needed = instances
    if not config.lower <= average <= config.upper:
        # Rounded, since 3 * 0.2 / 0.6 is a little more than 1 in floating point.
        exact = math.ceil(round(instances * average / config.target, 9))
        needed = max(instances, exact) if average > config.upper else min(instances, exact)
        if config.provisioning == "individual":
            needed = max(instances - 1, min(instances + 1, needed))
    return max(config.instances_min, min(config.instances_max, needed))


def _rescaled(load: OperatorLoad, needed: int, why: str) -> Rescale:
    moves = moves_between(load.owners, levelled(load.owners, load.slot_cpu(), needed))
    kind = ScaleOut if needed > load.instances else ScaleIn
    return kind(operator=load.operator, instances=needed, moves=moves, why=why)


def _balanced(load: OperatorLoad, config: ElasticManagerConfig, average: float) -> Decision:
    decision = load_balancer.balance(load, config.balancer)
    if isinstance(decision, Nothing):
        return Nothing(operator=load.operator, why=f"average CPU {average:.3f} needs {load.instances} instances as now; {decision.why}")
    return decision
