"""The durable store: what exists exists whole, and of several writers one succeeds."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from headrace.errors import StorageError
from headrace.state.durable import FolderStore


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    return FolderStore(tmp_path)


def test_an_object_is_read_by_ranges(store: FolderStore) -> None:
    store.put("runs/a", bytes(range(100)))
    assert store.get("runs/a") == bytes(range(100))
    assert store.get("runs/a", 10, 5) == bytes(range(10, 15))
    assert store.get("runs/a", 95, 50) == bytes(range(95, 100)), "the rest, at the end"
    assert store.get("runs/a", 200) == b""
    assert store.size("runs/a") == 100
    store.put("runs/a", memoryview(b"other"))
    assert store.get("runs/a") == b"other"


def test_what_is_not_there(store: FolderStore) -> None:
    with pytest.raises(FileNotFoundError):
        store.get("runs/a")
    assert store.size("runs/a") is None
    assert store.keys("runs/") == []
    store.delete("runs/a")
    store.clean("runs/", lambda mark: True)


def test_keys_are_those_of_whole_objects(store: FolderStore, tmp_path: Path) -> None:
    store.put("runs/a", b"1")
    store.put("runs/b", b"2")
    (tmp_path / "runs" / ".c-mine.tmp").write_bytes(b"half")
    (tmp_path / "runs" / ".d-theirs.tmp").write_bytes(b"half")
    assert sorted(store.keys("runs/")) == ["runs/a", "runs/b"]
    store.clean("runs/", lambda mark: mark == "mine")
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == [".d-theirs.tmp", "a", "b"]


def test_of_many_writers_one_creates(tmp_path: Path) -> None:
    won: list[int] = []
    together = threading.Barrier(16)

    def create(number: int) -> None:
        store = FolderStore(tmp_path)
        together.wait()
        try:
            store.put_if_absent("tokens/1", str(number).encode() * 1000)
        except FileExistsError:
            return
        won.append(number)

    threads = [threading.Thread(target=create, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert FolderStore(tmp_path).get("tokens/1") == str(won[0]).encode() * 1000
    assert [path.name for path in (tmp_path / "tokens").iterdir()] == ["1"], "no half-written file is left"


@pytest.mark.parametrize("call", ["put", "put_if_absent"])
def test_a_disk_that_fails_in_the_middle_leaves_nothing(store: FolderStore, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    store.put("runs/b", b"before")
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(StorageError, match=r"to write state in the durable store.*ENOSPC"):
            getattr(store, call)("runs/a", b"x" * 100)
        with pytest.raises(StorageError):
            store.put("runs/b", b"after")
    assert store.keys("runs/") == ["runs/b"]
    assert store.get("runs/b") == b"before"
    assert [path.name for path in Path(store.where("runs/")).iterdir()] == ["b"]


def test_the_checkpoint_folder_is_not_made_again(tmp_path: Path) -> None:
    """If the storage is away, a write must fail, and not begin a second checkpoint at the mount point."""
    store = FolderStore(tmp_path / "gone" / "headrace")
    with pytest.raises(FileNotFoundError):
        store.put("runs/a", b"1")
    assert not (tmp_path / "gone").exists()
