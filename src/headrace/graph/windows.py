"""Windows as the user asked for them: time windows, session windows, and windows of counted rows."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pyspark.sql import Column


@dataclass(frozen=True)
class WindowSpec:
    """``F.window(...)``: a tumbling or sliding time window."""

    name: str
    time: Column
    size_us: int
    advance_us: int
    offset_us: int


@dataclass(frozen=True)
class SessionSpec:
    """``F.session_window(...)``: rows of a key that follow one another within a gap."""

    name: str
    time: Column
    gap_us: int | None
    """The gap; None if each row has its own."""
    until: Column | None = None
    """If each row has its own gap: its time plus the gap."""


@dataclass(frozen=True)
class CountSpec:
    """A count window, made by ``hr.count_window``: ``size`` rows of a key, beginning at every ``advance``-th row."""

    name: str
    size: int
    advance: int
    by_arrival: bool

    def alias(self, name: str) -> CountSpec:
        """The same window, with ``name`` as its column in the result."""
        return replace(self, name=name)


Windows = WindowSpec | SessionSpec | CountSpec
