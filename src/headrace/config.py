"""Settings of a query, typed; given as ``option("headrace.NAME", value)`` on the writer or as Spark settings of the same name.

Names are the same in upper and lower case, as those of all of Spark's options.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from headrace.errors import QueryError, UnsupportedError
from headrace.logs import LEVELS as LOG_LEVELS

PREFIX = "headrace."
HANDOVERS = ("auto", "state recreation", "window recreation", "merge", "buffering")
OPERATOR_CHANGES = ("refuse", "accept")
FETCH_FROM = ("executors", "checkpoint")
COMBINE = ("auto", "always", "never")
STRATEGIES = ("operator-set-cloud", "operator-cloud")
PLANNED_STRATEGIES = ("query-cloud",)
"""Strategies of StreamCloud that `explain(mode="cost")` compares, but that no query can run yet."""


@dataclass(frozen=True)
class Config:
    """How a query is run; none of these changes its results."""

    instances: int = 0
    """Parallel parts of each stateful operator; 0 means one per core."""
    instancesOf: str = ""
    """... and where operators differ, by their names: ``aggregate=4,join=2``."""
    strategy: str = "operator-set-cloud"
    """How the query is cut into subqueries: operator-set-cloud or operator-cloud. The first is right for nearly all queries."""
    idleSeconds: float = 300.0
    """A source without rows for so long, while others have some, no longer holds their watermark back; 0: it does for ever, as in Spark."""
    versionsToKeep: int = 10
    """Versions that stay readable; older ones are removed."""
    durable: bool = True
    """Sync files to disk before a version is committed; off, a crash of the machine (not of the process) may lose versions."""
    combine: str = "auto"
    """Pre-aggregate before the shuffle: auto (when it shrinks the batch), always, never."""
    depthMax: int = 4
    """Runs over one slot before neighbours are merged."""
    compactRows: int = 200_000
    """Rows that compaction may merge per batch and instance, at least."""
    compactFactor: float = 2.5
    """... and as a multiple of the rows that the batch wrote."""
    productGrid: str = "4x4"
    """Rows and columns of the grid that crossJoin deals rows out to: the work is cut into as many cells, and a row goes to one of each
    column (or row). A checkpoint keeps the grid that it began with."""
    readyExecutors: int = -1
    """On a cluster: executors to keep ready beyond those that instances need, requested and released as the query is rescaled; -1:
    executors are the user's, and those there are will be used."""
    handover: str = "auto"
    """How state changes hands when a query is rescaled: state recreation, window recreation, merge, buffering; auto takes the first, unless
    it would take longer than filling a window."""
    workingDirectory: str = "headrace"
    """On a cluster: where executors keep their own copies of state, a folder in each executor's own directory, or an absolute path on a
    local disk; none: they read the checkpoint's files."""
    fetchFrom: str = "executors"
    """On a cluster: where an instance that moves gets its state from: executors (those that have it; what they lack comes from the
    checkpoint), or checkpoint."""
    operatorChanges: str = "refuse"
    """What happens if a checkpoint has no state of an operator of the query, or has state of one that the query no longer has: refuse, or
    accept (the first starts with empty state, without the rows before now; the state of the second is dropped)."""
    logLevel: str = ""
    """What Headrace prints to stderr, in the driver and in Spark's Python workers: debug, info, warning or error. Empty: nothing. It holds
    for the whole process: of several queries, the last one that sets it wins."""
    hashBits: int = 64
    """Bits of the key hash that are used; fewer make different keys collide, for tests."""

    @property
    def grid(self) -> tuple[int, int]:
        """The product's grid: rows and columns."""
        rows, _, columns = self.productGrid.partition("x")
        return int(rows), int(columns)

    def instances_by_operator(self) -> dict[str, int]:
        """What ``instancesOf`` says.

        >>> Config(instancesOf="aggregate=4, join=2").instances_by_operator()
        {'aggregate': 4, 'join': 2}
        """
        found: dict[str, int] = {}
        for pair in filter(None, (part.strip() for part in self.instancesOf.split(","))):
            match = re.fullmatch(r"([^=]*[^=\s])\s*=\s*([0-9]{1,4})", pair)
            if match is None or not 1 <= int(match[2]) <= 4096:
                raise _bad("instancesOf", "operator=number, such as aggregate=4, the number from 1 to 4096", repr(pair))
            if match[1] in found:
                raise _bad("instancesOf", "each operator once", f"{match[1]!r} twice")
            found[match[1]] = int(match[2])
        return found

    @classmethod
    def read(cls, *sources: Mapping[str, Any]) -> Config:
        """From option mappings; later ones win. Unknown ``headrace.`` names and bad values are refused."""
        known = {f.name.lower(): f for f in fields(cls)}
        values: dict[str, Any] = {}
        for source in sources:
            for name, value in source.items():
                if not name.lower().startswith(PREFIX):
                    continue
                field = known.get(name[len(PREFIX) :].lower())
                if field is None:
                    raise _unknown(name)
                values[field.name] = _parse(field.name, value, type(field.default))
        config = cls(**values)
        _check(config)
        return config


