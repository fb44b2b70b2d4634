"""The durable store: the one interface by which manifests, records of the journal, fencing tokens and shipped runs reach their storage.

    put_if_absent   create an object, unless there is one of that key      a folder: link       S3: PUT with If-None-Match: *
    put             create or replace an object, all or nothing            a folder: rename     S3: PUT
    get             read an object, or a range of its bytes                a folder: pread      S3: GET with Range
    size            the length of an object; None if there is none         a folder: stat       S3: HEAD
    keys, folders   what there is with a prefix                            a folder: listdir    S3: LIST
    delete          remove objects, where there are any                    a folder: unlink     S3: DELETE

Keys are names with slashes: ``manifests/000000000042.json``. An object never changes, except by ``put``. There are no renames and no locks:
what must happen once is decided by ``put_if_absent``. Lists are used to find what is old, and to start a search; no decision between two
writers depends on one alone.

`FolderStore` is a folder that driver and executors share; its runs may be mapped at their place (``local``), which saves a copy. Object
stores are in ``state/objects.py``, HDFS is in ``state/hdfs.py``, and ``state/stores.py`` chooses by the address.
"""

from __future__ import annotations

import mmap
import os
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from headrace.state.disk import disk_errors, removed_on_failure, sync_file

Data = bytes | memoryview
FETCHED_AT_ONCE = 1 << 23
"""The most bytes of a file that one request fetches."""
REQUESTS = 16
"""The most requests that a process makes at the same time."""


class DurableStore(Protocol):
    """What Headrace needs of a storage that outlives all processes. Errors are `StorageError`, unless a method says otherwise.

    A store is plain data that may be sent to other machines; it connects when it is first used.
    """

    @property
    def local(self) -> Path | None:
        """The folder, if objects are files that every process of the query may map. None if they must be fetched."""

    def below(self, prefix: str) -> DurableStore:
        """The part of the store whose keys begin with ``prefix``, which has no slash at its end. There, keys are without it."""

    def put_if_absent(self, key: str, data: Data, *, sync: bool = True) -> None:
        """Create an object. Raises FileExistsError if there is one: of several writers, exactly one succeeds."""

    def put(self, key: str, data: Data, *, sync: bool = True) -> None:
        """Create or replace an object. Readers see the old one or the new one, never a part."""

    def get(self, key: str, begin: int = 0, length: int | None = None) -> bytes:
        """The bytes of an object from ``begin`` on, at most ``length``. Raises FileNotFoundError if there is none."""

    def size(self, key: str) -> int | None:
        """The length of an object in bytes; None if there is none."""

    def keys(self, prefix: str) -> list[str]:
        """The keys that begin with ``prefix``, which ends with a slash, without those below a further slash. In no order."""

    def folders(self, prefix: str) -> list[str]:
        """The names that follow ``prefix``, which is empty or ends with a slash, in keys with a further slash. In no order."""

    def written_s(self, key: str) -> float | None:
        """When an object was written, in seconds since 1970; None if there is none."""

    def delete(self, *keys: str) -> None:
        """Remove objects. Those that are not there are passed over."""

    def sync(self, prefix: str) -> None:
        """Make sure that the objects of ``prefix`` are found after a crash of the machine. Object stores have nothing to do."""

    def clean(self, prefix: str, may_remove: Callable[[str], bool]) -> None:
        """Remove what broken-off writes left. ``may_remove`` gets the mark of their writer. Object stores leave nothing."""

    def where(self, key: str) -> str:
        """An object's address, for messages to users."""


