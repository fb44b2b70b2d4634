"""What is worth a line of its own in a query's history: changes, decisions, faults and what was done about them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.runtime.history_files import Line
from headrace.runtime.progress import BatchProgress

HOLD_MS = 100.0
"""Waits for the checkpoint's folder that are shorter are not told."""


@dataclass
class Seen:
    """What the last batches said, so that only news are told."""

    checkpoint: int | None = None
    executors: frozenset[str] = field(default_factory=frozenset)
    missing: int = 0
    missing_since_s: float = 0.0
    plan: Any = None


def events_of(progress: BatchProgress, ours: Mapping[str, Any], seen: Seen) -> list[Line]:
    """The events of a batch. ``ours`` is its progress as JSON."""
    begin_s, end_s, _ = progress.times_s
    at, version = {"t": round(begin_s, 3)}, {"v": progress.version}
    found: list[Line] = [{"t": each["atS"], "kind": "decision", **version, **each} for each in ours["decisions"]]
    found += [{**at, "kind": "change", **version, **each} for each in ours["changes"]]
    for each in ours["interruptions"]:
        # What was lost is recovered when the batch, which ran again, is delivered.
        recovered = max(0.0, ours["batchMs"] - each["afterMs"])
        found.append({**at, "kind": "lost", **version, **each, "recoveredMs": round(recovered, 1)})
    if ours["versionsRebuilt"]:
        found.append({**at, "kind": "rebuilt", **version, "versions": ours["versionsRebuilt"]})
    found += [{**at, "kind": "gap", **version, **each} for each in ours["gaps"]]
    if ours["storeWaitMs"] > HOLD_MS:
        found.append({**at, "kind": "store", **version, "waitedMs": ours["storeWaitMs"]})
    ended = {"t": round(end_s, 3)}
    taken = ours["checkpoint"]
    if taken is not None and taken["version"] != seen.checkpoint:
        seen.checkpoint = taken["version"]
        at_s = round(end_s - taken["ageMs"] / 1000, 3)
        found.append({"t": at_s, "kind": "checkpoint", **{name: value for name, value in taken.items() if name != "ageMs"}})
    homes = frozenset(home for each in ours["routing"].values() for home in each["homes"])
    if homes != seen.executors:
        if seen.executors or homes:
            came, gone = sorted(homes - seen.executors), sorted(seen.executors - homes)
            found.append({**at, "kind": "homes", **version, "came": came, "gone": gone})
        seen.executors = homes
    return found + _redundancy(ours["replicas"], ended, seen) + _shedding(ours["shedding"], at, seen)


def _redundancy(replicas: Mapping[str, Any] | None, ended: Line, seen: Seen) -> list[Line]:
    missing = 0 if replicas is None else replicas["missing"]
    before, seen.missing = seen.missing, missing
    if missing and not before:
        seen.missing_since_s = ended["t"] - (replicas or {}).get("missingMs", 0) / 1000
        return [{**ended, "kind": "redundancy", "missing": missing}]
    if before and not missing:
        return [{**ended, "kind": "redundancy", "missing": 0, "lastedMs": round((ended["t"] - seen.missing_since_s) * 1000)}]
    return []


def _shedding(shed: Mapping[str, Any] | None, at: Line, seen: Seen) -> list[Line]:
    plan = None if shed is None else shed["plan"]
    if plan == seen.plan:
        return []
    seen.plan = plan
    return [{**at, "kind": "shedding", "plan": plan, "sinks": [] if shed is None else shed["sinks"]}]
