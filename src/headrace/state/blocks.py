"""Arrow files that are checked, and fetched, block by block.

    | one record batch, as an Arrow file         | checksum of block 0, 1, ... |
    | block 0 | block 1 | ...                    | (a manifest has the checksum of this table) |

A task that needs some slots of a large run should not have to read the whole file to verify it. So the file ends with a table of the
checksums of its blocks. The manifest has the checksum of the table. A block is checked when rows in it are first needed.

A file may also be a *working copy* on an executor's disk: it has the same length, with holes for blocks that were not needed yet. Missing
blocks are fetched from the original file in the checkpoint when they are needed (``headrace.state.working``).
"""

from __future__ import annotations

import io
import itertools
import mmap
import os
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.errors import CorruptStateError
from headrace.state.disk import disk_errors, removed_on_failure, storage_error

BLOCK_BYTES = 1 << 14
"""The size of a block. It is small, because an instance may own many short slot ranges, and reads whole blocks of every column for each."""
_CRC = struct.Struct("<I")
_MAGIC = b"ARROW1"
_PREFIX = 8
"""The number of bytes before the first message of an Arrow file, and before the metadata of each message."""

ADVICE = "restore the file from a backup, or restart from an older version of the checkpoint; nothing was guessed"


def blocks_of(length: int) -> int:
    """The number of blocks in a file of this length, checksums included.

    >>> blocks_of(BLOCK_BYTES + 4), blocks_of(BLOCK_BYTES + 1 + 2 * 4)
    (1, 2)
    """
    return -(-length // (BLOCK_BYTES + _CRC.size))


def data_bytes(length: int) -> int:
    """The number of bytes before the table of checksums in a file of this length."""
    return length - _CRC.size * blocks_of(length)


def pieces(blocks: Iterable[int], size_max: int) -> Iterator[range]:
    """Group ascending block numbers into ranges of at most ``size_max`` neighbours.

    >>> list(pieces([1, 2, 3, 7], 256))
    [range(1, 4), range(7, 8)]
    """
    for _, group in itertools.groupby(enumerate(blocks), key=lambda pair: pair[1] - pair[0]):
        run = [block for _, block in group]
        for begin in range(run[0], run[-1] + 1, size_max):
            yield range(begin, min(begin + size_max, run[-1] + 1))


def write_arrow(path: Path, rows: pa.RecordBatch, *, sync: bool) -> tuple[int, int]:
    """Write one record batch to a new file; returns its length, and the checksum of its table of checksums."""
    return write_batches(path, rows.schema, (rows,), sync=sync)


def write_batches(path: Path, schema: pa.Schema, batches: Iterable[pa.RecordBatch], *, sync: bool) -> tuple[int, int]:
    """Like ``write_arrow`` for any number of record batches. Each one is written before the next one is requested."""
    wanted = "to write a file of state or output"
    try:
        with disk_errors(path, wanted), open(path, "xb", buffering=0) as file, removed_on_failure(path):
            out = _Checksummed(file)
            with pa.ipc.new_file(pa.PythonFile(out, mode="w"), schema) as writer:
                for rows in batches:
                    writer.write_batch(rows)
            length, crc = out.finish()
            if sync:
                os.fsync(file.fileno())
    except FileNotFoundError as gone:
        raise storage_error(gone, path, wanted) from gone
    return length, crc


class _Checksummed(io.RawIOBase):
    """A stream that writes to a file, without a copy, and computes the checksums of its blocks."""

    def __init__(self, file: io.RawIOBase) -> None:
        self.file = file
        self.length = 0
        self.crcs: list[int] = []

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        rest = memoryview(data).cast("B")
        self._add(rest)
        self._pass_on(rest)
        return len(rest)

    def finish(self) -> tuple[int, int]:
        """Write the table of checksums; returns the file's length and the checksum of the table."""
        table = b"".join(map(_CRC.pack, self.crcs))
        self._pass_on(memoryview(table))
        return self.length + len(table), zlib.crc32(table)

    def _add(self, rest: memoryview) -> None:
        while len(rest):
            within = self.length % BLOCK_BYTES
            if within == 0:
                self.crcs.append(0)
            part = rest[: BLOCK_BYTES - within]
            self.crcs[-1] = zlib.crc32(part, self.crcs[-1])
            self.length += len(part)
            rest = rest[len(part) :]

    def _pass_on(self, rest: memoryview) -> None:
        while len(rest):
            rest = rest[self.file.write(rest) or 0 :]


class Blocks:
    """A mapped file. Its blocks are checked when they are first needed."""

    def __init__(self, path: Path, length: int, crc: int, origin: str | None = None) -> None:
        """``length`` and ``crc`` are what the manifest says. ``origin`` is the path that errors name, if the file is a copy."""
        self.path = path
        self.named = origin or str(path)
        self.data_bytes = data_bytes(length)
        self.mapped = self._map(length)
        self.checksums = self._checksums(length, crc)
        self.checked = bytearray(len(self.checksums))
        self.buffer = pa.py_buffer(memoryview(self.mapped)[: self.data_bytes])

    def is_whole(self) -> bool:
        """False if the file has been cut short since it was mapped. Reading the missing part would kill the process (SIGBUS).

        Callers ask before each use of an open file. A file that is cut between the question and the use cannot be caught.
        """
        return self.mapped.size() == len(self.mapped)

    def need(self, begin: int, end: int) -> None:
        """Make sure that the bytes [begin, end) are present and checked; raise an error if they are damaged."""
        if begin >= end:
            return
        first, last = begin // BLOCK_BYTES, -(-end // BLOCK_BYTES)
        if (at := self.checked.find(0, first, last)) < 0:
            return
        self.fetch(at, last)
        while at >= 0:
            self._check(at)
            self.checked[at] = 1
            at = self.checked.find(0, at + 1, last)

    @property
    def is_far(self) -> bool:
        """True if missing blocks come from a store behind a network, where few requests at once are better than many in turn."""
        return False

    def used(self) -> None:
        """Note that the file is in use: working copies that are not may be removed to make room."""

    def ahead(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Fetch what is missing of these ranges of bytes together. Only for files of which `is_far` is true."""

    def fetch(self, first: int, last: int) -> None:
        """Fetch the missing ones of the blocks [first, last). Does nothing here, since only working copies have missing blocks."""

    def _check(self, block: int) -> None:
        begin = block * BLOCK_BYTES
        found = zlib.crc32(memoryview(self.mapped)[begin : min(begin + BLOCK_BYTES, self.data_bytes)])
        if found != self.checksums[block]:
            raise self.corrupt(f"checksum {self.checksums[block]:08x} in block {block}", f"{found:08x}")

    def _map(self, length: int) -> mmap.mmap:
        try:
            with open(self.path, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                if size != length:
                    raise self.corrupt(f"{length} bytes", f"{size} bytes")
                return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except FileNotFoundError as missing:
            raise self.corrupt("the state file that the manifest names", "no such file") from missing
        except OSError as refused:
            raise storage_error(refused, self.named, "to read a file of state or output") from refused

    def _checksums(self, length: int, crc: int) -> np.ndarray[Any, np.dtype[np.uint32]]:
        table = self.mapped[self.data_bytes : length]
        if zlib.crc32(table) != crc:
            raise self.corrupt(f"checksum {crc:08x} of the blocks' checksums", f"{zlib.crc32(table):08x}")
        return np.frombuffer(table, dtype="<u4")

    def corrupt(self, wanted: str, found: str) -> CorruptStateError:
        """The error for damage to this file."""
        return CorruptStateError(where=self.named, wanted=wanted, found=found, path=self.named, hint=ADVICE)


def open_batch(blocks: Blocks) -> pa.RecordBatch:
    """The file's record batch. Only its metadata is checked: call ``need_rows`` before reading rows."""
    end = blocks.data_bytes
    blocks.need(max(0, end - 2 * _PREFIX), end)
    footer_bytes = int.from_bytes(blocks.mapped[end - len(_MAGIC) - 4 : end - len(_MAGIC)], "little")
    blocks.need(max(0, end - len(_MAGIC) - 4 - footer_bytes), end)
    at = _PREFIX
    for _message in ("schema", "record batch"):
        blocks.need(at, min(at + _PREFIX, end))
        at += _PREFIX + int.from_bytes(blocks.mapped[at + 4 : at + _PREFIX], "little")
        blocks.need(0, min(at, end))
    return pa.ipc.open_file(blocks.buffer).get_batch(0)


def open_arrow(path: Path, length: int, crc: int) -> pa.RecordBatch:
    """Map an Arrow file of one record batch, with all its blocks checked."""
    blocks = Blocks(path, length, crc)
    blocks.need(0, blocks.data_bytes)
    return open_batch(blocks)


def open_batches(path: Path, length: int, crc: int, origin: str | None = None) -> Iterator[pa.RecordBatch]:
    """The record batches of an Arrow file. All blocks are checked before the first batch is returned."""
    blocks = Blocks(path, length, crc, origin)
    blocks.need(0, blocks.data_bytes)
    file = pa.ipc.open_file(blocks.buffer)
    return (file.get_batch(at) for at in range(file.num_record_batches))


class Recorded:
    """Forwards ``need`` to a file's blocks, and records which blocks were needed."""

    def __init__(self, blocks: Blocks) -> None:
        self.blocks = blocks
        self.buffer = blocks.buffer
        self.needed: set[int] = set()

    @property
    def is_far(self) -> bool:
        return self.blocks.is_far

    def ahead(self, ranges: Iterable[tuple[int, int]]) -> None:
        self.blocks.ahead(ranges)

    def need(self, begin: int, end: int) -> None:
        self.blocks.need(begin, end)
        self.needed.update(range(begin // BLOCK_BYTES, -(-end // BLOCK_BYTES)))


def need_rows(blocks: Blocks | Recorded, rows: pa.RecordBatch, begin: int, end: int) -> None:
    """Make sure that all bytes of the rows [begin, end) of the file's record batch are present and checked."""
    if begin < end:
        base = blocks.buffer.address
        for whole in (False, True) if blocks.is_far else ():
            # Where values of varying length begin is known only when their offsets are there.
            blocks.ahead(_ranges(rows, begin, end, base, whole=whole))
        for column in rows.columns:
            _walk(column.type, iter(column.buffers()), begin, end, lambda lo, hi: blocks.need(lo - base, hi - base))


def _ranges(rows: pa.RecordBatch, begin: int, end: int, base: int, *, whole: bool) -> list[tuple[int, int]]:
    """The bytes of the rows [begin, end), as far as they are known."""
    found: list[tuple[int, int]] = []
    for column in rows.columns:
        _walk(column.type, iter(column.buffers()), begin, end, lambda lo, hi: found.append((lo - base, hi - base)), whole=whole)
    return found


def _walk(
    kind: pa.DataType, buffers: Iterator[pa.Buffer | None], begin: int, end: int, need: Callable[[int, int], None], *, whole: bool = True
) -> None:
    """Call ``need`` for the bytes of rows [begin, end) in each buffer of a column, by Arrow's layout; children included.

    If not ``whole``, it leaves out what follows from offsets, which may not be there yet.
    """

    def of(buffer: pa.Buffer | None, first_bit: int, last_bit: int) -> None:
        if buffer is not None and first_bit < last_bit:
            need(buffer.address + first_bit // 8, min(buffer.address + -(-last_bit // 8), buffer.address + buffer.size))

    of(next(buffers), begin, end)
    if pa.types.is_struct(kind):
        for at in range(kind.num_fields):
            _walk(kind.field(at).type, buffers, begin, end, need, whole=whole)
    elif pa.types.is_fixed_size_list(kind):
        _walk(kind.value_type, buffers, begin * kind.list_size, end * kind.list_size, need, whole=whole)
    elif _has_offsets(kind):
        offsets = next(buffers)
        width = 8 if pa.types.is_large_string(kind) or pa.types.is_large_binary(kind) or pa.types.is_large_list(kind) else 4
        of(offsets, begin * width * 8, (end + 1) * width * 8)
        assert offsets is not None
        if not whole:
            _skip(kind, buffers)
            return
        edges = np.frombuffer(offsets, dtype=f"<i{width}")
        lo, hi = int(edges[begin]), int(edges[end])
        if pa.types.is_list(kind) or pa.types.is_large_list(kind):
            _walk(kind.value_type, buffers, lo, hi, need)
        elif pa.types.is_map(kind):
            _walk(pa.struct([kind.key_field, kind.item_field]), buffers, lo, hi, need)
        else:
            of(next(buffers), lo * 8, hi * 8)
    elif not pa.types.is_null(kind):
        of(next(buffers), begin * kind.bit_width, end * kind.bit_width)


def _skip(kind: pa.DataType, buffers: Iterator[pa.Buffer | None]) -> None:
    """Pass over the buffers of a column's values."""
    values = pa.array([], kind).buffers()[2:]
    for _ in values:
        next(buffers)


def _has_offsets(kind: pa.DataType) -> bool:
    of = pa.types
    tests = (of.is_string, of.is_binary, of.is_large_string, of.is_large_binary, of.is_list, of.is_large_list, of.is_map)
    return any(test(kind) for test in tests)
