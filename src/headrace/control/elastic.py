"""``hr.Elastic``: the user's settings for a policy that scales a running query, and the policies by name.

A threshold that is not given has the policy's default, which is the paper's where the paper has one. A threshold that the chosen policy
does not have is refused, because it would have no effect.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from headrace.control import bottleneck, elastic_manager, load_balancer, rates
from headrace.control.checks import ascending, between
from headrace.control.decisions import Decision
from headrace.control.observation import Observation
from headrace.errors import QueryError
from headrace.ids import SLOTS

WHERE = "Elastic"
BALANCING = ("imbalance_max", "gain_min")
LIMITS = ("lower", "target", "upper", "threshold")
"""Thresholds that are compared with the utilisation of instances."""
COMMON = ("policy", "min", "max", "cooldown_s", "period_s", "dry_run")


@dataclass(frozen=True)
class Elastic:
    """Settings for ``writeStream.elastic(...)``: a policy decides how many instances each operator has, and which slots they own.

    A threshold that is None has the policy's default, in brackets below. A value that is not possible, or a threshold that the policy
    does not have, raises ``QueryError``.

    >>> Elastic(policy="elastic-manager", min=1, max=8, target=0.6).thresholds
    {'target': 0.6}
    >>> Elastic(policy="elastic")
    Traceback (most recent call last):
    ...
    headrace.errors.QueryError: Elastic: wanted a policy of elastic-manager, bottleneck, rates, load-balancer; found 'elastic'
    >>> Elastic(policy="bottleneck", slack=0.2)
    Traceback (most recent call last):
    ...
    headrace.errors.QueryError: Elastic: wanted thresholds of bottleneck: threshold, reports, hot_slot_share; found slack
    """

    policy: str = "elastic-manager"
    """``elastic-manager`` (StreamCloud), ``bottleneck`` (SEEP; only grows), ``rates`` (as DS2) or ``load-balancer`` (only moves slots)."""
    min: int = 1
    """The fewest instances of an operator."""
    max: int | None = None
    """The most instances of an operator. None: one for each core that Spark has when the query starts."""
    cooldown_s: float = 10.0
    """How long an operator is left alone after a change. Twice the period, so that the next observation shows the new routing only."""
    period_s: float = 5.0
    """A decision considers the batches of the last so many seconds, or the last batch if it took longer. SEEP calls it r."""
    dry_run: bool = False
    """Decide and log, but change nothing."""
    target: float | None = None
    """elastic-manager (0.6) and rates (0.8): the utilisation that instances should have."""
    lower: float | None = None
    """elastic-manager: scale in below this average utilisation (0.5)."""
    upper: float | None = None
    """elastic-manager: scale out above this average utilisation (0.9)."""
    provisioning: str | None = None
    """elastic-manager: ``load-aware`` reaches the target in one step, ``individual`` adds or removes one instance at a time."""
    threshold: float | None = None
    """bottleneck: an instance is split if its utilisation is above this (0.7) in several reports in a row."""
    reports: int | None = None
    """bottleneck: the number of these reports (2)."""
    hot_slot_share: float | None = None
    """bottleneck: an instance is not split if one slot has more than this share of its load (0.9)."""
    slack: float | None = None
    """rates: scale in only if this share of additional input (0.1) would still fit."""
    imbalance_max: float | None = None
    """elastic-manager and load-balancer: slots move when the standard deviation of utilisation is above this (0.1)."""
    gain_min: float | None = None
    """elastic-manager and load-balancer: a slot moves only if that lowers the deviation by at least this share (0.05)."""

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise QueryError(where=WHERE, wanted=f"a policy of {', '.join(POLICIES)}", found=repr(self.policy))
        for field in fields(self):
            _check_type(field.name, str(field.type), getattr(self, field.name))
        known = POLICIES[self.policy].thresholds
        unknown = [name for name in self.thresholds if name not in known]
        if unknown:
            raise QueryError(where=WHERE, wanted=f"thresholds of {self.policy}: {', '.join(known)}", found=", ".join(unknown))
        between(WHERE, "min", self.min, 1, SLOTS)
        between(WHERE, "max", self.most(self.min), 1, SLOTS)
        ascending(WHERE, min=self.min, max=self.most(self.min))
        between(WHERE, "cooldown_s", self.cooldown_s, 0)
        between(WHERE, "period_s", self.period_s, 0.1)
        # The policy checks its own thresholds.
        POLICIES[self.policy].make(self)

    @property
    def thresholds(self) -> dict[str, Any]:
        """The thresholds that the user gave."""
        given = {field.name: getattr(self, field.name) for field in fields(self) if field.name not in COMMON}
        return {name: value for name, value in given.items() if value is not None}

    def most(self, cores: int) -> int:
        """The most instances of an operator: ``max``, or one for each of these cores."""
        return self.max if self.max is not None else max(self.min, cores)

    def on(self, cores: int) -> Elastic:
        """The same settings, with ``max`` filled in for this many cores."""
        return replace(self, max=min(SLOTS, self.most(cores)))

    @property
    def limits(self) -> dict[str, Any]:
        """The thresholds of the policy that are utilisations, with its defaults.

        >>> Elastic(upper=0.8).limits
        {'lower': 0.5, 'target': 0.6, 'upper': 0.8}
        """
        return {**POLICIES[self.policy].limits, **{name: value for name, value in self.thresholds.items() if name in LIMITS}}

    def to_json(self) -> dict[str, Any]:
        """The settings that are not None, and the ``limits``, as a JSON object."""
        given = {name: value for name, value in asdict(self).items() if value is not None}
        return {"settings": given, "limits": self.limits}

    def chosen(self) -> ReadyPolicy:
        """The policy, ready to decide."""
        return POLICIES[self.policy].make(self)


@dataclass(frozen=True)
class ReadyPolicy:
    """A policy that is ready to decide: maps an observation and its memory to decisions and its new memory."""

    decide: Callable[[Observation, Any], tuple[tuple[Decision, ...], Any]]
    first: Any = None
    """The memory for the first call."""


@dataclass(frozen=True)
class Kind:
    """A policy that users can choose: the thresholds it has, and the function that makes it from the settings."""

    thresholds: tuple[str, ...]
    make: Callable[[Elastic], ReadyPolicy]
    config: Any
    """Has the defaults of the thresholds."""

    @property
    def limits(self) -> dict[str, Any]:
        """The defaults of those thresholds that are utilisations."""
        return {name: getattr(self.config, name) for name in LIMITS if name in self.thresholds}


def _bounds(settings: Elastic) -> dict[str, Any]:
    return {"instances_min": settings.min, "instances_max": settings.most(SLOTS)}


def _elastic_manager(settings: Elastic) -> ReadyPolicy:
    given = settings.thresholds
    balancer = load_balancer.LoadBalancerConfig(**{name: given.pop(name) for name in BALANCING if name in given})
    config = elastic_manager.ElasticManagerConfig(**given, **_bounds(settings), balancer=balancer)
    return ReadyPolicy(lambda observation, _: (elastic_manager.decide(observation, config), None))


def _bottleneck(settings: Elastic) -> ReadyPolicy:
    config = bottleneck.BottleneckConfig(**settings.thresholds, period_s=settings.period_s, instances_max=settings.most(SLOTS))
    return ReadyPolicy(lambda observation, memory: bottleneck.decide(observation, config, memory), bottleneck.BottleneckMemory())


def _rates(settings: Elastic) -> ReadyPolicy:
    config = rates.RatesConfig(**settings.thresholds, **_bounds(settings))
    return ReadyPolicy(lambda observation, _: (rates.decide(observation, config), None))


def _load_balancer(settings: Elastic) -> ReadyPolicy:
    config = load_balancer.LoadBalancerConfig(**settings.thresholds)
    return ReadyPolicy(lambda observation, _: (load_balancer.decide(observation, config), None))


POLICIES = {
    "elastic-manager": Kind(
        ("target", "lower", "upper", "provisioning", *BALANCING), _elastic_manager, elastic_manager.ElasticManagerConfig
    ),
    "bottleneck": Kind(("threshold", "reports", "hot_slot_share"), _bottleneck, bottleneck.BottleneckConfig),
    "rates": Kind(("target", "slack"), _rates, rates.RatesConfig),
    "load-balancer": Kind(BALANCING, _load_balancer, load_balancer.LoadBalancerConfig),
}


def _check_type(name: str, declared: str, value: Any) -> None:
    """Refuse a value of the wrong type. A whole number is fine for a setting that may have decimals."""
    kind, _, optional = declared.partition(" | ")
    if value is None and optional:
        return
    right = {
        "str": isinstance(value, str),
        "bool": isinstance(value, bool),
        "int": isinstance(value, int) and not isinstance(value, bool),
        "float": isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value),
    }[kind]
    if not right:
        wanted = {"str": "a word", "bool": "True or False", "int": "a whole number", "float": "a number"}[kind]
        raise QueryError(where=WHERE, wanted=f"{wanted} for {name}", found=repr(value))
