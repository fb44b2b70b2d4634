"""The right to write to a checkpoint, on a disk that refuses."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from headrace.errors import StorageError
from headrace.runtime.failpoints import VARIABLE
from headrace.runtime.fencing import NO_LOCKS, Fence


def _full(*_: object) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_leaves_no_lock_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as full:
        full.setattr(os, "pwrite", _full)
        with pytest.raises(StorageError, match="ENOSPC"):
            Fence(tmp_path).claim()
    # There is room again, and the same process tries once more.
    fence = Fence(tmp_path)
    fence.claim()
    fence.release()


def test_who_cannot_write_a_token_fences_nobody_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, NO_LOCKS)
    running = Fence(tmp_path)
    running.claim()
    with monkeypatch.context() as full:
        full.setattr(os, "write", _full)
        with pytest.raises(StorageError, match="ENOSPC"):
            Fence(tmp_path).claim()
    running.check("committing a version")
