"""The driver does small flushes itself, because starting a Spark job would take longer than the work."""

from __future__ import annotations

import itertools

from headrace.ids import InstanceId
from headrace.runtime.reports import InstanceReport
from headrace.runtime.task import InstanceTask
from headrace.runtime.task_spec import TaskSpec

STATE_ROWS_MAX = 2_000_000
"""With more rows of state than this, a Spark job closes windows."""
RESULT_ROWS_MAX = 1_000_000
RESULT_BYTES_MAX = 1 << 27
"""A Spark job also closes windows if there may be more results than this, in rows or in bytes."""
_attempts = itertools.count()
"""The numbers of attempts in the names of files that the driver writes. If a step runs again, so does what the driver did of it."""


def closes_here(spec: TaskSpec) -> bool:
    """True if the driver does a flush itself. It must be small, give few results, and run no code of the user."""
    operator, until_ms = spec.operator, spec.until_ms
    assert until_ms is not None
    every = [ref for refs in spec.refs.values() for ref in refs]
    rows = sum(ref.rows for ref in every)
    if operator.runs_user_code or rows > STATE_ROWS_MAX or not spec.driver_reads:
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
    """Do a flush in the driver, one instance after the other. Returns their reports."""
    task, attempt = InstanceTask(spec), next(_attempts)
    return [task.run_here(InstanceId(at), attempt) for at in range(len(spec.routing.parts))]
