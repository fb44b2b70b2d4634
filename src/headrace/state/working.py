"""The working tier: an executor's own copies of the runs that its instances read.

    durable    v12-...-run.arrow    | block 0 | block 1 | block 2 | block 3 | checksums |
    working    v12-...-run.arrow    |         | block 1 | block 2 |         | checksums |     needed so far: blocks 1 and 2
               .v12-...-run.here    |    0    |    1    |    1    |    0    |

A copy has the length of its original; what was not needed yet is a hole. So an instance that gets a tenth of the slots fetches a tenth of
the state, and reads it from its own disk ever after. Several processes of one executor share a folder: a block is written before it is
marked, and whoever writes it writes the same bytes. A copy that turns out to be damaged is fetched again.
"""

from __future__ import annotations

import mmap
import os
import shutil
import threading
import uuid
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ClassVar

import pyarrow as pa

from headrace.errors import CorruptStateError
from headrace.state.blocks import BLOCK_BYTES, Blocks, blocks_of, data_bytes, pieces
from headrace.state.disk import disk_errors

READ_BLOCKS = 256
"""Blocks asked for at a time: few large requests suit remote storage."""
READERS = 4
"""Requests in flight."""
COPYING = "to keep a working copy of state"
_counting = threading.Lock()


class Working:
    """A folder of working copies, on a disk of the executor's own."""

    total_bytes: ClassVar[int] = 0
    """What this process has ever fetched: copies stay open from one task to the next, and fetch for whoever needs them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.began_bytes = Working.total_bytes

    @property
    def fetched_bytes(self) -> int:
        """What was fetched since this was made, or last told. A process runs one task at a time."""
        return Working.total_bytes - self.began_bytes

    def open(self, origin: Path, length: int, crc: int) -> Blocks:
        """A run's copy, made now if there is none."""
        copy = self.folder / origin.name
        with disk_errors(copy, COPYING):
            self.folder.mkdir(parents=True, exist_ok=True)
            if not copy.exists():
                _once(_marks(copy), lambda path: path.write_bytes(bytes(blocks_of(length))))
                _once(copy, lambda path: _hollow(path, origin, length))
            return WorkingCopy(copy, origin, length, crc)

    def accept(self, origin: Path, length: int, crc: int, first: int, data: bytes | pa.Buffer) -> int:
        """Take blocks of a run from another executor that has them; returns their bytes. They are checked like any others."""
        copy = self.open(origin, length, crc)
        assert isinstance(copy, WorkingCopy)
        with disk_errors(copy.path, COPYING):
            return copy.accept(first, memoryview(data))

    def keep(self, origin: Path) -> None:
        """A run that was written just now will be read here: have it whole, without fetching it."""
        with disk_errors(self.folder / origin.name, COPYING):
            self.folder.mkdir(parents=True, exist_ok=True)
            _once(self.folder / origin.name, lambda path: _link_or_copy(origin, path))

    def sweep(self, is_stale: Callable[[str], bool]) -> int:
        """Remove copies of runs that nobody will ask for again; returns how many."""
        names = [path.name for path in self.folder.glob("*.arrow")] if self.folder.exists() else []
        stale = [self.folder / name for name in names if is_stale(name)]
        for copy in stale:
            copy.unlink(missing_ok=True)
            _marks(copy).unlink(missing_ok=True)
        return len(stale)

    def told(self) -> int:
        """Bytes fetched since this was last asked."""
        fetched, self.began_bytes = self.fetched_bytes, Working.total_bytes
        return fetched


