"""Reports that tasks leave in files, if a step was tried several times."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from random import Random

from headrace.ids import InstanceId, OperatorId, Version, WriterId
from headrace.runtime.task_files import Names, leave_report, reports_left
from headrace.state.durable import FolderStore
from headrace.state.routing import Routing


@dataclass(frozen=True)
class Work:
    store: FolderStore
    routing: Routing
    operator_id: OperatorId
    version: Version
    writer: WriterId
    until_ms: int | None = None


def test_the_report_of_an_instances_last_attempt_counts(tmp_path: Path) -> None:
    """Its results are those that the next operator got. A processor need not do the same twice, so state must come from it too."""
    work = Work(FolderStore(tmp_path), Routing.even(2), OperatorId("process"), Version(3), WriterId("1xabc"))
    (tmp_path / "staged").mkdir()
    attempts = list(range(95, 125))
    Random(4).shuffle(attempts)
    for attempt in attempts:
        leave_report(work, Names(work, InstanceId(attempt % 2), attempt), str(attempt))
    assert sorted(reports_left(work)) == ["123", "124"]
    assert not list((tmp_path / "staged").iterdir())
