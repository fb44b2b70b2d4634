"""The right to write to a checkpoint, on a disk that refuses."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from headrace.errors import StorageError
from headrace.runtime.failpoints import VARIABLE
from headrace.runtime.fencing import NO_LOCKS, Fence
from headrace.state.durable import FolderStore


def fence_of(path: Path) -> Fence:
    return Fence(str(path), lambda: path, FolderStore(path))


def _full(*_: object) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_leaves_no_lock_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as full:
        full.setattr(os, "pwrite", _full)
        with pytest.raises(StorageError, match="ENOSPC"):
            fence_of(tmp_path).claim()
    # There is room again, and the same process tries once more.
    fence = fence_of(tmp_path)
    fence.claim()
    fence.release()


def test_who_cannot_write_a_token_fences_nobody_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, NO_LOCKS)
    running = fence_of(tmp_path)
    running.claim()
    with monkeypatch.context() as full:
        full.setattr(os, "fsync", _full)
        with pytest.raises(StorageError, match="ENOSPC"):
            fence_of(tmp_path).claim()
    running.check("committing a version")
