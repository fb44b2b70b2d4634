"""Servers that capture and paste in idle time: what tuples wait, what a failure costs, and other backups."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.control.availability.backups import BackupConfig
from headrace.control.availability.scheduling import ScheduleConfig
from headrace.errors import QueryError
from headrace.sim.checkpointing import Aggregates, CheckpointingServers
from headrace.sim.workload import constant


def waited_by_steps(length_s: float, load: float, step_s: float = 1e-4) -> float:
    """Seconds per tuple and second, for one task: a backlog that is looked at again and again."""
    backlog_s, waited, at_s = 0.0, 0.0, 0.0
    while at_s < length_s or backlog_s > 1e-9:
        task_s = max(length_s - at_s, 0.0)
        waited += (task_s + backlog_s) * step_s
        backlog_s = max(backlog_s + (load - (0.0 if task_s else 1.0)) * step_s, 0.0)
        at_s += step_s
    return waited


@pytest.mark.parametrize(("length_s", "load"), [(0.05, 0.9), (0.5, 0.6)])
def test_what_tuples_wait_for_a_task_is_the_area_of_its_backlog(length_s: float, load: float) -> None:
    assert waited_by_steps(length_s, load) == pytest.approx(length_s**2 / (2 * (1 - load)), rel=0.02)


def test_only_idle_time_is_used() -> None:
    """A server that is 80% busy has a fifth of its time for tasks."""
    cluster = CheckpointingServers(Aggregates(3, 6, constant(0.8), overhead_s=0.01), ScheduleConfig(), seed=3)
    seen = cluster.run(20.0)
    assert seen.tasks * 0.01 <= 0.2 * 3 * 20.0
    assert seen.tasks > 100


def test_without_checkpoints_recovery_grows_with_all_that_was_processed() -> None:
    never = ScheduleConfig(method="whole", interval_s=1e6)
    seen = CheckpointingServers(Aggregates(3, 4, constant(0.5)), never, seed=1).run(10.0)
    assert seen.tasks == 0
    assert seen.waited_s.max() == 0
    # All of a server's work, divided between two backups.
    assert 2.5 <= seen.recovery_s[-1] <= 5.0
    assert (np.diff(seen.recovery_s) > 0).all()


def test_backups_that_are_reassigned_shorten_the_worst_recovery() -> None:
    about = Aggregates(4, 5, constant(0.85), one_backup=True)
    fixed, moving = (
        CheckpointingServers(about, ScheduleConfig(method="whole", interval_s=30), seed=2, backups=each).run(60.0)
        for each in (None, BackupConfig())
    )
    assert fixed.reassigned == 0
    assert moving.reassigned > 0
    assert moving.recovery_s[-20:].mean() < 0.8 * fixed.recovery_s[-20:].mean()


def test_a_cluster_of_one_is_refused() -> None:
    with pytest.raises(QueryError, match="two servers or more"):
        Aggregates(servers=1)
