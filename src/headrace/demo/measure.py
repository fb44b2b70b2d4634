"""Measurements of the demo: one sample per batch, and figures computed from them.

The latency of a row is the time from the moment its file became visible until Spark had finished the batch that read it. Files are
read in order of arrival, so the n-th row that arrived is the n-th row that was processed. No row needs to carry a timestamp.
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
"""The phases of a batch that are shown; the rest of the batch is one more."""

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
    """When Spark began it, by the clock."""
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
    """A sample from the progress of a query; None while Spark's part of the progress is missing."""
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
    """Latencies, each with the number of rows that had it."""

    ms: Floats
    rows: Floats

    def percentile(self, share: float) -> float | None:
        """The latency that this share of the rows did not exceed.

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
    """By version, the latencies of the rows that it read, without the first `skip_rows` rows."""
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
    """The same batches as the query's policy gets them."""
    warm_rows: int = 0
    """The number of rows in warm-up batches. They count for the answer, but not for any figure."""
    warm_batches: int = 0

    def update(self) -> None:
        known = self.samples[-1].version if self.samples else -1
        for progress in self.recent():
            if progress["headrace"]["version"] <= known:
                continue
            sample = read_progress(progress)
            if sample is None:
                # Later batches must wait for this one, because rows are counted in order.
                break
            self.samples.append(sample)
            self.batches.append(Batch.of(BatchReport.from_json(progress["headrace"])))

    def warmed_up(self) -> None:
        """Declare all batches so far as warm-up."""
        self.warm_batches = len(self.samples)
        self.warm_rows = sum(s.rows for s in self.samples)

    @property
    def measured(self) -> list[BatchSample]:
        return self.samples[self.warm_batches :]

    @property
    def rows(self) -> int:
        """The number of all rows read, warm-up included."""
        return sum(s.rows for s in self.samples)

    def utilisation(self, period_s: float) -> list[tuple[float, float]]:
        """The average utilisation of the instances over time, as the query's policy gets it."""
        found = []
        for count in range(self.warm_batches, len(self.batches)):
            at_s = self.batches[count].end_s
            seen = observe(self.batches[: count + 1], at_s, period_s)
            if seen is not None:
                found.append((at_s, float(seen.operators[0].cpu.mean())))
        return found

    def instances_at(self, at_s: float) -> int:
        """The number of instances in the newest batch at that time."""
        return next((len(sample.instances) for sample in reversed(self.samples) if sample.end_s <= at_s), 0)

    def latencies(self, arrivals: list[Arrival]) -> dict[int, Latencies]:
        return latencies(arrivals, self.samples, self.warm_rows)