@dataclass
class FolderStore:
    """A folder that all processes of a query share."""

    root: Path
    mark: str = ""
    """Ends the names of files that are being written: the writer's id, by which `clean` knows whose they are. If empty, a random one."""

    @property
    def local(self) -> Path:
        return self.root

    def below(self, prefix: str) -> FolderStore:
        return FolderStore(self.root / prefix, self.mark)

    def path(self, key: str) -> Path:
        """The file of an object. Only files that never change may be mapped."""
        return self.root / key

    def where(self, key: str) -> str:
        return str(self.path(key))

    def put_if_absent(self, key: str, data: Data, *, sync: bool = True) -> None:
        path = self.path(key)
        with disk_errors(path, f"to write {kind_of(key)}"):
            temporary = self._written(path, data, sync)
            try:
                os.link(temporary, path)
            finally:
                temporary.unlink(missing_ok=True)
            if sync:
                sync_file(path.parent)

    def put(self, key: str, data: Data, *, sync: bool = True) -> None:
        path = self.path(key)
        with disk_errors(path, f"to write {kind_of(key)}"):
            temporary = self._written(path, data, sync)
            with removed_on_failure(temporary):
                temporary.replace(path)
            if sync:
                sync_file(path.parent)

    def get(self, key: str, begin: int = 0, length: int | None = None) -> bytes:
        path = self.path(key)
        with disk_errors(path, f"to read {kind_of(key)}"), open(path, "rb", buffering=0) as file:
            if length is None:
                length = max(0, os.fstat(file.fileno()).st_size - begin)
            return read_at(file.fileno(), begin, length)

    def size(self, key: str) -> int | None:
        path = self.path(key)
        try:
            with disk_errors(path, f"to look for {kind_of(key)}"):
                return path.stat().st_size
        except FileNotFoundError:
            return None

    def keys(self, prefix: str) -> list[str]:
        folder = self.path(prefix)
        try:
            with disk_errors(folder, f"to list {prefix.rstrip('/')}"):
                return [f"{prefix}{name}" for name in os.listdir(folder) if not name.startswith(".")]
        except FileNotFoundError:
            return []

    def folders(self, prefix: str) -> list[str]:
        folder = self.path(prefix)
        try:
            with disk_errors(folder, "to list a folder"), os.scandir(folder) as entries:
                return [entry.name for entry in entries if entry.is_dir() and not entry.name.startswith(".")]
        except FileNotFoundError:
            return []

    def written_s(self, key: str) -> float | None:
        try:
            with disk_errors(self.path(key), f"to look for {kind_of(key)}"):
                return self.path(key).stat().st_mtime
        except FileNotFoundError:
            return None

    def delete(self, *keys: str) -> None:
        for key in keys:
            with disk_errors(self.path(key), f"to remove {kind_of(key)}"):
                self.path(key).unlink(missing_ok=True)

    def sync(self, prefix: str) -> None:
        with disk_errors(self.path(prefix), "to force a folder to disk"):
            sync_file(self.path(prefix))

    def clean(self, prefix: str, may_remove: Callable[[str], bool]) -> None:
        folder = self.path(prefix)
        with disk_errors(folder, "to remove what broken-off writes left"):
            for path in folder.glob(".*.tmp") if folder.exists() else ():
                if may_remove(path.stem.rpartition("-")[2]):
                    path.unlink(missing_ok=True)

    def _written(self, path: Path, data: Data, sync: bool) -> Path:
        """Write a file beside its final place, under a name that nobody else uses."""
        temporary = path.with_name(f".{path.name}-{self.mark or uuid.uuid4().hex[:8]}.tmp")
        # Folders appear with their first object. The checkpoint's own folder does not: if it is gone, so is the checkpoint.
        if path.parent != self.root:
            path.parent.mkdir(exist_ok=True)
        with removed_on_failure(temporary), open(temporary, "wb", buffering=0) as file:
            rest = memoryview(data)
            while len(rest):
                rest = rest[file.write(rest) or 0 :]
            if sync:
                os.fsync(file.fileno())
        return temporary


def at_once(store: DurableStore, calls: Sequence[Callable[[], object]]) -> None:
    """Make several requests to a store: at the same time, if it is behind a network. Raises the first error when all have ended."""
    if len(calls) < 2 or store.local is not None:
        for call in calls:
            call()
        return
    with ThreadPoolExecutor(min(len(calls), REQUESTS)) as pool:
        for done in [pool.submit(call) for call in calls]:
            done.result()


def put_file(store: DurableStore, key: str, path: Path) -> None:
    """Put a local file into a store."""
    with disk_errors(path, f"to read {kind_of(key)} that was written here"), open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size:
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped, memoryview(mapped) as data:
                store.put(key, data)
        else:
            store.put(key, b"")


def fetch_file(store: DurableStore, key: str, path: Path, length: int) -> None:
    """Copy an object of a known length to a new local file. Raises FileNotFoundError if there is none."""
    with open(path, "xb", buffering=0) as file:

        def fetch(begin: int) -> None:
            os.pwrite(file.fileno(), store.get(key, begin, min(FETCHED_AT_ONCE, length - begin)), begin)

        try:
            at_once(store, [partial(fetch, begin) for begin in range(0, length, FETCHED_AT_ONCE)])
        except FileNotFoundError:
            path.unlink()
            raise


def read_at(handle: int, begin: int, length: int) -> bytes:
    """Read bytes of an open file. Fewer are returned only at its end."""
    parts = []
    while length and (part := os.pread(handle, length, begin)):
        parts.append(part)
        begin, length = begin + len(part), length - len(part)
    return b"".join(parts)


_KINDS = {
    "manifests": "a manifest",
    "journal": "the journal",
    "tokens": "a fencing token",
    "runs": "state in the durable store",
    "staged": "staged results",
    "leases": "a reader's lease",
    "query.json": "what query the checkpoint belongs to",
    "routing.json": "a change of the routing",
    "offsets": "Spark's offsets",
    "sources": "Spark's log of a source",
    "metadata": "Spark's id of the query",
}


def kind_of(key: str) -> str:
    """What an object is, for messages."""
    return _KINDS.get(key.partition("/")[0], "a file of the checkpoint")
