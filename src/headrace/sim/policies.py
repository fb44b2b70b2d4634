"""The policies of `headrace.control` as functions of an observation. Each keeps the memory that its `decide` returns, and nothing else.

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
    """A policy that keeps its memory from one call to the next."""
    remembered = memory

    def step(observation: Seen) -> tuple[Decision, ...]:
        nonlocal remembered
        decisions, remembered = decide(observation, config, remembered)
        return decisions

    return step


def seep(config: bottleneck.BottleneckConfig | None = None) -> Policy:
    return stepper(bottleneck.decide, config or bottleneck.BottleneckConfig(), bottleneck.BottleneckMemory())


def streamcloud(config: elastic_manager.ElasticManagerConfig | None = None) -> Policy:
    return lambda observation: elastic_manager.decide(observation, config or elastic_manager.ElasticManagerConfig())


def balancer(config: load_balancer.LoadBalancerConfig | None = None) -> Policy:
    return lambda observation: load_balancer.decide(observation, config or load_balancer.LoadBalancerConfig())


def rate_based(config: rates.RatesConfig | None = None) -> Policy:
    return lambda observation: rates.decide(observation, config or rates.RatesConfig())


def three_tiers(config: tiers.TiersConfig | None = None) -> Policy:
    return stepper(tiers.decide, config or tiers.TiersConfig(), tiers.TiersMemory())


def pool_of(config: pool.PoolConfig | None = None) -> PoolPolicy:
    return stepper(pool.decide, config or pool.PoolConfig(), pool.PoolMemory())


def constant_pool(size: int, start_s: float) -> PoolPolicy:
    """SEEP's experiments keep the size p constant (5.2)."""
    return pool_of(pool.PoolConfig(for_failures=size, ready_max=size, start_s=start_s, window_s=max(60.0, start_s)))
