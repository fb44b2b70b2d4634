"""What every durable store must do. Called with each kind of store."""

from __future__ import annotations

import threading
import uuid
from pathlib import Path

import pytest

from headrace.state.durable import DurableStore, fetch_file, put_file

WRITERS = 8


def keeps_its_contract(store: DurableStore, folder: Path) -> None:
    """``folder`` is an empty folder for files."""
    below = store.below("journal")
    assert store.keys("journal/") == []
    assert store.folders("") == []
    assert (store.size("journal/1"), store.written_s("journal/1")) == (None, None)
    with pytest.raises(FileNotFoundError):
        store.get("journal/1")
    store.put_if_absent("journal/1", b"one")
    with pytest.raises(FileExistsError):
        store.put_if_absent("journal/1", b"two")
    assert store.get("journal/1") == b"one"
    store.put("journal/1", b"123456789")
    assert (store.get("journal/1", 2), store.get("journal/1", 2, 3), store.get("journal/1", 9, 0)) == (b"3456789", b"345", b"")
    assert store.size("journal/1") == 9
    assert (store.written_s("journal/1") or 0) > 1_700_000_000
    store.put("journal/2", b"")
    assert store.get("journal/2") == b""
    below.put("old/x", b"x")
    assert {"journal/1", "journal/2"} <= set(store.keys("journal/"))
    assert (store.folders(""), below.folders("")) == (["journal"], ["old"])
    assert below.keys("old/") == ["old/x"]
    assert store.get("journal/old/x") == b"x"
    store.delete("journal/2", "journal/nothing")
    assert "journal/2" not in store.keys("journal/")
    _moves_files(store, folder)
    _lets_one_writer_win(store)


def _moves_files(store: DurableStore, folder: Path) -> None:
    data = uuid.uuid4().bytes * 1_200_000
    (folder / "big").write_bytes(data)
    put_file(store, "journal/big", folder / "big")
    assert store.size("journal/big") == len(data)
    fetch_file(store, "journal/big", folder / "again", len(data))
    assert (folder / "again").read_bytes() == data
    with pytest.raises(FileNotFoundError):
        fetch_file(store, "journal/nothing", folder / "none", 10)
    assert not (folder / "none").exists()


def _lets_one_writer_win(store: DurableStore) -> None:
    won: list[int] = []
    ready = threading.Barrier(WRITERS)

    def write(number: int) -> None:
        ready.wait()
        try:
            store.put_if_absent("journal/once", f"writer {number}".encode())
        except FileExistsError:
            return
        won.append(number)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(WRITERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert store.get("journal/once") == f"writer {won[0]}".encode()
