"""The papers' figures as simulations. To add one, put a module with a tuple ``SCENARIOS`` into this folder."""

from __future__ import annotations

import importlib
import pkgutil

from headrace.errors import QueryError
from headrace.sim.scenario import Scenario


def all_scenarios() -> dict[str, Scenario]:
    """All scenarios by name, in the order of the modules' names and of their tuples."""
    found: dict[str, Scenario] = {}
    for module in sorted(each.name for each in pkgutil.iter_modules(__path__)):
        for scenario in getattr(importlib.import_module(f"{__name__}.{module}"), "SCENARIOS", ()):
            if scenario.name in found:
                raise QueryError(where="scenarios", wanted="every name once", found=scenario.name)
            found[scenario.name] = scenario
    return found


def named(name: str) -> Scenario:
    """The scenario with this name. Raises an error that lists all names if there is none."""
    known = all_scenarios()
    if name not in known:
        raise QueryError(where="simulate", wanted=f"one of {', '.join(known)}", found=repr(name))
    return known[name]
