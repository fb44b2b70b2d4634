"""Figures about faults: how long until results were right again, and what undisturbed batches were like."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from headrace.bench.model import LaneResult, MeasuredBatch


@dataclass(frozen=True)
class Recovered:
    """One fault, and what came after it."""

    recovery_s: float
    """From the fault to the results of the first batch that began after it."""
    disturbed_ms: float
    """How long the batch took in which the fault happened. If it happened between two batches, it is the batch after it."""
    usual_ms: float
    """The median of the undisturbed batches in the same turn."""
    lost_s: float | None
    """From the fault until Spark no longer counts on the executor."""
    replaced_s: float | None
    """From the fault until there are as many executors as before."""
    steady_s: float | None
    """From the fault until batches take as long as usual; None if they still did not when the benchmark went on."""

    own: tuple[dict[str, Any], ...] = ()
    """What Headrace says about the disturbed batch and the ones after it, until results were right."""

    @property
    def times_longer(self) -> float:
        return self.disturbed_ms / self.usual_ms

    def to_json(self) -> dict[str, Any]:
        seconds = {"recovery_s": self.recovery_s, "lost_s": self.lost_s, "replaced_s": self.replaced_s, "steady_s": self.steady_s}
        rounded = {name: None if value is None else round(value, 3) for name, value in seconds.items()}
        times = {"disturbed_ms": round(self.disturbed_ms, 1), "usual_ms": round(self.usual_ms, 1)}
        return {**rounded, **times, **({"batches": list(self.own)} if self.own else {})}


def notes_of(result: LaneResult) -> list[dict[str, Any]]:
    """What the lane noted about its faults."""
    return [note for progress in result.headrace for note in progress.get("notes", [])]


def recoveries(result: LaneResult) -> list[Recovered]:
    """One entry per fault."""
    found = (recovered(result.turns, note) for note in notes_of(result))
    return [each for each in found if each is not None]


def recovered(turns: Sequence[Sequence[MeasuredBatch]], note: dict[str, Any]) -> Recovered | None:
    """What came after one fault; None if its turn was cut short."""
    struck_ms = note["struck_ms"]
    delivered = {int(batch): at_ms for batch, at_ms in note["delivered"]}
    for batches in turns:
        usual = [batch.duration_ms for batch in before(batches, struck_ms)]
        first = next((batch for batch in batches if batch.start_ms > struck_ms), None)
        if not usual or first is None or first.id not in delivered:
            continue
        disturbed = next((batch for batch in batches if batch.start_ms <= struck_ms <= batch.end_ms), first)
        ends_ms = (delivered[first.id], note.get("lost_ms"), note.get("replaced_ms"), note.get("steady_ms"))
        recovery_s, lost_s, replaced_s, steady_s = (None if at is None else (at - struck_ms) / 1000 for at in ends_ms)
        assert recovery_s is not None
        own = tuple(each for each in note["batches"] if disturbed.id <= each["id"] <= first.id)
        return Recovered(recovery_s, disturbed.duration_ms, median(usual), lost_s, replaced_s, steady_s, own)
    return None


def before(batches: Sequence[MeasuredBatch], struck_ms: float) -> list[MeasuredBatch]:
    """The batches of a turn that ended before a fault in it."""
    return [batch for batch in batches if batch.end_ms < struck_ms]


def steady_rate(result: LaneResult) -> float | None:
    """Rows a second in the undisturbed part of each turn: all of it, or until its fault."""
    struck_ms = [note["struck_ms"] for note in notes_of(result)]
    rows, took_ms = 0, 0.0
    for batches in result.turns:
        faults = [at for at in struck_ms if batches and batches[0].start_ms <= at <= batches[-1].end_ms]
        calm = before(batches, min(faults)) if faults else list(batches)
        if calm:
            rows += sum(batch.rows for batch in calm)
            took_ms += calm[-1].end_ms - calm[0].start_ms
    return round(rows * 1000 / took_ms, 1) if took_ms else None


def spread(values: Sequence[float]) -> dict[str, Any] | None:
    """Median, least, greatest and all values; None if there are none."""
    if not values:
        return None
    rounded = [round(value, 3) for value in values]
    return {"median": round(median(values), 3), "min": min(rounded), "max": max(rounded), "each": rounded}
