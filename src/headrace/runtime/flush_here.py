"""Small flushes are done in the driver: a Spark job would take longer to start than the work takes."""

from __future__ import annotations

from headrace.ids import InstanceId
from headrace.runtime.reports import InstanceReport
from headrace.runtime.task import InstanceTask, TaskSpec

STATE_ROWS_MAX = 2_000_000
"""Rows of state up to which the driver closes windows itself, ..."""
RESULT_ROWS_MAX = 1_000_000
RESULT_BYTES_MAX = 1 << 27
"""... if they give no more results than this, and results of no more bytes."""
ATTEMPT = 0
"""The task attempt under whose number the driver writes files; there can be only one."""


def closes_here(spec: TaskSpec) -> bool:
    """True if a flush is so little work that the driver does it. The driver never runs users' code, nor holds many results."""
    operator, until_ms = spec.operator, spec.until_ms
    assert until_ms is not None
    every = [ref for refs in spec.refs.values() for ref in refs]
    rows = sum(ref.rows for ref in every)
    if operator.runs_user_code or rows > STATE_ROWS_MAX:
        return False
    after_ms = spec.moment.watermark_ms
    due = {
        name: tuple(ref for ref in spec.refs.get(name, ()) if store.lifetime.is_due(ref, after_ms, until_ms))
        for name, store in operator.stores.items()
    }
    results = operator.close_rows_max(due, spec.moment, until_ms)
    state_bytes = sum({ref.file: ref.bytes for ref in every}.values())
    return results <= RESULT_ROWS_MAX and results * state_bytes <= RESULT_BYTES_MAX * max(rows, 1)


def close_here(spec: TaskSpec) -> list[InstanceReport]:
    task = InstanceTask(spec)
    return [task.run_here(InstanceId(at), ATTEMPT) for at in range(len(spec.routing.parts))]
