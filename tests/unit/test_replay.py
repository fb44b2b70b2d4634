"""What happens when a task lacks a run: whether the batch is tried again, or the query ends."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from headrace.errors import MissingRunError
from headrace.ids import Version
from headrace.runtime.safety.copies import Copies
from headrace.runtime.safety.replay import Replay
from headrace.state.durable import FolderStore

FILE = "v000000000039-aggregate-i0-e1x7f58a8b0-a1372-run.arrow"


def replay(folder: Path, durable: bool) -> Replay:
    copies = Copies(holders={FILE: {"1", "2"}})
    copies.durable = {FILE} if durable else set()
    checkpoint = SimpleNamespace(store=FolderStore(folder), current="manifest", record_of=lambda _: None)
    versions = SimpleNamespace(previous="manifest")
    routing = SimpleNamespace(lost_runs=lambda: frozenset() if durable else frozenset([FILE]))
    parts = [None, checkpoint, SimpleNamespace(copies=copies), versions, routing, None]
    return Replay(*cast(list[Any], parts))


@pytest.mark.parametrize(
    ("durable", "is_there", "again"),
    [
        # Only executors had it: it is computed again.
        (False, False, True),
        # A checkpoint has shipped it since the task looked for it: the next attempt finds it.
        (True, True, True),
        # The durable store should have it, and has lost it.
        (True, False, False),
    ],
)
def test_a_run_that_a_task_lacks(tmp_path: Path, durable: bool, is_there: bool, again: bool) -> None:
    if is_there:
        FolderStore(tmp_path).put(f"runs/{FILE}", b"", sync=False)
    made = replay(tmp_path, durable)
    missing = MissingRunError(path=str(tmp_path / FILE), wanted="the state file", found="no such file")
    missing.executor = "1"
    assert made._repairs(missing) is again
    assert (made.versions.previous is None) == (not durable)
    assert made.keeping.copies.holders_of(FILE) == ({"2"} if again else {"1", "2"})


def missing_run(file: str, executor: str) -> MissingRunError:
    return MissingRunError(path=file, wanted="the state file", found="no such file", executor=executor)


@pytest.mark.parametrize(
    ("misses", "ends"),
    [
        # Six tasks ran where their state is not, and each lacked a run of its own.
        ([(FILE.replace("a1372", f"a{at}"), "1") for at in range(6)], False),
        # The same task came back to the same place three times, and then went home.
        ([(FILE, "1")] * 3, False),
        ([(FILE, "1")] * 4, True),
        ([(FILE.replace("a1372", f"a{at}"), "1") for at in range(64)], True),
    ],
)
def test_a_batch_is_tried_again_as_long_as_other_runs_are_missing(tmp_path: Path, misses: list[tuple[str, str]], ends: bool) -> None:
    made, left = replay(tmp_path, durable=False), [*misses]
    parts = cast(Any, made)
    parts.keeping.durable = 100

    def make(*_: Any) -> str:
        if left:
            raise missing_run(*left.pop(0))
        return "made"

    parts.versions.make = make
    if ends:
        with pytest.raises(MissingRunError):
            made.make(cast(Any, None), Version(3), {})
    else:
        assert cast(Any, made.make(cast(Any, None), Version(3), {})) == "made"
    assert not left
