"""Working copies: an executor's own copies of the runs that its instances read, on its local disk.

    durable    v12-...-run.arrow    | block 0 | block 1 | block 2 | block 3 | checksums |
    working    v12-...-run.arrow    |         | block 1 | block 2 |         | checksums |     needed so far: blocks 1 and 2
               .v12-...-run.here    |    0    |    1    |    1    |    0    |                 marks the blocks that are present

A copy has the length of its original, with holes for blocks that were not needed yet. So an instance that gets a tenth of the slots
fetches about a tenth of the state, and reads it from local disk from then on. Several processes of an executor share a folder. This is
safe: a block is written before it is marked, and all processes write the same bytes. A damaged block is fetched again.

What is in a store behind a network is fetched in few, large requests: a small file at once, and of a large one first its ends, then all
blocks that are needed, gaps included where they are short. There copies are a cache: `Working.trim` keeps them within a number of bytes.

With ``headrace.checkpointSeconds`` new runs are written here only, and have no original until a checkpoint ships them. Then an executor has
all of a run or nothing of it; other executors get whole copies.
"""

from __future__ import annotations

import contextlib
import logging
import mmap
import os
import shutil
import tempfile
import threading
import time
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ClassVar

import pyarrow as pa

from headrace.errors import CorruptStateError, MissingRunError
from headrace.logs import logger
from headrace.state.blocks import BLOCK_BYTES, Blocks, blocks_of, data_bytes, pieces
from headrace.state.disk import disk_errors
from headrace.state.durable import DurableStore, fetch_file

READ_BLOCKS = 256
"""The most blocks per read request. Remote storage is faster with few large requests."""
READERS = 8
"""The number of read requests at the same time."""
WHOLE_BYTES = 1 << 18
"""A file of a store behind a network that is no longer than this is fetched at once."""
END_BYTES = 1 << 16
"""Of a longer one, this much is fetched from its end, and as much from its beginning: checksums, footer and schema."""
GAP_BLOCKS = 8
"""There, blocks that are not needed are fetched too, if at most so many lie between two that are."""
RECENT_S = 10.0
"""Copies that were used so lately are not removed: a task may be about to read them."""
COPYING = "to keep a working copy of state"
_counting = threading.Lock()
_log = logger(__name__)


