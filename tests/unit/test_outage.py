"""A batch waits while the checkpoint's folder is away, and runs again when it is back."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from headrace.errors import CheckpointError
from headrace.ids import Version
from headrace.runtime.checkpoint import Checkpoint
from headrace.runtime.safety.outage import Outage


class Folder:
    """A checkpoint's folder that goes away and comes back."""

    def __init__(self, path: Path) -> None:
        self.path, self.hidden = path / "checkpoint", path / "hidden"
        (self.path / "headrace").mkdir(parents=True)
        (self.path / "headrace" / "query.json").write_text("{}")
        self.runs = 0

    def go(self, back_after_s: float = 0.3) -> None:
        self.path.rename(self.hidden)
        if back_after_s:
            threading.Timer(back_after_s, lambda: self.hidden.rename(self.path)).start()

    def batch(self) -> None:
        """Fails if the folder is away."""
        self.runs += 1
        if not self.path.exists():
            raise CheckpointError(where="batch 3", wanted="the folder", found="none")


def waits(folder: Folder, seconds: float) -> Outage:
    return Outage(Checkpoint(str(folder.path)), seconds)


def test_a_batch_that_fails_while_the_folder_is_away_runs_again(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    outage = waits(folder, 10)
    folder.go()
    outage.run(folder.batch, Version(3), lambda: False)
    assert folder.runs == 2
    assert 0.2 < outage.drain() < 5
    assert outage.drain() == 0


def test_a_batch_that_has_ended_waits_too_because_spark_writes_next(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    outage, began_s = waits(folder, 10), time.monotonic()
    outage.run(folder.go, Version(3), lambda: False)
    assert 0.2 < time.monotonic() - began_s < 5
    assert folder.path.exists()


def test_an_empty_folder_in_its_place_is_not_the_checkpoint(tmp_path: Path) -> None:
    """A disk that is not mounted is an empty folder."""
    folder = Folder(tmp_path)
    folder.go(back_after_s=0)
    folder.path.mkdir()
    assert waits(folder, 10).is_away()


@pytest.mark.parametrize("seconds", [0.0, 0.2])
def test_it_does_not_wait_longer_than_it_may(tmp_path: Path, seconds: float) -> None:
    folder = Folder(tmp_path)
    outage, began_s = waits(folder, seconds), time.monotonic()
    folder.go(back_after_s=0)
    with pytest.raises(CheckpointError):
        outage.run(folder.batch, Version(3), lambda: False)
    assert seconds <= time.monotonic() - began_s < 5
    assert folder.runs == 1


def test_another_failure_ends_the_batch_at_once(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    outage = waits(folder, 10)

    def fails() -> None:
        folder.runs += 1
        raise ValueError("a row")

    with pytest.raises(ValueError, match="a row"):
        outage.run(fails, Version(3), lambda: False)
    assert (folder.runs, outage.drain()) == (1, 0)


def test_a_query_that_is_stopped_does_not_wait(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    outage = waits(folder, 60)
    folder.go(back_after_s=0)
    with pytest.raises(CheckpointError):
        outage.run(folder.batch, Version(3), lambda: True)
    assert folder.runs == 1
