"""What a batch did, for people and for policies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from headrace.control.governor import Entry
from headrace.ids import OperatorId, Version
from headrace.runtime.elastic import Change
from headrace.runtime.reports import InstanceReport
from headrace.state.manifest import Manifest
from headrace.state.routing import Routing


@dataclass(frozen=True)
class BatchProgress:
    """One batch, as the loop saw it."""

    version: Version
    times_s: tuple[float, float, float]
    """When the batch began and ended, and when the one before it began."""
    replayed: bool
    routing: dict[OperatorId, Routing]
    phases_ms: dict[str, float]
    reports: dict[OperatorId, list[InstanceReport]]
    """By operator."""
    manifest: Manifest
    backlog: dict[str, Any]
    readers: tuple[OperatorId, ...]
    """Operators that read sources."""
    changes: tuple[Change, ...]
    """Of the routing, since the batch before."""
    homes: dict[OperatorId, tuple[str, ...]] = field(default_factory=dict)
    """The executors that instances live on, by operator; nothing where there are none."""
    decisions: tuple[Entry, ...] = ()
    """Of the query's policy, since the batch before."""
    inputs: Mapping[OperatorId, tuple[str, ...]] = field(default_factory=dict)
    """Per operator: those that it reads, and a name for all that it reads from sources."""
    trigger_s: float = 0.0
    """At which interval batches are to begin; 0: one after the other."""

    @property
    def rows(self) -> int:
        """Rows that came in from the sources."""
        return max((sum(r.rows for r in self.reports.get(op, [])) for op in self.readers), default=0)

    def operators(self) -> list[dict[str, Any]]:
        """In the form of Spark's ``stateOperators``."""
        names = dict.fromkeys(store.operator for store in self.manifest.stores)
        return [self._operator(name) for name in names]

    def _operator(self, name: OperatorId) -> dict[str, Any]:
        runs = self.manifest.runs_of(name)
        reports = self.reports.get(name, [])
        return {
            "operatorName": name,
            # Where keys are not counted, rows of one key and pane in several runs count several times.
            "numRowsTotal": self.manifest.counters.get(f"keys.{name}", sum(ref.rows for ref in runs)),
            "numRowsUpdated": sum(r.keys for r in reports),
            "numRowsRemoved": 0,
            "numRowsDroppedByWatermark": sum(r.rows_late for r in reports),
            "memoryUsedBytes": sum({ref.file: ref.bytes for ref in runs}.values()),
            "numShufflePartitions": self.routing[name].instances,
            "numStateStoreInstances": self.routing[name].instances,
            "customMetrics": {"runs": len({ref.file for ref in runs})},
        }

    def headrace(self) -> dict[str, Any]:
        """What Spark's progress does not have."""
        reports = [r for each in self.reports.values() for r in each]
        staged = sum(s.rows for s in self.manifest.staged)
        late = sum(r.rows_late for op in self.readers for r in self.reports.get(op, []))
        begin_s, end_s, _ = self.times_s
        return {
            "version": self.version,
            "replayed": self.replayed,
            "instances": [_instance(r) for r in reports],
            "phasesMs": {k: round(v, 2) for k, v in self.phases_ms.items()},
            "batchMs": round((end_s - begin_s) * 1000, 2),
            "rows": self.rows,
            "rowsOut": max(staged, sum(r.rows_out for r in reports)),
            "shareDelivered": 1.0 if not self.rows else 1.0 - late / self.rows,
            "backlog": self.backlog,
            "watermarkMs": self.manifest.watermark_ms,
            "idleSources": list(self.manifest.watermark_idle),
            "routing": {
                name: {"epoch": r.epoch, "instances": r.instances, "homes": list(self.homes.get(name, ()))}
                for name, r in self.routing.items()
            },
            "changes": [change.to_json() for change in self.changes],
            "decisions": [entry.to_json() for entry in self.decisions],
            "observation": self._observation(),
        }

    def _observation(self) -> dict[str, Any]:
        """What else a policy must know, now or when the progress is replayed: see ``control/observing.py``."""
        begin_s, end_s, _ = self.times_s
        return {
            "beginS": round(begin_s, 3),
            "endS": round(end_s, 3),
            "triggerS": self.trigger_s,
            "inputs": {name: list(each) for name, each in self.inputs.items()},
            "routing": {name: routing.to_json() for name, routing in self.routing.items()},
        }

    def event_time(self) -> dict[str, str]:
        if not self.manifest.watermark_nodes_ms:
            return {}
        moment = datetime.fromtimestamp(self.manifest.watermark_ms / 1000, UTC)
        return {"watermark": moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"}

    def latency(self, event_time: dict[str, str]) -> dict[str, float | None]:
        """How old rows were when their results were delivered; ``event_time`` is Spark's max, min and avg of the batch.

        From arrival: a row came after the batch before was cut and before this one was, so its age lies between two bounds.
        """
        begin_s, end_s, previous_s = self.times_s
        known = {name: datetime.fromisoformat(text).timestamp() for name, text in event_time.items() if name in ("max", "min", "avg")}
        ages = {name: round((end_s - moment) * 1000, 1) for name, moment in known.items()}
        return {
            "arrivalMax": round((end_s - previous_s) * 1000, 1),
            "arrivalMin": round((end_s - begin_s) * 1000, 1),
            "eventTimeMax": ages.get("min"),
            "eventTimeMean": ages.get("avg"),
            "eventTimeMin": ages.get("max"),
        }


def _instance(report: InstanceReport) -> dict[str, Any]:
    return {
        "operator": report.operator,
        "instance": report.instance,
        "rows": report.rows,
        "rowsShuffled": report.rows_shuffled,
        "rowsLate": report.rows_late,
        "rowsOut": report.rows_out,
        "keysTouched": report.keys,
        "cpuSeconds": round(report.cpu_s, 4),
        "wallSeconds": round(report.wall_s, 4),
        "phasesMs": {k: round(v, 2) for k, v in report.phases_ms.items()},
        "stateRows": report.state_rows,
        "stateBytes": report.state_bytes,
        "runs": len(report.refs),
        "rowsCompacted": report.rows_compacted,
        "privateBytes": report.private_bytes,
        "rowsPerSlot": dict(report.rows_per_slot),
        "host": report.host,
        "executor": report.executor,
        "bytesFetched": report.fetched_bytes,
    }
