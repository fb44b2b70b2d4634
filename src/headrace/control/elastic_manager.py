"""StreamCloud's elastic manager (V.B, Fig. 12): how many instances each operator needs, from their average CPU utilisation.

Outside of [LUT, UUT] the operator gets as many instances as bring the average to the target TUT. Inside, the load balancer levels an
imbalance. Each operator is decided on its own, like a subcluster in the paper.

    n := ceil(n * U_av / TUT)                           load-aware provisioning
    n := n + 1 or n - 1, towards that                   individual provisioning

The new number depends on the load n * U_av alone. So under a steady load the second decision finds nothing to change.

Differences from the paper:
- In a running query stages run one after another, so the average utilisation is that of the query: the sum over the critical path. The
  operator with the largest share grows, and several may in one decision (`critical_path`).
- The paper only says that size, load and TUT decide; ``ceil(n * U_av / TUT)`` is the usual form. Whatever the rounding, an operator
  never scales out below LUT nor scales in above UUT.
- Individual decommissioning waits until the average of the remaining instances does not exceed TUT. Otherwise one instance at 0.91
  would become two at 0.455, below LUT, and then one again, for ever.
- Provisioning also moves slots to the new instances, levelled by load. Fig. 12 leaves that to the balancing of lines 10-12. So one
  observation leads either to a rescale or to balancing, never to both.
- The paper does not say which instances are removed. Here they are those with the highest numbers, since instances are numbered without
  gaps. Their slots go to the least loaded instances, neighbouring slots together (`headrace.state.levelling`). Assigning the heaviest
  slots first would level skewed loads a little better: utilisation deviates by 0.00 instead of 0.04 for Zipf's law on 24 instances. But
  it cuts the key space into a hundred times as many ranges, and each range costs something in every batch.
- In the simulator measured utilisation saturates at 1. A heavy overload then takes several decisions: n to 5n/3 with TUT 0.6, and again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from headrace.control import load_balancer
from headrace.control.checks import ascending, between
from headrace.control.critical_path import described, sized, work_of
from headrace.control.decisions import Decision, Nothing, Rescale, ScaleIn, ScaleOut, moves_between
from headrace.control.observation import Observation, OperatorLoad, Path
from headrace.control.wording import counted, limit, percent, size_change
from headrace.errors import QueryError
from headrace.ids import SLOTS
from headrace.state.levelling import levelled_owners

PROVISIONING = ("load-aware", "individual")


@dataclass(frozen=True)
class ElasticManagerConfig:
    """Settings, with the values of the paper's experiment."""

    lower: float = 0.5
    """LUT: scale in below this average utilisation."""
    upper: float = 0.9
    """UUT: scale out above this average utilisation."""
    target: float = 0.6
    """TUT: the average utilisation after a change."""
    provisioning: str = "load-aware"
    """``load-aware``: reach the target in one step. ``individual``: one instance at a time."""
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
    (7, 'Utilisation 95.0% > 90%: scale out 4 → 7 (expected 54.3%)')
    """
    if observation.path is None:
        return tuple(decide_one(load, config) for load in observation.operators)
    return _decide_together(observation, observation.path, config)


def _decide_together(observation: Observation, path: Path, config: ElasticManagerConfig) -> tuple[Decision, ...]:
    """Fig. 12 for a query whose stages run one after another: its utilisation is the sum over the critical path."""
    average = round(path.utilisation, 9)
    now = {load.operator: load.instances for load in observation.operators}
    if config.lower <= average <= config.upper and all(config.instances_min <= n <= config.instances_max for n in now.values()):
        return tuple(_balanced(load, config, average) for load in observation.operators)
    bounds = config.instances_min, config.instances_max
    steps = 1 if config.provisioning == "individual" else SLOTS
    sizes = sized(path, work_of(observation), now, config.target, bounds, steps)
    why = f"{_utilisation(average, config)} ({described(path)})"
    decisions: list[Decision] = []
    for load in observation.operators:
        needed = sizes.instances[load.operator]
        if needed == load.instances:
            decisions.append(_kept_together(load, config, average, path, why))
        else:
            change = f"{why}: {size_change(load.instances, needed)} (expected {percent(sizes.expected)})"
            decisions.append(_rescaled(load, needed, change))
    return tuple(decisions)


def _kept_together(load: OperatorLoad, config: ElasticManagerConfig, average: float, path: Path, why: str) -> Decision:
    """An operator that keeps its instances although the query is outside of the thresholds: balanced, or the reason."""
    decision = load_balancer.balance(load, config.balancer)
    if not isinstance(decision, Nothing):
        return decision
    share, limits = path.operators[load.operator], ""
    if average > config.upper and load.instances >= config.instances_max:
        limits = f", and {counted(load.instances, 'instance')} {'is' if load.instances == 1 else 'are'} the most allowed"
    return Nothing(operator=load.operator, why=f"{why}; {load.operator} has {percent(share)} of the path{limits}")


def decide_one(load: OperatorLoad, config: ElasticManagerConfig) -> Decision:
    """Fig. 12 for one operator."""
    # Rounded, because the mean of many times 0.9 may be slightly above 0.9.
    average = round(float(load.cpu.mean()), 9)
    needed = instances_needed(load.instances, average, config)
    if needed == load.instances:
        return _balanced(load, config, average)
    why = _utilisation(average, config)
    if config.lower <= average <= config.upper:
        why += f", but instances are limited to {config.instances_min} to {config.instances_max}"
    expected = percent(average * load.instances / needed)
    return _rescaled(load, needed, f"{why}: {size_change(load.instances, needed)} (expected {expected})")


def instances_needed(instances: int, average: float, config: ElasticManagerConfig) -> int:
    """The number of instances after this decision: ComputeNewConfiguration of Fig. 12.

    >>> [instances_needed(10, average, ElasticManagerConfig()) for average in (0.95, 0.9, 0.5, 0.45, 0.0)]
    [16, 10, 10, 8, 1]
    >>> [instances_needed(10, average, ElasticManagerConfig(provisioning="individual")) for average in (0.95, 0.45)]
    [11, 9]
    >>> instances_needed(2, 0.455, ElasticManagerConfig(provisioning="individual"))
    2
    """
    needed = instances
    if not config.lower <= average <= config.upper:
        # Rounded, because 3 * 0.2 / 0.6 is slightly more than 1 in floating point.
        exact = math.ceil(round(instances * average / config.target, 9))
        needed = max(instances, exact) if average > config.upper else min(instances, exact)
        if config.provisioning == "individual":
            needed = max(instances - 1, min(instances + 1, needed))
    return max(config.instances_min, min(config.instances_max, needed))


def _rescaled(load: OperatorLoad, needed: int, why: str) -> Rescale:
    moves = moves_between(load.owners, levelled_owners(load.owners, load.slot_cpu(), needed))
    kind = ScaleOut if needed > load.instances else ScaleIn
    return kind(operator=load.operator, instances=needed, moves=moves, why=why)


def _balanced(load: OperatorLoad, config: ElasticManagerConfig, average: float) -> Decision:
    decision = load_balancer.balance(load, config.balancer)
    if isinstance(decision, Nothing):
        balance = decision.why[:1].lower() + decision.why[1:]
        why = f"{_utilisation(average, config)}{_why_not(load.instances, average, config)}; {balance}"
        return Nothing(operator=load.operator, why=why)
    return decision


def _utilisation(average: float, config: ElasticManagerConfig) -> str:
    """How the average compares with the thresholds."""
    if average > config.upper:
        return f"Utilisation {percent(average)} > {limit(config.upper)}"
    if average < config.lower:
        return f"Utilisation {percent(average)} < {limit(config.lower)}"
    return f"Utilisation {percent(average)} is within {limit(config.lower)} to {limit(config.upper)}"


def _why_not(instances: int, average: float, config: ElasticManagerConfig) -> str:
    """Why an operator outside of the thresholds keeps its instances; nothing for one inside."""
    verb = "is" if instances == 1 else "are"
    if average > config.upper and instances >= config.instances_max:
        return f", but {counted(instances, 'instance')} {verb} the most allowed"
    if average < config.lower and instances <= config.instances_min:
        return f", but {counted(instances, 'instance')} {verb} the fewest allowed"
    if config.lower <= average <= config.upper:
        return ""
    return f", but {counted(instances, 'instance')} {verb} needed for the target of {limit(config.target)}"
