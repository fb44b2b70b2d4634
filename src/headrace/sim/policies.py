"""The policies of `headrace.control` as functions of an observation. Each one keeps only the memory that its `decide` returns.

Simulator(plan, [stepper(bottleneck.decide, bottleneck.BottleneckConfig(threshold=0.6), bottleneck.BottleneckMemory())], ...)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from headrace.control import bottleneck, elastic_manager, load_balancer, pool, rates, tiers
from headrace.control.decisions import Decision
from headrace.control.observation import Observation

Policy = Callable[[Observation], tuple[Decision, ...]]
PoolPolicy = Callable[[pool.PoolObservation], tuple[Decision, ...]]

Seen = TypeVar("Seen")
PolicyConfig = TypeVar("PolicyConfig")
PolicyMemory = TypeVar("PolicyMemory")


def stepper(
    decide: Callable[[Seen, PolicyConfig, PolicyMemory], tuple[tuple[Decision, ...], PolicyMemory]],
    config: PolicyConfig,
    memory: PolicyMemory,
) -> Callable[[Seen], tuple[Decision, ...]]:
    """A policy that passes the memory of each decision on to the next one."""
    remembered = memory

    def step(observation: Seen) -> tuple[Decision, ...]:
        nonlocal remembered
        decisions, remembered = decide(observation, config, remembered)
        return decisions

    return step


def seep(config: bottleneck.BottleneckConfig | None = None) -> Policy:
    """SEEP's bottleneck detector."""
    return stepper(bottleneck.decide, config or bottleneck.BottleneckConfig(), bottleneck.BottleneckMemory())


def streamcloud(config: elastic_manager.ElasticManagerConfig | None = None) -> Policy:
    """StreamCloud's elastic manager: provisioning, decommissioning and load balancing."""
    return lambda observation: elastic_manager.decide(observation, config or elastic_manager.ElasticManagerConfig())


def balancer(config: load_balancer.LoadBalancerConfig | None = None) -> Policy:
    """StreamCloud's load balancer alone."""
    return lambda observation: load_balancer.decide(observation, config or load_balancer.LoadBalancerConfig())


def rate_based(config: rates.RatesConfig | None = None) -> Policy:
    """Rate-based scaling, as in DS2."""
    return lambda observation: rates.decide(observation, config or rates.RatesConfig())


def three_tiers(config: tiers.TiersConfig | None = None) -> Policy:
    """Borealis' three tiers: shed load locally, move slots within a zone, rescale globally."""
    return stepper(tiers.decide, config or tiers.TiersConfig(), tiers.TiersMemory())


def pool_of(config: pool.PoolConfig | None = None) -> PoolPolicy:
    """A pool of ready machines whose size follows recent demand."""
    return stepper(pool.decide, config or pool.PoolConfig(), pool.PoolMemory())


def constant_pool(size: int, start_s: float) -> PoolPolicy:
    """A pool of constant size, as in SEEP's experiments (5.2)."""
    return pool_of(pool.PoolConfig(for_failures=size, ready_max=size, start_s=start_s, window_s=max(60.0, start_s)))
