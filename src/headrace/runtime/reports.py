"""The report of an instance task to the driver: one small row of JSON per task, never rows of data."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from headrace import errors
from headrace.control.batch_report import InstanceWork
from headrace.errors import CorruptStateError, HeadraceError
from headrace.ids import InstanceId, KeyHash, OperatorId, Slot
from headrace.state.manifest import Counters, Manifest, StagedFile
from headrace.state.run import RunRef


@dataclass(frozen=True)
class InstanceReport:
    """What one instance task did in a batch."""

    instance: InstanceId
    operator: OperatorId
    runs: dict[str, tuple[RunRef, ...]]
    """The instance's state after the batch, by store."""
    staged: tuple[StagedFile, ...] = ()
    rows: int = 0
    rows_shuffled: int = 0
    rows_late: int = 0
    rows_out: int = 0
    keys: int = 0
    keys_new: int | None = None
    rows_per_slot: tuple[tuple[Slot, int], ...] = ()
    """(slot, rows) for each slot that had rows."""
    rows_per_hash: tuple[tuple[KeyHash, int], ...] = ()
    """(hash, rows) for the heaviest keys of slots that had a large part of the rows."""
    cpu_s: float = 0.0
    wall_s: float = 0.0
    phases_ms: dict[str, float] = field(default_factory=dict)
    rows_compacted: int = 0
    private_bytes: int = 0
    host: str = ""
    executor: str = ""
    fetched_bytes: int = 0
    """Bytes of state that were not on the executor's disk and had to be fetched."""

    @property
    def state_rows(self) -> int:
        return sum(ref.rows for ref in self.refs)

    @property
    def refs(self) -> list[RunRef]:
        """The references of all stores."""
        return [ref for refs in self.runs.values() for ref in refs]

    @property
    def state_bytes(self) -> int:
        """The size of all files that the instance's state is in. Files that are shared with other instances count in full."""
        return sum({ref.file: ref.bytes for ref in self.refs}.values())

    def work(self) -> InstanceWork:
        """What policies need of the report. The time is rounded as in the progress, so that a replay sees the same."""
        return InstanceWork(
            operator=self.operator,
            instance=self.instance,
            rows=self.rows,
            rows_out=self.rows_out,
            busy_s=round(self.wall_s, 4),
            state_bytes=self.state_bytes,
            rows_per_slot=self.rows_per_slot,
            host=self.executor or self.host,
        )


def to_text(report: InstanceReport) -> str:
    """A report as the JSON that the task returns."""
    return json.dumps(asdict(report), separators=(",", ":"))


def error_text(error: HeadraceError) -> str:
    """An error as JSON in place of a report, so that the user sees it instead of a failed Spark task."""
    return json.dumps({"error": type(error).__name__, "fields": {k: v for k, v in vars(error).items() if isinstance(v, str)}})


def from_text(text: str) -> InstanceReport:
    """Read what a task returned. Raises the error if it is one."""
    data: dict[str, Any] = json.loads(text)
    if "error" in data:
        raise _rebuild(data)
    data["runs"] = {store: tuple(RunRef.from_json(r) for r in refs) for store, refs in data["runs"].items()}
    data["staged"] = tuple(StagedFile(**s) for s in data["staged"])
    data["instance"], data["operator"] = InstanceId(data["instance"]), OperatorId(data["operator"])
    data["rows_per_slot"] = tuple((Slot(s), int(n)) for s, n in data["rows_per_slot"])
    data["rows_per_hash"] = tuple((KeyHash(h), int(n)) for h, n in data["rows_per_hash"])
    return InstanceReport(**data)


def _rebuild(data: dict[str, Any]) -> HeadraceError:
    kind = getattr(errors, data["error"], HeadraceError)
    fields = data["fields"]
    if issubclass(kind, CorruptStateError | errors.StorageError):
        with_path: HeadraceError = kind(**fields)
        return with_path
    fields.pop("path", None)
    error: HeadraceError = kind(**fields)
    return error


def merged(first: list[InstanceReport], then: list[InstanceReport]) -> list[InstanceReport]:
    """Merge the reports of the two steps of a version into one per instance."""
    later = {r.instance: r for r in then}
    return [_together(r, later[r.instance]) if r.instance in later else r for r in first] if first else then


def _together(a: InstanceReport, b: InstanceReport) -> InstanceReport:
    return replace(
        a,
        runs=b.runs,
        staged=(*a.staged, *b.staged),
        rows=a.rows + b.rows,
        rows_shuffled=a.rows_shuffled + b.rows_shuffled,
        rows_late=a.rows_late + b.rows_late,
        rows_out=a.rows_out + b.rows_out,
        keys=a.keys + b.keys,
        keys_new=None if a.keys_new is None or b.keys_new is None else a.keys_new + b.keys_new,
        cpu_s=a.cpu_s + b.cpu_s,
        wall_s=a.wall_s + b.wall_s,
        fetched_bytes=a.fetched_bytes + b.fetched_bytes,
        phases_ms={name: a.phases_ms.get(name, 0.0) + b.phases_ms.get(name, 0.0) for name in {**a.phases_ms, **b.phases_ms}},
    )


def counters_of(before: Manifest | None, reports: Mapping[OperatorId, Sequence[InstanceReport]]) -> Counters:
    """The counters of a version. Keys are counted only for operators that look up every key they touch."""
    keys = dict(before.counters.keys) if before else {}
    for op, each in reports.items():
        if all(r.keys_new is not None for r in each):
            keys[op] = keys.get(op, 0) + sum(r.keys_new or 0 for r in each)
    every = [report for each in reports.values() for report in each]
    return Counters(rows=sum(r.rows for r in every), rows_late=sum(r.rows_late for r in every), keys=keys)
