"""The papers' figures as simulations. To add one, put a module into this folder that has a tuple ``SCENARIOS``; nothing else changes."""

from __future__ import annotations

import importlib
import pkgutil

from headrace.errors import QueryError
from headrace.sim.scenario import Scenario


def all_scenarios() -> dict[str, Scenario]:
    """By name, in the order of the modules and of their lists."""
    found: dict[str, Scenario] = {}
    for module in sorted(each.name for each in pkgutil.iter_modules(__path__)):
        for scenario in getattr(importlib.import_module(f"{__name__}.{module}"), "SCENARIOS", ()):
            if scenario.name in found:
                raise QueryError(where="scenarios", wanted="every name once", found=scenario.name)
            found[scenario.name] = scenario
    return found


def named(name: str) -> Scenario:
    known = all_scenarios()
    if name not in known:
        raise QueryError(where="simulate", wanted=f"one of {', '.join(known)}", found=repr(name))
    return known[name]
