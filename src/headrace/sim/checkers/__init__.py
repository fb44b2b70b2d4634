"""Invariants of every simulation. Each checker runs at every report and at the end; the trace lists the violations it finds.

| checker    | invariant                                                                                                        |
| ---------- | ---------------------------------------------------------------------------------------------------------------- |
| `tuples`   | every row that arrived was processed, is waiting, or was discarded on purpose                                     |
| `owners`   | each slot has one owner, and owners have machines                                                                |
| `zones`    | an instance and its backups lie in distinct zones                                                                |
| `overload` | no instance stays overloaded while capacity is free                                                              |
| `state`    | an instance and all its backups never die together; checked when machines fail (`headrace.sim.changes`)           |
"""

from __future__ import annotations

from collections.abc import Callable

from headrace.sim.checkers.overload import Overload
from headrace.sim.checkers.owners import owners
from headrace.sim.checkers.tuples import tuples
from headrace.sim.checkers.zones import zones
from headrace.sim.world import World

Checker = Callable[[World], None]

CHECKERS: tuple[Callable[[], Checker], ...] = (lambda: tuples, lambda: owners, lambda: zones, Overload)
"""Functions that make a checker, because some checkers have a memory."""
