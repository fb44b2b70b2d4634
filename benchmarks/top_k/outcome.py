"""The order for a lane, its outcome, and the outcome over time: offered, consumed, discarded, latency, instances."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.top_k.offering import Offered

ELASTIC, ONE, SPARK = "elastic", "one instance", "spark"
NAMES = (ONE, ELASTIC, SPARK)
"""The lanes in the order in which they run. The capacity of the first sets the rate for all."""

Ranking = list[tuple[str, int]]
"""Languages with their views, most visited first."""
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Order:
    """The order for a lane."""

    name: str
    folder: Path
    blocks: tuple[Path, ...]
    lines: int
    """Lines in a block, which is a file of the stream."""
    batch_files: int
    buffer_files: int
    closed_s: float
    open_s: float
    window_s: int
    instances_max: int
    rate: float = 0.0
    """Lines per second in the open loop; 0 means `over` times the capacity that the closed loop before has shown."""
    over: float = 1.25
    policy: str = "bottleneck"
    period_s: float = 5.0
    """The interval at which utilisation is reported; SEEP's r."""
    heap_mb: int = 1024
    """The memory of an executor."""


@dataclass(frozen=True)
class Batch:
    """A finished batch: when it began and ended, its lines, and the instances that processed them."""

    id: int
    """Its number in the log of the source, which lists its files."""
    begin_s: float
    end_s: float
    rows: int
    instances: int


@dataclass
class Outcome:
    """The outcome of a lane."""

    name: str
    lines: int
    """Lines in a file."""
    buffer_files: int
    """The number of files that may wait."""
    rate: float
    """Lines per second offered in the open loop."""
    capacity: dict[str, float] = field(default_factory=dict)
    """Lines per second in the closed loops, before and after the open loop."""
    began_s: float = 0.0
    """When the open loop began, by the clock."""
    ended_s: float = 0.0
    offered: list[Offered] = field(default_factory=list)
    """Files offered in the open loop."""
    batches: list[Batch] = field(default_factory=list)
    taken: dict[str, int] = field(default_factory=dict)
    """The batch that read a file."""
    rankings: dict[int, Ranking] = field(default_factory=dict)
    decisions: list[str] = field(default_factory=list)
    late_s: float = 0.0
    wrong: str = ""
    """The first mistake in the rankings; empty if there is none."""

    @property
    def seconds(self) -> float:
        return self.ended_s - self.began_s

    def consumed(self, first: float = 0.0) -> float:
        """Lines of the batches in the open loop from this part of it on. A batch that began earlier counts in part."""
        low = self.began_s + first * self.seconds
        done = [batch for batch in self.batches if batch.begin_s >= self.began_s and low < batch.end_s <= self.ended_s]
        return sum(batch.rows * min(1.0, (batch.end_s - low) / (batch.end_s - batch.begin_s)) for batch in done)

    def discarded(self, first: float = 0.0, last: float = 1.0) -> int:
        """Lines that found the buffer full in this part of the open loop."""
        low, high = (self.began_s + part * self.seconds for part in (first, last))
        return self.lines * sum(not each.name and low <= each.at_s <= high for each in self.offered)

    @property
    def waiting_s(self) -> float:
        """How long the last accepted line waited, from its arrival to the beginning of its batch."""
        begins = {batch.id: batch.begin_s for batch in self.batches}
        last = next(each for each in reversed(self.offered) if each.name)
        return max(0.0, begins[self.taken[last.name]] - last.at_s)

    def grown_s(self, instances: int = 2) -> float | None:
        """When a batch first had this many instances, since the open loop began."""
        return next((b.begin_s - self.began_s for b in self.batches if b.begin_s >= self.began_s and b.instances >= instances), None)

    def latencies(self) -> tuple[Floats, Floats]:
        """For every accepted file: when it came, since the open loop began, and the time until its batch had finished."""
        ends = {batch.id: batch.end_s for batch in self.batches}
        kept = [(each.at_s - self.began_s, ends[self.taken[each.name]] - each.at_s) for each in self.offered if each.name]
        came, took = np.array(kept).reshape(-1, 2).T
        return came, took


@dataclass(frozen=True)
class Series:
    """A lane over time, in steps of equal length."""

    at_s: Floats
    offered: Floats
    consumed: Floats
    discarded: Floats
    """Lines per second."""
    instances: Floats
    """The number in the batch that ran in the middle of the step; None between batches."""


def series(outcome: Outcome, step_s: float = 2.0) -> Series:
    """The open loop over time. The lines of a batch are consumed evenly between its beginning and its end."""
    edges = np.arange(0.0, max(step_s, outcome.seconds) + 1e-9, step_s)
    came = np.array([each.at_s for each in outcome.offered]) - outcome.began_s
    lost = np.array([not each.name for each in outcome.offered])
    offered = np.histogram(came, edges)[0] * outcome.lines / step_s
    discarded = np.histogram(came[lost], edges)[0] * outcome.lines / step_s
    consumed, instances = np.zeros(len(edges) - 1), np.full(len(edges) - 1, np.nan)
    middle = (edges[1:] + edges[:-1]) / 2
    for batch in outcome.batches:
        begin, end = batch.begin_s - outcome.began_s, batch.end_s - outcome.began_s
        inside = np.clip(np.minimum(edges[1:], end) - np.maximum(edges[:-1], begin), 0, None)
        consumed += batch.rows * inside / max(end - begin, 1e-9) / step_s
        instances[(begin <= middle) & (middle < end)] = batch.instances
    return Series(middle, offered, consumed, discarded, instances)
