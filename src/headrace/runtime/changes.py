"""What a change of a query does to its state: which operators keep it, which start empty, which are computed from history, which go."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.ids import OperatorId

REFUSE, ACCEPT, BACKFILL = "refuse", "accept", "backfill"


@dataclass(frozen=True)
class Policy:
    """What the user allows when a query has changed since its checkpoint was written."""

    mode: str = REFUSE
    """``refuse``: only changes that lose nothing. ``accept``: new operators and columns start empty, and removed ones go. ``backfill``: the
    same, but what is new is computed from the rows that the sources had so far."""
    renamed: Mapping[str, str] = field(default_factory=dict)
    """New names of columns, by their old ones."""
    rebuilt: frozenset[str] = frozenset()
    """Operators whose state is computed from history although it could be kept."""
    explicit: bool = False
    """True if the user has asked for the change with ``replace``, which reports it; otherwise warnings do."""

    @property
    def backfills(self) -> bool:
        """True if what is new is computed from history."""
        return self.mode == BACKFILL

    @property
    def allows_loss(self) -> bool:
        """True if state may be dropped or start empty."""
        return self.mode != REFUSE


@dataclass(frozen=True)
class Changes:
    """What becomes of each operator's state. Operators are named by their ids."""

    kept: tuple[OperatorId, ...] = ()
    """Operators that go on with their state as it is."""
    evolved: Mapping[OperatorId, tuple[str, ...]] = field(default_factory=dict)
    """Operators that go on with their state in other columns, and what changes."""
    backfilled: tuple[OperatorId, ...] = ()
    """Operators whose state is computed from the sources' history."""
    empty: tuple[OperatorId, ...] = ()
    """New operators that start with empty state."""
    dropped: tuple[OperatorId, ...] = ()
    """Operators that the query no longer has."""

    @property
    def are_there(self) -> bool:
        """True if any state changes."""
        return bool(self.evolved or self.backfilled or self.empty or self.dropped)


UNCHANGED = Changes()
"""The same query as before, or the first one on its checkpoint."""
