"""Each claim of a scenario is made to fail by a policy that was changed for the worse: a claim that cannot fail shows nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from headrace.control import elastic_manager
from headrace.control.decisions import Decision, Rescale
from headrace.control.observation import Observation
from headrace.sim import policies
from headrace.sim.scenario import Result
from headrace.sim.scenarios import borealis_fig8, streamcloud_balance, streamcloud_provisioning

BALANCE = dict(streamcloud_balance.OPTIONS, period_s=20.0, report_s=2.0)
PROVISION = dict(streamcloud_provisioning.OPTIONS, rows_per_s_per_s=375.0, instances_until=7, instances_top=11, report_s=1.0)


def failed(result: Result) -> set[str]:
    return {claim.what for claim in result.claims if claim.holds is False}


def until(policy: Callable[..., policies.Policy], end_s: float) -> Callable[..., policies.Policy]:
    """The policy, which gives up at this moment."""

    def made(config: Any = None) -> policies.Policy:
        asked = policy(config)
        return lambda seen: asked(seen) if seen.at_s < end_s else ()

    return made


def test_fig_20_a_balancer_that_gives_up_after_the_first_change_of_keys_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its highest peak is still above what is left later, so that comparing one maximum with another shows nothing."""
    monkeypatch.setattr(policies, "balancer", until(policies.balancer, 40.0))
    found = failed(streamcloud_balance.run(BALANCE, seed=1))
    assert {"20a: deviation with balancing", "20a: deviation without", "20a: a peak after each change, then less"} <= found


def test_fig_20_a_mean_that_varies_is_caught() -> None:
    seen = streamcloud_balance.run(BALANCE, seed=1).figures
    claims = {spread: streamcloud_balance._claims("a", seen | {"a.mean.spread": spread}, 0.1) for spread in (0.01, 0.2)}
    assert [claim.holds for claim in claims[0.01]] == [True] * 4
    assert [claim.what for claim in claims[0.2] if not claim.holds] == ["20a: mean CPU"]


@pytest.mark.parametrize("factor", [0.8, 2])
def test_fig_21_provisioning_of_too_many_or_too_few_is_caught(factor: float, monkeypatch: pytest.MonkeyPatch) -> None:
    right = elastic_manager.decide

    def wrong(seen: Observation, config: elastic_manager.ElasticManagerConfig) -> tuple[Decision, ...]:
        load = seen.operators[0]
        return tuple(
            replace(each, instances=max(load.instances + 1, round(factor * each.instances)), moves=())
            if isinstance(each, Rescale) and each.instances > load.instances and config.provisioning == "load-aware"
            else each
            for each in right(seen, config)
        )

    monkeypatch.setattr(elastic_manager, "decide", wrong)
    assert "21b: CPU after each step" in failed(streamcloud_provisioning.run(PROVISION, seed=1))


@pytest.mark.extra
def test_fig_8_a_solver_that_ignores_the_workload_and_a_fit_that_depends_on_the_imbalance_are_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = {"paths": 2, "nodes": 3, "epsilon": 0.1, "repeats": 1}
    assert failed(borealis_fig8.run(options, seed=1)) == set()
    solver, fit = borealis_fig8.plan_ahead, borealis_fig8.plan_by_tables  # type: ignore[attr-defined]
    monkeypatch.setattr(borealis_fig8, "plan_ahead", lambda network, top, config, workload=None: solver(network, top, config))

    def finer(network: Any, top: Any, config: Any) -> Any:
        costs = [each.cost for each in network.query.operators]
        return fit(network, top, replace(config, epsilon=config.epsilon * min(costs) / max(costs)))

    monkeypatch.setattr(borealis_fig8, "plan_by_tables", finer)
    found = failed(borealis_fig8.run(options, seed=1))
    assert {"Solver-W, which knows the workload", "most work of a network over the least"} <= found
