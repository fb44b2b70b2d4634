"""What a version dropped: part of its manifest and of its record in the journal, so that a replay drops the same rows.

A row of a shed stream is kept if ``pmod(xxhash64(identity, seed), 1000000) < threshold``. Rows that are shed by their worth are kept if
they are worth more than ``cut``; of those that are worth exactly that, the threshold decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NewType

from headrace.errors import require

ShedId = NewType("ShedId", str)
"""The name of a place where rows may be dropped: ``shed``, ``shed-2``, ..., in the order of the query."""

SCALE = 1_000_000
"""Hashes are compared modulo this number."""


@dataclass(frozen=True)
class Drop:
    """What one place drops."""

    threshold: int = SCALE
    """Rows whose hash is below this are kept."""
    cut: float | None = None
    """Rows that are worth more than this are kept, and those that are worth less are dropped. None if rows have no worth."""

    def __post_init__(self) -> None:
        require(0 <= self.threshold <= SCALE, f"a threshold from 0 to {SCALE}, not {self.threshold}")

    @property
    def keeps_all(self) -> bool:
        return self.threshold == SCALE and self.cut is None


KEEP_ALL = Drop()


@dataclass(frozen=True)
class Drops:
    """What a version dropped at all places, and by which plan."""

    plan: int
    places: Mapping[ShedId, Drop] = field(default_factory=dict)
    """Places that keep all rows are left out."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "places", MappingProxyType(dict(self.places)))

    def at(self, place: ShedId) -> Drop:
        return self.places.get(place, KEEP_ALL)

    def to_json(self) -> dict[str, Any]:
        """As a manifest has it.

        >>> Drops(3, {ShedId("shed"): Drop(640_000)}).to_json()
        {'plan': 3, 'places': {'shed': {'threshold': 640000, 'cut': None}}}
        """
        return {"plan": self.plan, "places": {name: {"threshold": each.threshold, "cut": each.cut} for name, each in self.places.items()}}

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Drops:
        places = {ShedId(name): Drop(int(each["threshold"]), each["cut"]) for name, each in body["places"].items()}
        return cls(int(body["plan"]), places)


@dataclass(frozen=True)
class Counted:
    """What one place did in a batch."""

    arrived: int
    kept: int
    worths: tuple[float, ...] = ()
    """The percentiles of the worth of the rows that arrived, from 0 to 100; empty if unknown."""
