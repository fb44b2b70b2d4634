"""hr.Elastic refuses wrong settings when it is built, and lists the possible ones."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.control import bottleneck, elastic_manager, load_balancer, rates
from headrace.control.elastic import POLICIES, Elastic
from headrace.errors import QueryError


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"policy": "elastic"}, "elastic-manager, bottleneck, rates, load-balancer; found 'elastic'"),
        ({"policy": None}, "elastic-manager, bottleneck"),
        ({"min": 0}, "min in"),
        ({"min": 5, "max": 4}, "min <= max; found 5, 4"),
        ({"max": 5000}, "max in"),
        ({"min": 1.5}, "a whole number for min; found 1.5"),
        ({"min": True}, "a whole number for min"),
        ({"cooldown_s": -1}, "cooldown_s of at least 0"),
        ({"cooldown_s": "10"}, "a number for cooldown_s"),
        ({"cooldown_s": float("nan")}, "a number for cooldown_s"),
        ({"period_s": 0}, "period_s of at least 0.1"),
        ({"dry_run": "yes"}, "True or False for dry_run"),
        ({"target": 60}, "target in"),
        ({"target": 0.3}, "lower <= target <= upper; found 0.5, 0.3, 0.9"),
        ({"provisioning": "bold"}, "provisioning of load-aware or individual"),
        ({"slack": 0.1}, "thresholds of elastic-manager: target, lower, upper, provisioning, imbalance_max, gain_min; found slack"),
        ({"policy": "bottleneck", "target": 0.5}, "thresholds of bottleneck"),
        ({"policy": "bottleneck", "threshold": 70}, "threshold in"),
        ({"policy": "rates", "slack": -0.1}, "slack of at least 0"),
        ({"policy": "load-balancer", "target": 0.5}, "thresholds of load-balancer: imbalance_max, gain_min; found target"),
    ],
)
def test_bad_settings_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(QueryError, match=r"^Elastic|^elastic|^bottleneck|^rates") as refused:
        Elastic(**wrong)
    assert message in str(refused.value)


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_can_be_had_by_its_name_alone(policy: str) -> None:
    assert Elastic(policy=policy).on(8).max == 8
    assert Elastic(policy=policy, min=9).on(8).max == 9
    assert Elastic(policy=policy, max=3).on(8).max == 3


def test_defaults_are_those_of_the_papers() -> None:
    manager, detector = elastic_manager.ElasticManagerConfig(), bottleneck.BottleneckConfig()
    assert (manager.lower, manager.upper, manager.target) == (0.5, 0.9, 0.6)
    assert (detector.period_s, detector.reports, detector.threshold) == (Elastic().period_s, 2, 0.7)


def test_thresholds_named_here_are_those_that_policies_have() -> None:
    balancing = set(load_balancer.LoadBalancerConfig.__dataclass_fields__)
    assert set(POLICIES["load-balancer"].thresholds) == balancing
    bounds = {"instances_min", "instances_max"}
    manager = set(elastic_manager.ElasticManagerConfig.__dataclass_fields__) - bounds - {"balancer"}
    assert set(POLICIES["elastic-manager"].thresholds) == manager | balancing
    assert set(POLICIES["bottleneck"].thresholds) == set(bottleneck.BottleneckConfig.__dataclass_fields__) - bounds - {"period_s"}
    assert set(POLICIES["rates"].thresholds) == set(rates.RatesConfig.__dataclass_fields__) - bounds
