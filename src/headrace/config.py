"""Settings of a query, typed; given as ``option("headrace.NAME", value)`` on the writer or as Spark settings of the same name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from headrace.errors import QueryError

PREFIX = "headrace."
HANDOVERS = ("auto", "state recreation", "window recreation", "merge", "buffering")
FETCH_FROM = ("executors", "checkpoint")
STRATEGIES = ("operator-set-cloud", "operator-cloud", "query-cloud")


@dataclass(frozen=True)
class Config:
    """How a query is run; none of these changes its results."""

    instances: int = 0
    """Parallel parts of each stateful operator; 0 means one per core."""
    instancesOf: str = ""
    """... and where operators differ, by their names: ``aggregate=4,join=2``."""
    strategy: str = "operator-set-cloud"
    """How the query is cut into subqueries: operator-set-cloud, operator-cloud, query-cloud. The first is right for nearly all queries."""
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
            name, _, number = pair.partition("=")
            if not number.strip().isdigit() or not 1 <= int(number) <= 4096:
                raise QueryError(where=f"option '{PREFIX}instancesOf'", wanted="operator=number, such as aggregate=4", found=repr(pair))
            found[name.strip()] = int(number)
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
                    names = ", ".join(PREFIX + f.name for f in fields(cls))
                    raise QueryError(where=f"option {name!r}", wanted=f"one of {names}", found="an unknown name")
                values[field.name] = _parse(name, value, type(field.default))
        config = cls(**values)
        _check(config)
        return config


def _parse(name: str, value: Any, kind: type) -> Any:
    try:
        if kind is bool:
            return {"true": True, "false": False}[str(value).lower()]
        return kind(value)
    except (ValueError, KeyError) as bad:
        raise QueryError(where=f"option {name!r}", wanted=f"a value of type {kind.__name__}", found=repr(value)) from bad


_BOUNDS = {
    "instances": (0, 4096),
    "versionsToKeep": (2, 1_000_000),
    "depthMax": (1, 64),
    "hashBits": (1, 64),
    "compactRows": (1, 10**9),
    "readyExecutors": (-1, 10_000),
}


def _check(config: Config) -> None:
    for name, (low, high) in _BOUNDS.items():
        value = getattr(config, name)
        if not low <= value <= high:
            raise QueryError(where=f"option '{PREFIX}{name}'", wanted=f"a number from {low} to {high}", found=str(value))
    if config.strategy not in STRATEGIES:
        raise QueryError(where=f"option '{PREFIX}strategy'", wanted=" or ".join(STRATEGIES), found=repr(config.strategy))
    if config.handover not in HANDOVERS:
        raise QueryError(where=f"option '{PREFIX}handover'", wanted=" or ".join(HANDOVERS), found=repr(config.handover))
    if config.fetchFrom not in FETCH_FROM:
        raise QueryError(where=f"option '{PREFIX}fetchFrom'", wanted=" or ".join(FETCH_FROM), found=repr(config.fetchFrom))
    if not config.workingDirectory.strip():
        wanted = "a folder's name, a path, or none"
        raise QueryError(where=f"option '{PREFIX}workingDirectory'", wanted=wanted, found=repr(config.workingDirectory))
    if config.idleSeconds < 0:
        raise QueryError(where=f"option '{PREFIX}idleSeconds'", wanted="0 or more seconds", found=str(config.idleSeconds))
    config.instances_by_operator()
    if config.combine not in ("auto", "always", "never"):
        raise QueryError(where=f"option '{PREFIX}combine'", wanted="auto, always or never", found=repr(config.combine))
    grid = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", config.productGrid)
    if grid is None or int(grid[1]) * int(grid[2]) > 4096:
        wanted = "rows and columns such as '4x4', at most 4096 cells"
        raise QueryError(where=f"option '{PREFIX}productGrid'", wanted=wanted, found=repr(config.productGrid))
