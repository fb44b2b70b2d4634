"""The report of a micro-batch: what its instances did, in the one typed form that goes from the tasks to the policy.

    InstanceReport -> InstanceWork, BatchReport -> Batch -> Observation -> policy
    (runtime)         (here)                       (observing)

A running query passes the report on as an object. JSON is written only for people, in `BatchProgress.headrace` (`runtime/progress.py`).
It is read only to replay progress that was recorded, by `BatchReport.from_json`. A report that is read back equals the one that was
written, so a replay decides from the same numbers as the query did. `tests/property/test_batch_report.py` checks this.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.ids import InputId, OperatorId, SourceId, Version
from headrace.state.routing import Routing

OUTSIDE = "sources of "


def sources_of(operator: OperatorId) -> SourceId:
    """The name that stands for all sources of an operator. Reports do not distinguish them."""
    return SourceId(OUTSIDE + operator)


def _input(name: str) -> InputId:
    # No operator has this prefix, because the name of an operator has no spaces.
    return SourceId(name) if name.startswith(OUTSIDE) else OperatorId(name)


@dataclass(frozen=True)
class InstanceWork:
    """What one task of an operator did in a batch."""

    operator: OperatorId
    instance: int
    """The instance. During a window recreation, each side of it has a further number: see `Routing.parts`."""
    rows: int
    rows_out: int
    busy_s: float
    """Wall-clock time from the task's first row to its report."""
    state_bytes: int
    rows_per_slot: tuple[tuple[int, int], ...]
    """(slot, rows) for each slot that had rows."""
    host: str
    """Where the task ran: the executor, or the host if executors are not known."""

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> InstanceWork:
        """Read one entry of ``progress["headrace"]["instances"]``."""
        return cls(
            operator=OperatorId(body["operator"]),
            instance=body["instance"],
            rows=body["rows"],
            rows_out=body["rowsOut"],
            busy_s=body["wallSeconds"],
            state_bytes=body["stateBytes"],
            # JSON has texts as keys.
            rows_per_slot=tuple((int(slot), rows) for slot, rows in body["rowsPerSlot"].items()),
            host=body["executor"] or body["host"],
        )


@dataclass(frozen=True)
class BatchReport:
    """What a batch did, as far as policies need to know it."""

    version: Version
    replayed: bool
    """True if the version existed before the batch. The batch then did no work except to deliver results again."""
    begin_s: float
    end_s: float
    instances: tuple[InstanceWork, ...]
    """All tasks of all operators."""
    routing: Mapping[OperatorId, Routing]
    inputs: Mapping[OperatorId, tuple[InputId, ...]]
    """Per operator: the operators that it reads, and one name for all sources that it reads."""
    rows_left: float = 0.0
    """Rows that were waiting before the batch began and that it did not take; 0 if unknown."""
    trigger_s: float = 0.0
    """The trigger interval; 0 if batches follow one another."""
    work_s: float = 0.0
    """Wall-clock time of the batch's jobs and of its delivery; 0 if unknown."""
    offered: Mapping[OperatorId, float] = field(default_factory=dict)
    """By operator: the rows that would have come to it, by those that did, because others were dropped. Operators with all are left out."""

    @classmethod
    def from_json(cls, headrace: Mapping[str, Any]) -> BatchReport:
        """Read ``progress["headrace"]``, as it was recorded."""
        about = headrace["observation"]
        return cls(
            version=Version(headrace["version"]),
            replayed=headrace["replayed"],
            begin_s=about["beginS"],
            end_s=about["endS"],
            instances=tuple(InstanceWork.from_json(each) for each in headrace["instances"]),
            routing={OperatorId(name): Routing.from_json(body) for name, body in about["routing"].items()},
            inputs={OperatorId(name): tuple(map(_input, each)) for name, each in about["inputs"].items()},
            rows_left=headrace["backlog"].get("rowsLeft") or 0,
            trigger_s=about["triggerS"],
            work_s=work_s_of(headrace.get("phasesMs", {})),
            offered={OperatorId(name): share for name, share in about.get("offered", {}).items()},
        )


WORK_PHASES = ("job", "flush", "deliver")
"""The phases of a batch that depend on its rows."""


def work_s_of(phases_ms: Mapping[str, float]) -> float:
    """The wall-clock time of a batch's jobs and of its delivery, from its phases. Rounded as in the progress.

    >>> work_s_of({"plan": 12.0, "job": 200.004, "deliver": 50.0})
    0.25
    """
    return round(sum(round(phases_ms.get(name, 0.0), 2) for name in WORK_PHASES) / 1000, 5)
