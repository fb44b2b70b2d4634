"""What the demo saw: one sample per batch, and figures made of them.

A row's latency from arrival is the time from the moment its file became visible until Spark had finished the batch that took it. Files
are taken in the order in which they came, so the n-th row that arrived is the n-th row that was processed: no row need carry a clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.control.batch_report import BatchReport
from headrace.control.observing import Batch, observe
from headrace.demo.calls import Arrival

PHASES = ("plan", "job", "flush", "commit", "deliver", "other")
"""Of a batch: the loop's phases that matter, and all the rest of it."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class InstanceSample:
    """One instance in one batch."""

    instance: int
    rows: int
    cpu_s: float
    state_rows: int


@dataclass(frozen=True)
class BatchSample:
    """One batch."""

    version: int
    begin_s: float
    """When Spark began it, by the wall clock."""
    end_s: float
    rows: int
    rows_out: int
    phases_ms: dict[str, float]
    state_rows: int
    state_bytes: int
    runs: int
    watermark_ms: int
    instances: tuple[InstanceSample, ...]

    @property
    def batch_ms(self) -> float:
        return (self.end_s - self.begin_s) * 1000


def read_progress(progress: dict[str, Any]) -> BatchSample | None:
    """A sample from a query's progress; None while Spark has not said its part about the batch."""
    took = progress.get("durationMs", {}).get("triggerExecution")
    if took is None:
        return None
    ours, state = progress["headrace"], progress["stateOperators"][0]
    begin_s = datetime.fromisoformat(progress["timestamp"]).timestamp()
    phases = {name: float(ours["phasesMs"].get(name, 0.0)) for name in PHASES[:-1]}
    phases["other"] = max(0.0, float(took) - sum(phases.values()))
    return BatchSample(
        version=int(ours["version"]),
        begin_s=begin_s,
        end_s=begin_s + took / 1000,
        rows=sum(i["rows"] for i in ours["instances"]),
        rows_out=int(ours["rowsOut"]),
        phases_ms=phases,
        state_rows=int(state["numRowsTotal"]),
        state_bytes=int(state["memoryUsedBytes"]),
        runs=int(state["customMetrics"]["runs"]),
        watermark_ms=int(ours["watermarkMs"]),
        instances=tuple(InstanceSample(i["instance"], i["rows"], i["cpuSeconds"], i["stateRows"]) for i in ours["instances"]),
    )


@dataclass(frozen=True)
class Latencies:
    """Latencies from arrival, each with the rows that had it."""

    ms: Floats
    rows: Floats

    def percentile(self, share: float) -> float | None:
        """The latency that this share of the rows stayed at or below.

        >>> Latencies(np.array([10.0, 500.0]), np.array([90.0, 10.0])).percentile(0.9)
        10.0
        >>> Latencies(np.array([10.0, 500.0]), np.array([90.0, 10.0])).percentile(0.95)
        500.0
        """
        if not len(self.ms):
            return None
        order = np.argsort(self.ms, kind="stable")
        reached = np.cumsum(self.rows[order]) / self.rows.sum()
        return float(self.ms[order][min(int(np.searchsorted(reached, share - 1e-12)), len(order) - 1)])


def latencies(arrivals: list[Arrival], samples: list[BatchSample], skip_rows: int = 0) -> dict[int, Latencies]:
    """Per version, the latencies of the rows it took; the first `skip_rows` rows are left out."""
    found: dict[int, tuple[list[float], list[float]]] = {}
    ends = np.cumsum([s.rows for s in samples]) if samples else np.zeros(0)
    done = 0
    for arrival in arrivals:
        first, last = done, done + arrival.rows
        done = last
        if first < skip_rows:
            continue
        while first < last:
            at = int(np.searchsorted(ends, first, "right"))
            if at >= len(samples):
                return {v: Latencies(np.array(ms), np.array(rows)) for v, (ms, rows) in found.items()}
            upto = min(last, int(ends[at]))
            ms, rows = found.setdefault(samples[at].version, ([], []))
            ms.append(max(0.0, samples[at].end_s - arrival.at_s) * 1000)
            rows.append(float(upto - first))
            first = upto
    return {v: Latencies(np.array(ms), np.array(rows)) for v, (ms, rows) in found.items()}


def together(parts: Iterable[Latencies]) -> Latencies:
    every = list(parts)
    if not every:
        return Latencies(np.zeros(0), np.zeros(0))
    return Latencies(np.concatenate([p.ms for p in every]), np.concatenate([p.rows for p in every]))


@dataclass
class Recorder:
    """Collects samples while the query runs."""

    recent: Callable[[], Sequence[dict[str, Any]]]
    """The query's recent progress."""
    samples: list[BatchSample] = field(default_factory=list)
    batches: list[Batch] = field(default_factory=list)
    """The same as the query's policy sees them."""
    warm_rows: int = 0
    """Rows of the batches that warmed Spark up: they count in nothing but the answer."""
    warm_batches: int = 0

    def update(self) -> None:
        known = self.samples[-1].version if self.samples else -1
        for progress in self.recent():
            if progress["headrace"]["version"] <= known:
                continue
            sample = read_progress(progress)
            if sample is None:
                # Later batches must wait for it: rows are counted in order.
                break
            self.samples.append(sample)
            self.batches.append(Batch.of(BatchReport.from_json(progress["headrace"])))

    def warmed_up(self) -> None:
        """What was seen so far was for warming up."""
        self.warm_batches = len(self.samples)
        self.warm_rows = sum(s.rows for s in self.samples)

    @property
    def measured(self) -> list[BatchSample]:
        return self.samples[self.warm_batches :]

    @property
    def rows(self) -> int:
        """All rows taken, those for warming up too."""
        return sum(s.rows for s in self.samples)

    def utilisation(self, period_s: float) -> list[tuple[float, float]]:
        """When which average utilisation of instances was seen, as the query's policy sees it."""
        found = []
        for count in range(self.warm_batches, len(self.batches)):
            at_s = self.batches[count].end_s
            seen = observe(self.batches[: count + 1], at_s, period_s)
            if seen is not None:
                found.append((at_s, float(seen.operators[0].cpu.mean())))
        return found

    def instances_at(self, at_s: float) -> int:
        """How many instances the newest batch had by then."""
        return next((len(sample.instances) for sample in reversed(self.samples) if sample.end_s <= at_s), 0)

    def latencies(self, arrivals: list[Arrival]) -> dict[int, Latencies]:
        return latencies(arrivals, self.samples, self.warm_rows)
