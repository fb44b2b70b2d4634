"""A run: one immutable, sorted, memory-mapped file of an operator's state.

The file is a single Arrow record batch in the operator's layout. Its schema metadata carries what the file says of itself (format,
fingerprint, slot offsets); the *reference* in a manifest carries what the system says of the file (length, checksum, which slots
count). Both are checked when a process opens the run for the first time, and files never change, so an open run stays open.

Because rows are sorted by hash, the rows of any slot range are one contiguous slice: partitioning state is slicing.
"""

from __future__ import annotations

import io
import json
import mmap
import os
import zlib
from collections import OrderedDict
from dataclasses import asdict, dataclass, replace
from enum import IntEnum
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from headrace.errors import CorruptStateError
from headrace.ids import SLOTS, slot_bounds
from headrace.state.layout import Hashes, Layout, hashes, subs

FORMAT = 1
_META = b"headrace"
_SLOTS = b"headrace.slots"


@dataclass(frozen=True)
class RunRef:
    """A manifest's word on a run: the file, what it must look like, and which of its slots count."""

    file: str
    bytes: int
    crc: int
    rows: int
    """Rows in the slots that count."""
    seq: int
    """Age, see ``run_seq``: the newest rows in the run. In any slot, the runs' ages are disjoint."""
    lo: int = 0
    hi: int = SLOTS
    sub_min: int | None = None
    sub_max: int | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> RunRef:
        return cls(**data)


@dataclass(frozen=True)
class Run:
    """An open run: the rows of a reference's slots, mapped from the file."""

    ref: RunRef
    rows: pa.RecordBatch

    @property
    def h(self) -> Hashes:
        return hashes(self.rows)

    def slice(self, lo: int, hi: int) -> Run:
        """The part of the run in slots [lo, hi)."""
        lo, hi = max(lo, self.ref.lo), min(hi, self.ref.hi)
        begin, end = row_range(self.h, lo, hi)
        return Run(replace(self.ref, lo=lo, hi=hi, rows=end - begin), self.rows.slice(begin, end - begin))


def row_range(h: Hashes, lo: int, hi: int) -> tuple[int, int]:
    """Where the rows of slots [lo, hi) lie in sorted hashes."""
    if lo >= hi:
        return 0, 0
    first, last = slot_bounds(lo, hi)
    return int(np.searchsorted(h, np.uint64(first), "left")), int(np.searchsorted(h, np.uint64(last), "right"))


def slot_counts(h: Hashes) -> np.ndarray[Any, np.dtype[np.int64]]:
    """How many rows each slot has."""
    return np.bincount((h >> np.uint64(52)).astype(np.int64), minlength=SLOTS)


class Step(IntEnum):
    """What a run was written by, in the order of time within a version."""

    PROCESS = 0
    FLUSH = 1
    CLOSE = 2


def run_seq(version: int, step: Step) -> int:
    """The age of a run."""
    return len(Step) * version + step


def run_version(seq: int) -> int:
    """The version that wrote a run of this age."""
    return seq // len(Step)


def write_run(directory: Path, file: str, rows: pa.RecordBatch, layout: Layout, *, seq: int, lo: int, hi: int, sync: bool) -> RunRef:
    """Write sorted rows as a run and make it durable; the reference is what a manifest will say."""
    offsets = np.concatenate([[0], np.cumsum(slot_counts(hashes(rows)))]).astype("<u4")
    about = {"format": FORMAT, "fingerprint": layout.fingerprint, "rows": rows.num_rows}
    rows = rows.replace_schema_metadata({_META: json.dumps(about).encode(), _SLOTS: offsets.tobytes()})
    length, crc = write_arrow(directory / file, rows, sync=sync)
    has_sub = layout.has_sub and rows.num_rows > 0
    return RunRef(
        file=file,
        bytes=length,
        crc=crc,
        rows=rows.num_rows,
        seq=seq,
        lo=lo,
        hi=hi,
        sub_min=int(subs(rows).min()) if has_sub else None,
        sub_max=int(subs(rows).max()) if has_sub else None,
    )


def write_arrow(path: Path, rows: pa.RecordBatch, *, sync: bool) -> tuple[int, int]:
    """Write one record batch as an Arrow file that must not exist yet; returns its length and checksum."""
    with open(path, "xb", buffering=0) as file:
        out = _Checksummed(file)
        with pa.ipc.new_file(pa.PythonFile(out, mode="w"), rows.schema) as writer:
            writer.write_batch(rows)
        if sync:
            os.fsync(file.fileno())
    return out.length, out.crc


class _Checksummed(io.RawIOBase):
    """Passes what is written on to a file, without a copy, and keeps its length and checksum."""

    def __init__(self, file: io.RawIOBase) -> None:
        self.file = file
        self.length = 0
        self.crc = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        rest = memoryview(data).cast("B")
        self.crc = zlib.crc32(rest, self.crc)
        self.length += len(rest)
        while len(rest):
            rest = rest[self.file.write(rest) or 0 :]
        return memoryview(data).nbytes


def open_arrow(path: Path, length: int, crc: int) -> pa.RecordBatch:
    """Map an Arrow file after checking that it is, byte for byte, what was written."""
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size != length:
                raise CorruptStateError(where=str(path), wanted=f"{length} bytes", found=f"{size} bytes", path=str(path), hint=_ADVICE)
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError as missing:
        raise CorruptStateError(
            where=str(path), wanted="the state file that the manifest names", found="no such file", path=str(path), hint=_ADVICE
        ) from missing
    actual = zlib.crc32(mapped)
    if actual != crc:
        raise CorruptStateError(where=str(path), wanted=f"checksum {crc:08x}", found=f"{actual:08x}", path=str(path), hint=_ADVICE)
    return pa.ipc.open_file(pa.py_buffer(mapped)).get_batch(0)


_ADVICE = "restore the file from a backup, or restart from an older version of the checkpoint; nothing was guessed"


class RunReader:
    """Opens runs of one directory; each process checks a file once and then keeps it mapped."""

    _open: ClassVar[OrderedDict[str, pa.RecordBatch]] = OrderedDict()
    _open_max: ClassVar[int] = 1024

    def __init__(self, directory: Path, layout: Layout) -> None:
        self.directory = directory
        self.layout = layout

    def open(self, ref: RunRef) -> Run:
        path = self.directory / ref.file
        rows = self._open.get(str(path))
        if rows is None:
            rows = open_arrow(path, ref.bytes, ref.crc)
            self._check_layout(path, rows)
            # A file that was removed keeps its place on disk for as long as somebody has it mapped.
            for gone in [known for known in self._open if not os.path.exists(known)]:
                del self._open[gone]
            self._open[str(path)] = rows
            while len(self._open) > self._open_max:
                self._open.popitem(last=False)
        else:
            self._open.move_to_end(str(path))
        begin, end = row_range(hashes(rows), ref.lo, ref.hi)
        return Run(ref, rows.slice(begin, end - begin))

    def _check_layout(self, path: Path, rows: pa.RecordBatch) -> None:
        about = json.loads((rows.schema.metadata or {}).get(_META, b"{}"))
        if about.get("format") != FORMAT or about.get("fingerprint") != self.layout.fingerprint:
            raise CorruptStateError(
                where=str(path),
                wanted=f"a run of format {FORMAT} with layout {self.layout.fingerprint}",
                found=f"format {about.get('format')}, layout {about.get('fingerprint')}",
                path=str(path),
                hint="the file belongs to another operator or another version of the query",
            )