def _bad(name: str, wanted: str, found: str) -> QueryError:
    return QueryError(where=f"option '{PREFIX}{name}'", wanted=wanted, found=found)


def _unknown(name: str) -> QueryError:
    """With the nearest name there is, for most unknown names are misspelt."""
    names = {(PREFIX + field.name).lower(): PREFIX + field.name for field in fields(Config)}
    near = difflib.get_close_matches(name.lower(), names, n=1)
    hint = f"did you mean {names[near[0]]}?" if near else ""
    return QueryError(where=f"option {name!r}", wanted=f"one of {', '.join(names.values())}", found="an unknown name", hint=hint)


def _parse(name: str, value: Any, kind: type) -> Any:
    """The value by its type. Options come as texts, but also as what a program passes: 2.5 is no whole number, and True is none at all."""
    text = str(value).strip()
    if kind is str:
        return str(value)
    if kind is bool:
        if text.lower() in ("true", "false"):
            return text.lower() == "true"
        raise _bad(name, "true or false", repr(value))
    if kind is int and re.fullmatch(r"[+-]?[0-9]{1,18}", text):
        return int(text)
    if kind is float and re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,3})?", text):
        return float(text)
    low, high = _BOUNDS[name]
    raise _bad(name, f"a {'whole ' if kind is int else ''}number from {low} to {high}", repr(value))


_BOUNDS: dict[str, tuple[float, float]] = {
    "instances": (0, 4096),
    "idleSeconds": (0, 10**9),
    "versionsToKeep": (2, 1_000_000),
    "depthMax": (1, 64),
    "hashBits": (1, 64),
    "compactRows": (1, 10**9),
    "compactFactor": (0, 10**6),
    "readyExecutors": (-1, 10_000),
}
"""Of every option that is a number."""

_CHOICES = {
    "operatorChanges": OPERATOR_CHANGES,
    "strategy": STRATEGIES,
    "handover": HANDOVERS,
    "fetchFrom": FETCH_FROM,
    "combine": COMBINE,
    "logLevel": ("", *LOG_LEVELS),
}


def _check(config: Config) -> None:
    for name, (low, high) in _BOUNDS.items():
        value = getattr(config, name)
        # So that NaN, which is neither less nor more than anything, fails too.
        if not low <= value <= high:
            raise _bad(name, f"a number from {low} to {high}", str(value))
    if config.strategy in PLANNED_STRATEGIES:
        hint = "leave the option out, and set headrace.instances for more instances of every operator"
        found = f"{config.strategy!r}, which is not built yet"
        raise UnsupportedError(where=f"option '{PREFIX}strategy'", wanted=" or ".join(STRATEGIES), found=found, hint=hint)
    for name, choices in _CHOICES.items():
        if getattr(config, name) not in choices:
            raise _bad(name, " or ".join(filter(None, choices)), repr(getattr(config, name)))
    directory = config.workingDirectory
    if not directory.strip() or "\0" in directory or ".." in directory.split("/"):
        raise _bad("workingDirectory", "a folder's name, a path without '..', or none", repr(directory))
    config.instances_by_operator()
    grid = re.fullmatch(r"([1-9][0-9]{0,3})x([1-9][0-9]{0,3})", config.productGrid)
    if grid is None or int(grid[1]) * int(grid[2]) > 4096:
        raise _bad("productGrid", "rows and columns such as '4x4', at most 4096 cells", repr(config.productGrid))
