"""The record of a simulation: time series, a histogram of latencies, all decisions, events and violations.

Two runs of the same plan with the same seed have the same digest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from headrace.control.decisions import Decision
from headrace.control.observation import Floats

_EDGES = 10.0 ** np.linspace(-4, 5, 1801)
"""The bounds of the histogram's bins, in seconds: 200 per factor of 10, so that percentiles are exact to about 1%."""


@dataclass(frozen=True)
class Event:
    """Something that happened, such as ``scaled out``, ``failed`` or ``recovered``, with a number that depends on the kind."""

    at_s: float
    what: str
    operator: str = ""
    value: float = 0.0


@dataclass(frozen=True)
class Violation:
    """An invariant that did not hold, and the checker that found it."""

    at_s: float
    checker: str
    what: str


class Latencies:
    """A histogram of latencies, weighted by rows."""

    def __init__(self) -> None:
        self.counts = np.zeros(len(_EDGES) + 1)

    def add(self, latencies_s: Floats, rows: Floats) -> None:
        """Count rows with these latencies. Entry i of ``rows`` is the number of rows with latency i."""
        np.add.at(self.counts, np.searchsorted(_EDGES, latencies_s), rows)

    def merge(self, other: Latencies) -> None:
        self.counts += other.counts

    def percentile(self, q: float) -> float:
        """The latency, in seconds, that q percent of the rows do not exceed. NaN if there are no rows.

        >>> seen = Latencies()
        >>> seen.add(np.array([0.1, 1.0]), np.array([90.0, 10.0]))
        >>> round(seen.percentile(50), 2), round(seen.percentile(99), 2)
        (0.1, 1.0)
        """
        total = self.counts.sum()
        if total <= 0:
            return float("nan")
        at = int(np.searchsorted(np.cumsum(self.counts), total * q / 100))
        return float(_EDGES[min(at, len(_EDGES) - 1)])


@dataclass
class Recorder:
    """Collects the record while the simulation runs."""

    rows: list[dict[str, float]] = field(default_factory=list)
    latencies: Latencies = field(default_factory=Latencies)
    decisions: list[tuple[float, Decision]] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    violations: list[Violation] = field(default_factory=list)
    sample: Latencies = field(default_factory=Latencies)

    def sampled(self, figures: dict[str, float]) -> None:
        """End a sample: store its figures, with the percentiles of its latencies."""
        for q in (50, 95, 99):
            figures[f"latency_p{q}_s"] = self.sample.percentile(q)
        self.rows.append(figures)
        self.latencies.merge(self.sample)
        self.sample = Latencies()

    def finished(self) -> Trace:
        """The whole record as a trace."""
        names = list(dict.fromkeys(name for row in self.rows for name in row))
        series = {name: np.array([row.get(name, np.nan) for row in self.rows]) for name in names}
        self.latencies.merge(self.sample)
        return Trace(series, self.latencies, tuple(self.decisions), tuple(self.events), tuple(self.violations))


@dataclass(frozen=True, eq=False)
class Trace:
    """The record of a whole run."""

    series: Mapping[str, Floats]
    """Time series by name, with one value per sample: at_s, rows_in_per_s, rows_out_per_s, rows_waiting, rows_discarded, working, ready,
    starting, latency_p50_s, latency_p95_s, latency_p99_s, and instances.NAME, waiting.NAME of each operator."""
    latencies: Latencies
    """The latencies of all rows of the run."""
    decisions: tuple[tuple[float, Decision], ...]
    """Each decision with its time. Decisions to do nothing are left out."""
    events: tuple[Event, ...]
    violations: tuple[Violation, ...]

    def __getitem__(self, name: str) -> Floats:
        return self.series[name]

    def values(self, what: str) -> list[float]:
        """The values of all events of a kind, such as ``recovered``."""
        return [event.value for event in self.events if event.what == what]

    def digest(self) -> str:
        """A hash of everything in the trace."""
        made = hashlib.sha256()
        for name in sorted(self.series):
            made.update(name.encode())
            made.update(np.ascontiguousarray(self.series[name]).tobytes())
        made.update(self.latencies.counts.tobytes())
        for part in (*self.decisions, *self.events, *self.violations):
            made.update(repr(part).encode())
        return made.hexdigest()[:16]
