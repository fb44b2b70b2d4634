"""What the editor's page asks of the program in which it runs. ``headrace.api.editor`` implements it.

All answers are plain data for JSON. Mistakes in a text are answers, too (``errors``); what cannot be done at all raises an error of ours.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True)
class Wanted:
    """A query as the page describes it."""

    language: str
    text: str
    mode: str = "append"
    """The output mode that is checked, and in which a sample runs."""
    executes: bool = True
    """False for a check while somebody types: a Python text that may do more than build a DataFrame is then not executed."""


@dataclass(frozen=True)
class Outlet:
    """Where the rows of one result go. `result` is its name; empty for the only one."""

    result: str
    format: str
    mode: str
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Launch:
    """How a query is started."""

    name: str
    checkpoint: str
    trigger: Mapping[str, Any]
    outlets: tuple[Outlet, ...]
    options: Mapping[str, str] = field(default_factory=dict)


class Workbench(Protocol):
    """Checks, tries, starts and replaces queries in the program's session."""

    @property
    def is_over(self) -> bool:
        """True if the session was stopped."""
        ...

    def streams(self) -> list[dict[str, Any]]:
        """The streams that a text can read: name, columns with types, where they come from."""
        ...

    def functions(self) -> dict[str, list[str]]:
        """Names of functions for completion: of Spark's SQL, and of PySpark's module of functions."""
        ...

    def check(self, wanted: Wanted) -> dict[str, Any]:
        """Analyse a text and plan its query, without starting anything."""
        ...

    def frames(self, text: str, names: Mapping[str, str]) -> dict[str, Any]:
        """The columns of the named DataFrames that a PySpark text builds, and the first error, with its line."""
        ...

    def sample(self, wanted: Wanted, ended: threading.Event) -> dict[str, Any]:
        """Run a text on the first rows of its sources, and return the first results. Stops when ``ended`` is set."""
        ...

    def start(self, wanted: Wanted, launch: Launch) -> dict[str, Any]:
        """Start a query."""
        ...

    def replaceable(self) -> list[str]:
        """The checkpoints of the running queries that can be replaced."""
        ...

    def replace(self, wanted: Wanted, location: str, backfill: bool, rename: Mapping[str, str], dry_run: bool) -> dict[str, Any]:
        """Run a text in the place of the query with this checkpoint, or say what that would do."""
        ...