class Working:
    """A folder of working copies, on the executor's local disk."""

    total_bytes: ClassVar[int] = 0
    """The bytes that this process has fetched since it started. It is shared, because open copies serve many tasks."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.began_bytes = Working.total_bytes

    @property
    def fetched_bytes(self) -> int:
        """The bytes fetched since this object was created. A process runs one task at a time."""
        return Working.total_bytes - self.began_bytes

    def open(self, store: DurableStore, file: str, length: int, crc: int) -> Blocks:
        """The working copy of a run. If there is none, an empty one is created. ``store`` has the original."""
        copy = self.folder / file
        with disk_errors(copy, COPYING):
            self.folder.mkdir(parents=True, exist_ok=True)
            begin, data = 0, b""
            if not copy.exists():
                begin, data, table = _ends_of(store, file, length)
                self._create(copy, length, table)
            found = WorkingCopy(copy, store, file, length, crc)
            if data:
                Working.count(found.accept(begin // BLOCK_BYTES, memoryview(data)))
                found.ahead([(0, END_BYTES)])
            return found

    @staticmethod
    def count(length: int) -> None:
        """Count bytes that were fetched."""
        with _counting:
            Working.total_bytes += length

    def _create(self, copy: Path, length: int, table: bytes) -> None:
        """Create a working copy without blocks, unless there is one."""
        _once(_marks(copy), lambda path: path.write_bytes(bytes(blocks_of(length))))
        _once(copy, lambda path: _hollow(path, length, table))

    def path(self, file: str) -> Path:
        """Where the copy of a run is, or would be."""
        return self.folder / file

    def make_folder(self) -> Path:
        """The folder, which is created if need be."""
        with disk_errors(self.folder, COPYING):
            self.folder.mkdir(parents=True, exist_ok=True)
        return self.folder

    def accept_table(self, file: str, length: int, crc: int, table: bytes) -> None:
        """Begin a working copy with the table of checksums that another executor has sent. Its original need not exist."""
        if zlib.crc32(table) != crc:
            path = str(self.folder / file)
            raise CorruptStateError(path=path, wanted=f"checksum {crc:08x} of the blocks' checksums", found=f"{zlib.crc32(table):08x}")
        copy = self.make_folder() / file
        with disk_errors(copy, COPYING):
            if not copy.exists():
                self._create(copy, length, table)

    def accept(self, store: DurableStore, file: str, length: int, crc: int, first: int, data: bytes | pa.Buffer) -> int:
        """Store blocks of a run that another executor has sent; returns the bytes stored. ``first`` is the number of the first block.

        Blocks are checked before they are stored.
        """
        copy = self.open(store, file, length, crc)
        assert isinstance(copy, WorkingCopy)
        with disk_errors(copy.path, COPYING):
            return copy.accept(first, memoryview(data))

    def keep(self, origin: Path) -> None:
        """Make a complete working copy of a run that this executor has just written, without fetching it."""
        with disk_errors(self.folder / origin.name, COPYING):
            self.folder.mkdir(parents=True, exist_ok=True)
            _once(self.folder / origin.name, lambda path: _link_or_copy(origin, path))
            self.note_original(origin.name)

    def has_whole(self, file: str) -> bool:
        """True if there is a copy of a file without missing blocks."""
        try:
            return (self.folder / file).exists() and 0 not in _marks(self.folder / file).read_bytes()
        except FileNotFoundError:
            return True

    def note_original(self, file: str) -> None:
        """Note that the store now has the original of a run that was written here: the copy may be removed when space is short."""
        blocks = blocks_of(os.stat(self.folder / file).st_size)
        _once(_marks(self.folder / file), lambda path: path.write_bytes(b"\1" * blocks))

    def sweep(self, is_stale: Callable[[str], bool]) -> int:
        """Remove the copies of runs for which ``is_stale`` is true; returns how many."""
        stale = [name for name in self._names() if is_stale(name)]
        for name in stale:
            self._remove(name)
        return len(stale)

    def trim(self, bytes_max: int) -> int:
        """Remove the copies that were not used for longest, until the rest takes up at most so many bytes. Returns how many.

        Only copies that have an original are removed. Blocks that are needed again are fetched again.
        """
        found, now = [], time.time()
        for name in self._names():
            # Another process may remove copies at the same time.
            with contextlib.suppress(FileNotFoundError):
                about = os.stat(self.folder / name)
                found.append((max(about.st_atime, about.st_mtime), about.st_blocks * 512, name))
        used, removed = sum(size for _, size, _ in found), 0
        for used_s, size, name in sorted(found):
            if used <= bytes_max or now - used_s < RECENT_S:
                break
            if _marks(self.folder / name).exists():
                self._remove(name)
                used, removed = used - size, removed + 1
        return removed

    def _names(self) -> list[str]:
        return [path.name for path in self.folder.glob("*.arrow")] if self.folder.exists() else []

    def _remove(self, file: str) -> None:
        (self.folder / file).unlink(missing_ok=True)
        _marks(self.folder / file).unlink(missing_ok=True)


class WorkingCopy(Blocks):
    """A working copy. Missing blocks are fetched from the original when they are needed."""

    def __init__(self, copy: Path, store: DurableStore, file: str, length: int, crc: int) -> None:
        self.store, self.file = store, file
        named = store.where(file)
        try:
            super().__init__(copy, length, crc, origin=named)
        except CorruptStateError as damage:
            # The copy's length or table of checksums is wrong, or a sweep has just removed it. Create it again, once.
            level = logging.INFO if isinstance(damage.__cause__, FileNotFoundError) else logging.WARNING
            _log.log(level, "the working copy %s is created again: wanted %s; found %s", copy, damage.wanted, damage.found)
            table = _table_of(store, file, length)
            copy.unlink(missing_ok=True)
            _marks(copy).unlink(missing_ok=True)
            _once(_marks(copy), lambda path: path.write_bytes(bytes(blocks_of(length))))
            _once(copy, lambda path: _hollow(path, length, table))
            super().__init__(copy, length, crc, origin=named)

    @property
    def is_far(self) -> bool:
        return self.store.local is None

    def is_whole(self) -> bool:
        # A copy that was removed to make room keeps its place on the disk for as long as it is mapped.
        return super().is_whole() and self.path.exists()

    def used(self) -> None:
        """Note that the copy is in use, so that others are removed before it."""
        with contextlib.suppress(FileNotFoundError):
            os.utime(self.path)

    def ahead(self, ranges: Iterable[tuple[int, int]]) -> None:
        wanted = {at for begin, end in ranges for at in range(max(0, begin) // BLOCK_BYTES, -(-min(end, self.data_bytes) // BLOCK_BYTES))}
        here = self._here() if wanted else None
        if here is None:
            return
        with here:
            missing = sorted(at for at in wanted if not here[at])
        runs = [range(part[0], part[-1] + 1) for part in near(missing, GAP_BLOCKS)]
        if runs:
            with disk_errors(self.path, COPYING):
                self._fetch_blocks([at for part in runs for at in part])

    def fetch(self, first: int, last: int) -> None:
        with disk_errors(self.path, COPYING):
            self._fetch(first, last)

    def _fetch(self, first: int, last: int) -> None:
        here = self._here()
        if here is not None:
            with here:
                wanted = [block for block in range(first, last) if not here[block]]
            self._fetch_blocks(wanted)

    def _fetch_blocks(self, wanted: list[int]) -> None:
        here = self._here() if wanted else None
        if here is None:
            return
        with here, open(self.path, "r+b") as copy:

            def get(blocks: range) -> None:
                self._get(blocks, copy.fileno())
                here[blocks.start : blocks.stop] = b"\1" * len(blocks)

            requests = list(pieces(wanted, READ_BLOCKS))
            if len(requests) == 1:
                get(requests[0])
            else:
                with ThreadPoolExecutor(READERS) as readers:
                    list(readers.map(get, requests))

    def _here(self) -> mmap.mmap | None:
        """The marks of the blocks that are present; None if the copy is complete."""
        path, length = _marks(self.path), len(self.checksums)
        try:
            if path.stat().st_size != length:
                # All blocks count as missing, and are fetched again when needed.
                _log.warning("the marks of a working copy have the wrong length and are created again: %s", path)
                fresh = path.with_name(f"{path.name}.{uuid.uuid4().hex[:8]}.tmp")
                fresh.write_bytes(bytes(length))
                fresh.replace(path)
            with open(path, "r+b") as file:
                return mmap.mmap(file.fileno(), length)
        except FileNotFoundError:
            return None

    def accept(self, first: int, data: memoryview) -> int:
        """Store blocks that another executor has sent; returns the bytes stored, 0 if all blocks were present."""
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

    def _get(self, blocks: range, copy: int) -> None:
        begin, end = blocks.start * BLOCK_BYTES, min(blocks.stop * BLOCK_BYTES, self.data_bytes)
        data = memoryview(_get(self.store, self.file, begin, end - begin))
        self._check_all(blocks, data)
        os.pwrite(copy, data, begin)
        Working.count(len(data))

    def _check_all(self, blocks: range, data: memoryview) -> None:
        for at, block in enumerate(blocks):
            found = zlib.crc32(data[at * BLOCK_BYTES : (at + 1) * BLOCK_BYTES])
            if found != self.checksums[block]:
                raise self.corrupt(f"checksum {self.checksums[block]:08x} in block {block}", f"{found:08x}")

    def _check(self, block: int) -> None:
        try:
            super()._check(block)
        except CorruptStateError as damage:
            _log.warning("a block of the working copy %s is fetched again: wanted %s; found %s", self.path, damage.wanted, damage.found)
            with open(self.path, "r+b") as copy:
                self._get(range(block, block + 1), copy.fileno())
            super()._check(block)


@contextlib.contextmanager
def at_hand(store: DurableStore, key: str, length: int, working: Working | None = None) -> Iterator[Path]:
    """The path of an object as a file. If it is in a store behind a network and has no copy here, it is fetched for as long as the block.

    There need be no file: whoever opens it reports what is missing.
    """
    name = key.rpartition("/")[2]
    if store.local is not None:
        yield store.local / key
    elif working is not None and working.has_whole(name):
        yield working.path(name)
    else:
        with tempfile.TemporaryDirectory(prefix="headrace-read-") as folder:
            path = Path(folder) / name
            with contextlib.suppress(FileNotFoundError):
                fetch_file(store, key, path, length)
            yield path


def near(blocks: Iterable[int], gap_max: int) -> list[list[int]]:
    """Group ascending block numbers, between which at most so many are missing.

    >>> near([1, 2, 5, 9], 2)
    [[1, 2, 5], [9]]
    """
    groups: list[list[int]] = []
    for block in blocks:
        if groups and block - groups[-1][-1] <= gap_max + 1:
            groups[-1].append(block)
        else:
            groups.append([block])
    return groups


def _get(store: DurableStore, file: str, begin: int, length: int) -> bytes:
    """Bytes of the original of a working copy, from the durable store."""
    try:
        return store.get(file, begin, length)
    except FileNotFoundError:
        where = store.where(file)
        raise MissingRunError(where=where, wanted="the state file that the manifest names", found="no such file", path=where) from None


def _table_of(store: DurableStore, file: str, length: int) -> bytes:
    """The table of checksums at the end of an original."""
    return _get(store, file, data_bytes(length), length - data_bytes(length))


def _ends_of(store: DurableStore, file: str, length: int) -> tuple[int, bytes, bytes]:
    """What is fetched of an original at first: where its blocks begin, the blocks, which may be none, and its table of checksums."""
    blocks_end = data_bytes(length)
    if store.local is not None:
        return 0, b"", _table_of(store, file, length)
    begin = 0 if length <= WHOLE_BYTES else (blocks_end - END_BYTES) // BLOCK_BYTES * BLOCK_BYTES
    data = _get(store, file, begin, length - begin)
    return begin, data[: blocks_end - begin], data[blocks_end - begin :]


def _hollow(path: Path, length: int, table: bytes) -> None:
    """Create a working copy without blocks: a file of the right length that contains only the table of checksums."""
    with open(path, "wb") as copy:
        copy.truncate(length)
        os.pwrite(copy.fileno(), table, data_bytes(length))


def _link_or_copy(origin: Path, path: Path) -> None:
    try:
        os.link(origin, path)
    except OSError:
        # The local disk is another one, as usual on a cluster, or does not support links.
        shutil.copyfile(origin, path)


def _once(path: Path, write: Callable[[Path], object]) -> None:
    """Create a file atomically with the content that ``write`` gives it. If the file exists already, it is kept."""
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
