"""Files of a folder that wait to be read, against Spark's log of those that were."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.runtime import backlog
from headrace.runtime.backlog import FileBacklog
from headrace.state.durable import FolderStore


class Source:
    """A folder, and a log as Spark writes it: one entry for each batch that has files of it, every third with all before it."""

    def __init__(self, root: Path) -> None:
        self.folder, self.log = root / "in", root / "log"
        self.folder.mkdir()
        self.log.mkdir()
        self.lines: list[str] = []

    def offer(self, *names: str) -> None:
        for name in names:
            (self.folder / name).touch()

    def take(self, batch: int, *names: str) -> None:
        new = [json.dumps({"path": f"file://{self.folder}/{name}", "timestamp": 1, "batchId": batch}) for name in names]
        self.lines += new
        compact = batch % 3 == 2
        (self.log / f"{batch}{'.compact' if compact else ''}").write_text("\n".join(["v1", *(self.lines if compact else new)]))
        if compact:
            for path in self.log.iterdir():
                if path.name.isdigit():
                    path.unlink()


@pytest.fixture
def source(tmp_path: Path) -> Source:
    return Source(tmp_path)


def test_files_wait_until_a_batch_takes_them(source: Source) -> None:
    seen = FileBacklog(source.folder, FolderStore(source.log))
    source.offer("a", "b", "c", "_hidden", ".tmp")
    source.take(0, "a")
    assert seen.waiting()[0] == 2
    source.take(1, "b")
    assert (seen.waiting()[0], seen.left) == (1, 1)
    source.take(2, "c")
    assert (seen.waiting()[0], seen.left, seen.taken_count) == (0, 0, 3)


def test_a_batch_whose_entry_has_all_before_it_counts_once(source: Source) -> None:
    seen = FileBacklog(source.folder, FolderStore(source.log))
    for batch in range(9):
        source.offer(f"f{batch}")
        source.take(batch, f"f{batch}")
        assert seen.waiting()[0] == 0
    assert seen.taken_count == 9


def test_batches_without_files_of_this_source(source: Source) -> None:
    seen = FileBacklog(source.folder, FolderStore(source.log))
    source.offer("a")
    source.take(0, "a")
    assert seen.waiting()[0] == 0
    assert seen.waiting()[0] == 0, "a batch of another source only: Spark writes no entry here"
    for number, name in enumerate(("b", "c", "d"), 1):
        source.offer(name)
        source.take(number, name)
        assert seen.waiting()[0] == 0, "the next entry has the next number, whatever number the batch has"
    assert seen.taken_count == 4


def test_names_of_files_that_are_gone_are_not_kept(source: Source) -> None:
    seen = FileBacklog(source.folder, FolderStore(source.log))
    for batch in range(50):
        source.offer(f"f{batch}")
        source.take(batch, f"f{batch}")
        seen.waiting()
        (source.folder / f"f{batch}").unlink()
    assert len(seen.taken) <= 1
    assert seen.taken_count == 50


def test_a_restart_knows_what_was_taken_and_counts_only_its_own(source: Source) -> None:
    for batch in range(5):
        source.offer(f"f{batch}")
        source.take(batch, f"f{batch}")
    source.offer("new")
    seen = FileBacklog(source.folder, FolderStore(source.log))
    source.take(5, "new")
    assert (seen.waiting()[0], seen.taken_count) == (0, 1)


def test_of_an_entry_with_all_before_it_only_the_end_is_read(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backlog, "READ_BYTES", 100)
    for batch in range(299):
        source.offer(f"f{batch}")
        source.take(batch, f"f{batch}")
    seen = FileBacklog(source.folder, FolderStore(source.log))
    source.offer("x", "y")
    source.take(299, "x", "y")
    path = next(source.log.glob("299*"))
    read: list[int] = []
    parse = json.loads
    monkeypatch.setattr(backlog.json, "loads", lambda text: (read.append(1), parse(text))[1])  # type: ignore[attr-defined]
    assert path.name.endswith(".compact")
    assert seen.waiting()[0] == 0
    assert seen.taken_count == 2
    assert len(read) < 20
