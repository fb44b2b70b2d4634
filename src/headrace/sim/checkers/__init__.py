"""What must hold in every simulation. Each is looked at with every report; what it finds is written down in the trace.

| checker    | what must hold                                                                                                   |
| ---------- | ---------------------------------------------------------------------------------------------------------------- |
| `tuples`   | rows that came in are processed, waiting, or were discarded on purpose                                            |
| `owners`   | each slot has one owner, and owners have machines                                                                |
| `zones`    | an instance and its backups lie in distinct zones                                                                |
| `overload` | no instance stays overloaded while capacity is free                                                              |
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace.sim.checkers.overload import Overload
from headrace.sim.checkers.owners import owners
from headrace.sim.checkers.tuples import tuples
from headrace.sim.checkers.zones import zones

if TYPE_CHECKING:
    from headrace.sim.simulator import Simulator

Checker = Callable[["Simulator"], None]

CHECKERS: tuple[Callable[[], Checker], ...] = (lambda: tuples, lambda: owners, lambda: zones, Overload)
"""Makers, as some remember what they saw."""
