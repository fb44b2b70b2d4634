"""What a batch did: as JSON for people, and as a `BatchReport` for policies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from headrace.control.batch_report import BatchReport, work_s_of
from headrace.control.governor import Entry
from headrace.ids import InputId, OperatorId, Version
from headrace.runtime.elastic import RoutingChange
from headrace.runtime.recovery import Interruption
from headrace.runtime.reports import InstanceReport
from headrace.runtime.safety.checkpointer import Checkpointed
from headrace.runtime.safety.replicas import Redundancy
from headrace.runtime.shed_report import Shed
from headrace.state.gaps import Gap
from headrace.state.manifest import Manifest
from headrace.state.routing import Routing


@dataclass(frozen=True)
class Waiting:
    """What the sources had to offer when a batch had ended. None stands for what is not known."""

    files: int | None = None
    """Files that wait in the folders of file sources; None if no source is a folder."""
    rows: int | None = None
    rows_left: int | None = None
    """The rows among them that had arrived before the batch began."""
    age_ms: float | None = None
    """The age of the oldest file that waits, or for how long rows of a topic have been waiting, if that is longer."""
    topics: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """By topic and partition: the rows that wait; empty if no source counts rows."""

    def to_json(self) -> dict[str, Any]:
        files = {} if self.files is None else {"files": self.files}
        topics = {"topics": {topic: dict(rows) for topic, rows in self.topics.items()}} if self.topics else {}
        return {**files, "rows": self.rows, "rowsLeft": self.rows_left, "ageMs": self.age_ms, **topics}


@dataclass(frozen=True)
class BatchProgress:
    """Everything that the progress says about one batch."""

    version: Version
    times_s: tuple[float, float, float]
    """When the batch began, when it ended, and when the batch before it began."""
    replayed: bool
    routing: dict[OperatorId, Routing]
    phases_ms: dict[str, float]
    reports: dict[OperatorId, list[InstanceReport]]
    """By operator: the reports of its tasks."""
    manifest: Manifest
    readers: tuple[OperatorId, ...]
    """Operators that read sources."""
    changes: tuple[RoutingChange, ...]
    """Changes of the routing since the batch before."""
    backlog: Waiting = Waiting()
    homes: dict[OperatorId, tuple[str, ...]] = field(default_factory=dict)
    """By operator: the executor of each instance. Empty if instances have no homes."""
    interruptions: tuple[Interruption, ...] = ()
    """Attempts at the batch's steps that were broken off because executors were lost or hung."""
    rebuilt: int = 0
    """Versions that were computed again before the batch, because their state was lost."""
    gaps: tuple[Gap, ...] = ()
    """State that was lost and skipped before the batch."""
    checkpointed: Checkpointed | None = None
    """The last checkpoint since the query started; None if every version is durable when it is committed."""
    store_waited_s: float = 0.0
    """How long this batch, and the one before after its report, waited for the checkpoint's folder."""
    observed: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """What the program's observations have measured of results, by name."""
    redundancy: Redundancy | None = None
    """Copies of state on other executors; None if the query keeps none."""
    shed: Shed | None = None
    """What the batch dropped; None if the user allows no drops."""
    decisions: tuple[Entry, ...] = ()
    """Decisions of the query's policy since the batch before."""
    inputs: Mapping[OperatorId, tuple[InputId, ...]] = field(default_factory=dict)
    """Per operator: the operators that it reads, and one name for all sources that it reads."""
    trigger_s: float = 0.0
    """The trigger interval; 0 if batches follow one another."""

    @property
    def rows(self) -> int:
        """Rows that the batch read from sources, with those that were dropped."""
        arrived = 0 if self.shed is None else self.shed.arrived
        return max([arrived, *(sum(r.rows for r in self.reports.get(op, [])) for op in self.readers)])

    def report(self) -> BatchReport:
        """What policies need of the batch. Times are rounded as in the progress, so that a replay sees the same."""
        begin_s, end_s, _ = self.times_s
        return BatchReport(
            version=self.version,
            replayed=self.replayed,
            begin_s=round(begin_s, 3),
            end_s=round(end_s, 3),
            instances=tuple(r.work() for each in self.reports.values() for r in each),
            routing=dict(self.routing),
            inputs=dict(self.inputs),
            rows_left=self.backlog.rows_left or 0,
            trigger_s=self.trigger_s,
            work_s=work_s_of(self.phases_ms),
            offered={} if self.shed is None else {op: round(each, 4) for op, each in self.shed.offered.items()},
        )

    def operators(self) -> list[dict[str, Any]]:
        """The operators' state, in the form of Spark's ``stateOperators``."""
        names = dict.fromkeys(store.operator for store in self.manifest.stores)
        return [self._operator(name) for name in names]

    def _operator(self, name: OperatorId) -> dict[str, Any]:
        runs = self.manifest.runs_of(name)
        reports = self.reports.get(name, [])
        return {
            "operatorName": name,
            # If keys are not counted, rows of one key and pane in several runs count several times.
            "numRowsTotal": self.manifest.counters.keys.get(name, sum(ref.rows for ref in runs)),
            "numRowsUpdated": sum(r.keys for r in reports),
            "numRowsRemoved": 0,
            "numRowsDroppedByWatermark": sum(r.rows_late for r in reports),
            "memoryUsedBytes": sum({ref.file: ref.bytes for ref in runs}.values()),
            "numShufflePartitions": self.routing[name].instances,
            "numStateStoreInstances": self.routing[name].instances,
            "customMetrics": {"runs": len({ref.file for ref in runs})},
        }

    def rows_out(self) -> int:
        """Result rows of the batch."""
        reported = sum(report.rows_out for each in self.reports.values() for report in each)
        return max(sum(staged.rows for staged in self.manifest.staged), reported)

    def headrace(self) -> dict[str, Any]:
        """``progress["headrace"]``: what Spark's own progress does not have."""
        reports = [r for each in self.reports.values() for r in each]
        late = sum(r.rows_late for op in self.readers for r in self.reports.get(op, []))
        begin_s, end_s, _ = self.times_s
        return {
            "version": self.version,
            "replayed": self.replayed,
            "instances": [_instance(r) for r in reports],
            "phasesMs": {k: round(v, 2) for k, v in self.phases_ms.items()},
            "batchMs": round((end_s - begin_s) * 1000, 2),
            "rows": self.rows,
            "rowsOut": self.rows_out(),
            "shareDelivered": 1.0 if not self.rows else 1.0 - late / self.rows,
            "backlog": self.backlog.to_json(),
            "watermarkMs": self.manifest.watermark_ms,
            "idleSources": list(self.manifest.watermark_idle),
            "routing": {
                name: {"epoch": r.epoch, "instances": r.instances, "homes": list(self.homes.get(name, ()))}
                for name, r in self.routing.items()
            },
            "changes": [change.to_json() for change in self.changes],
            "interruptions": [each.to_json() for each in self.interruptions],
            "versionsRebuilt": self.rebuilt,
            "gaps": [gap.to_json() for gap in self.gaps],
            "replicas": None if self.redundancy is None else self.redundancy.to_json(),
            "checkpoint": None if self.checkpointed is None else self.checkpointed.to_json(),
            "shedding": None if self.shed is None else self.shed.to_json(),
            "storeWaitMs": round(self.store_waited_s * 1000, 1),
            "decisions": [entry.to_json() for entry in self.decisions],
            "observation": self._observation(),
        }

    def _observation(self) -> dict[str, Any]:
        """What the report has beyond the rest of the progress. `BatchReport.from_json` needs it for a replay."""
        report = self.report()
        return {
            "beginS": report.begin_s,
            "endS": report.end_s,
            "triggerS": report.trigger_s,
            "offered": dict(report.offered),
            "inputs": {name: list(each) for name, each in report.inputs.items()},
            "routing": {name: routing.to_json() for name, routing in report.routing.items()},
        }

    def event_time(self) -> dict[str, str]:
        """The watermark in the form of Spark's ``eventTime``; empty if the query has none."""
        if not self.manifest.watermark_nodes_ms:
            return {}
        moment = datetime.fromtimestamp(self.manifest.watermark_ms / 1000, UTC)
        return {"watermark": moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"}

    def latency(self, event_time: dict[str, str]) -> dict[str, float | None]:
        """How old rows were when their results were delivered. ``event_time`` is Spark's max, min and avg of the batch.

        When a row arrived is not known exactly. It came after the batch before began and before this one did, which gives two bounds.
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
    work = report.work()
    return {
        "operator": report.operator,
        "instance": report.instance,
        "rows": report.rows,
        "rowsShuffled": report.rows_shuffled,
        "rowsLate": report.rows_late,
        "rowsOut": report.rows_out,
        "keysTouched": report.keys,
        "cpuSeconds": round(report.cpu_s, 4),
        "wallSeconds": work.busy_s,
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