class WorkingCopy(Blocks):
    """A copy whose missing blocks are fetched when they are needed."""

    def __init__(self, copy: Path, origin: Path, length: int, crc: int) -> None:
        self.origin = origin
        try:
            super().__init__(copy, length, crc, origin=str(origin))
        except CorruptStateError:
            # The copy's own frame is damaged, or it was swept this moment: begin again, once.
            copy.unlink(missing_ok=True)
            _marks(copy).unlink(missing_ok=True)
            _once(_marks(copy), lambda path: path.write_bytes(bytes(blocks_of(length))))
            _once(copy, lambda path: _hollow(path, origin, length))
            super().__init__(copy, length, crc, origin=str(origin))

    def fetch(self, first: int, last: int) -> None:
        with disk_errors(self.path, COPYING):
            self._fetch(first, last)

    def _fetch(self, first: int, last: int) -> None:
        here = self._here()
        if here is None:
            return
        with here:
            wanted = [block for block in range(first, last) if not here[block]]
            if not wanted:
                return
            with open(self.origin, "rb") as origin, open(self.path, "r+b") as copy:

                def get(blocks: range) -> None:
                    self._get(blocks, origin.fileno(), copy.fileno())
                    here[blocks.start : blocks.stop] = b"\1" * len(blocks)

                requests = list(pieces(wanted, READ_BLOCKS))
                if len(requests) == 1:
                    get(requests[0])
                else:
                    with ThreadPoolExecutor(READERS) as readers:
                        list(readers.map(get, requests))

    def _here(self) -> mmap.mmap | None:
        """The marks of the blocks that are here; None if the copy is whole."""
        path, length = _marks(self.path), len(self.checksums)
        try:
            if path.stat().st_size != length:
                # Cut short: nothing that it says is believed, and what is needed is fetched again.
                fresh = path.with_name(f"{path.name}.{uuid.uuid4().hex[:8]}.tmp")
                fresh.write_bytes(bytes(length))
                fresh.replace(path)
            with open(path, "r+b") as file:
                return mmap.mmap(file.fileno(), length)
        except FileNotFoundError:
            return None

    def accept(self, first: int, data: memoryview) -> int:
        """Blocks that came from elsewhere; those that are here already are left alone."""
        blocks = range(first, first + -(-len(data) // BLOCK_BYTES))
        here = self._here()
        if here is None:
            return 0
        with here:
            if all(here[block] for block in blocks):
                return 0
            self._check_all(blocks, data)
            with open(self.path, "r+b") as copy:
                os.pwrite(copy.fileno(), data, blocks.start * BLOCK_BYTES)
            here[blocks.start : blocks.stop] = b"\1" * len(blocks)
        return len(data)

    def _get(self, blocks: range, origin: int, copy: int) -> None:
        begin, end = blocks.start * BLOCK_BYTES, min(blocks.stop * BLOCK_BYTES, self.data_bytes)
        data = memoryview(_read(origin, begin, end - begin))
        self._check_all(blocks, data)
        os.pwrite(copy, data, begin)
        with _counting:
            Working.total_bytes += len(data)

    def _check_all(self, blocks: range, data: memoryview) -> None:
        for at, block in enumerate(blocks):
            found = zlib.crc32(data[at * BLOCK_BYTES : (at + 1) * BLOCK_BYTES])
            if found != self.checksums[block]:
                raise self.corrupt(f"checksum {self.checksums[block]:08x} in block {block}", f"{found:08x}")

    def _check(self, block: int) -> None:
        try:
            super()._check(block)
        except CorruptStateError:
            with open(self.origin, "rb") as origin, open(self.path, "r+b") as copy:
                self._get(range(block, block + 1), origin.fileno(), copy.fileno())
            super()._check(block)


def _read(handle: int, begin: int, length: int) -> bytes:
    parts = []
    while length and (part := os.pread(handle, length, begin)):
        parts.append(part)
        begin, length = begin + len(part), length - len(part)
    return b"".join(parts)


def _hollow(path: Path, origin: Path, length: int) -> None:
    """A file of the right length with nothing in it but the checksums."""
    try:
        with open(origin, "rb") as file:
            table = _read(file.fileno(), data_bytes(length), length)
    except FileNotFoundError:
        raise CorruptStateError(
            where=str(origin), wanted="the state file that the manifest names", found="no such file", path=str(origin)
        ) from None
    with open(path, "wb") as copy:
        copy.truncate(length)
        os.pwrite(copy.fileno(), table, data_bytes(length))


def _link_or_copy(origin: Path, path: Path) -> None:
    try:
        os.link(origin, path)
    except OSError:
        # Another disk, as it should be on a cluster, or one that has no links.
        shutil.copyfile(origin, path)


def _once(path: Path, write: Callable[[Path], object]) -> None:
    """Make a file whole or not at all; whoever comes second leaves the first one's alone."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        write(temporary)
        os.link(temporary, path)
    except FileExistsError:
        pass
    finally:
        temporary.unlink(missing_ok=True)


def _marks(copy: Path) -> Path:
    return copy.with_name(f".{copy.stem}.here")
