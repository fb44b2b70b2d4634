"""Fencing: only one query may commit, deliver, or remove files of a checkpoint.

    owner                          locked by the query that runs, where the disk has locks: a second one is refused at once
    headrace/tokens/000000000007   created exclusively at every start, never removed; the highest number is the only writer

The lock is a quick check but no proof: some disks have no locks, and a file can be removed. The token is the proof. A query takes the next
number when it starts, after all checks that could refuse the start. A query whose number is no longer the highest has been replaced. It
must not write or remove anything, however long it slept.
File names carry the token of their writer, so that a query that was replaced removes no file of its successor.
"""

from __future__ import annotations

import fcntl
import os
import re
import threading
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path

from headrace.errors import CheckpointError, FencedError, StorageError, require
from headrace.ids import NO_TOKEN, NO_VERSION, FencingToken, Version, WriterId
from headrace.logs import logger
from headrace.runtime.failpoints import is_set
from headrace.state.disk import disk_errors
from headrace.state.durable import DurableStore, at_once

NO_LOCKS = "no-locks"
"""A fail point: the disk has no locks, like some network disks."""
PREFIX = "tokens/"

_log = logger(__name__)
_WRITER = re.compile(r"-e(\d+)x[0-9a-f]{8}(?=[-.])")


class Fence:
    """The right to write to one checkpoint."""

    def __init__(self, where: str, folder: Callable[[], Path], store: DurableStore) -> None:
        """``folder`` says where the lock file is, on this machine, and ``store`` has the tokens. ``where`` is the checkpoint's address."""
        self.where, self.folder, self.store = where, folder, store
        self.token: FencingToken | None = None
        self.writer = WriterId("")
        """Names this start of the query in files and manifests; set when the token is taken. No other start has the same."""
        self._handle: int | None = None
        self._asked = False
        """True if the lock was tried since the last release."""
        self._releasing = threading.Lock()

    def lock(self) -> None:
        """Raise an error if the lock file says that a query runs on the checkpoint. That query is not fenced off."""
        self._handle, self._asked = self._lock(), True

    def claim(self) -> None:
        """Become the only writer. Raises an error if the lock file says that a query runs on the checkpoint."""
        if not self._asked:
            self.lock()
        try:
            self.token = self._take()
        except BaseException:
            self.release()
            raise
        self.writer = WriterId(f"{self.token}x{uuid.uuid4().hex[:8]}")

    def release(self) -> None:
        """Free the checkpoint for another query. Any thread may call this, any number of times."""
        with self._releasing:
            handle, self._handle, self._asked = self._handle, None, False
        if handle is not None:
            os.close(handle)

    def check(self, doing: str) -> None:
        """Raise an error unless this query is still the writer. ``doing`` says in the error what it was about to do."""
        require(self.token is not None, f"a query takes a token before it is {doing}")
        lost = self.lost(doing)
        if lost is not None:
            raise lost

    def lost(self, doing: str) -> FencedError | None:
        """The error to raise if another query is the writer now; None if this query still is."""
        mine = self.token or NO_TOKEN
        # Tokens are taken in order and never removed, so a later one exists only if the next one does. This needs no list.
        there: set[FencingToken] = set()
        both = FencingToken(mine + 1), mine
        at_once(self.store, [partial(lambda number: there.add(number) if self._exists(number) else None, each) for each in both])
        if there == {mine}:
            return None
        newest = max(self._numbers(), default=NO_TOKEN)
        if newest <= mine:
            found = f"no token of this query, which had token {self.token}"
            hint = "files of the checkpoint were removed; start the query again, and it takes a new token"
        else:
            found = f"token {newest} ({self._owner(newest)}); this query has {self.token}"
            hint = "another query has taken over this checkpoint and goes on from the last committed version; this one ends"
        return FencedError(where=self.where, wanted=f"to be the only query on this checkpoint, before {doing}", found=found, hint=hint)

    def _lock(self) -> int | None:
        """Lock the checkpoint. The kernel frees the lock when the process dies. Returns None if the disk has no locks."""
        path = self.folder() / "owner"
        with disk_errors(path, "to note who owns the checkpoint"):
            handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                if is_set(NO_LOCKS):
                    raise OSError("no locks, as a test asked for")
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                owner = os.pread(handle, 1000, 0).decode(errors="replace")
                os.close(handle)
                raise CheckpointError(
                    where=self.where,
                    wanted="to be the only query on this checkpoint",
                    found=f"a query that is running on it ({owner})",
                    hint="stop that one first, or give this one a checkpointLocation of its own; nothing was changed",
                ) from None
            except OSError as refused:
                os.close(handle)
                _log.warning("%s: the disk has no locks (%s); a query that still runs there will be fenced off", path, refused)
                return None
            try:
                os.ftruncate(handle, 0)
                os.pwrite(handle, _myself().encode(), 0)
            except OSError:
                # Closing the file also frees the lock. Nobody else would do it.
                os.close(handle)
                raise
        return handle

    def _take(self) -> FencingToken:
        """Create the next token. If several queries try, each gets its own number, and the highest wins."""
        # The list only says where to begin. If it lacks a token, that number is refused, and the next one is tried.
        mine = FencingToken(max(self._numbers(), default=NO_TOKEN) + 1)
        while True:
            try:
                self.store.put_if_absent(_key(mine), f"{_myself()} ({uuid.uuid4().hex[:8]})".encode())
            except FileExistsError:
                mine = FencingToken(mine + 1)
                continue
            if not self._exists(FencingToken(mine + 1)):
                return mine
            mine = FencingToken(mine + 2)

    def _exists(self, number: FencingToken) -> bool:
        return self.store.size(_key(number)) is not None

    def _numbers(self) -> list[FencingToken]:
        names = (key.rpartition("/")[2] for key in self.store.keys(PREFIX))
        return [FencingToken(int(name)) for name in names if name.isdigit()]

    def _owner(self, number: FencingToken) -> str:
        try:
            return self.store.get(_key(number), 0, 200).decode(errors="replace")
        except (OSError, StorageError):
            return "unknown"


def _key(number: FencingToken) -> str:
    return f"{PREFIX}{number:012d}"


def token_of(file: str) -> FencingToken:
    """The fencing token of the writer of a file, from the file's name; 0 if the name has none.

    >>> token_of("v000000000003-op-i0-e12x1a2b3c4d-a7-run.arrow"), token_of("initial-op-e3x1a2b3c4d-0-5.arrow"), token_of("x.arrow")
    (12, 3, 0)
    """
    found = _WRITER.findall(file)
    return FencingToken(int(found[-1])) if found else NO_TOKEN


def version_of(file: str) -> Version:
    """The version that a file was written for, from its name; -1 if the name has none, like the files of an initial state.

    >>> version_of("v000000000003-op-i0-e12x1a2b3c4d-a7-run.arrow"), version_of("initial-op-e3x1a2b3c4d-0-5.arrow")
    (3, -1)
    """
    head = file.partition("-")[0]
    return Version(int(head[1:])) if head[:1] == "v" and head[1:].isdigit() else NO_VERSION


def _myself() -> str:
    return f"process {os.getpid()} on {os.uname().nodename}"
