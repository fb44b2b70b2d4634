"""A run: one immutable, sorted, memory-mapped file of an operator's state.

The file is a single Arrow record batch in the operator's layout. Its schema metadata carries what the file says of itself (format,
fingerprint, slot offsets); the *reference* in a manifest carries what the system says of the file (length, checksum, which slots
count). Both are checked when a process first needs some slots of the run, and files never change, so an open run stays open.

Because rows are sorted by hash, the rows of any slot range are one contiguous slice: partitioning state is slicing.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from enum import IntEnum
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from headrace.errors import CorruptStateError
from headrace.ids import SLOTS, hash_at, slot_bounds
from headrace.state.blocks import BLOCK_BYTES, Blocks, Recorded, need_rows, open_batch, pieces, write_arrow
from headrace.state.disk import is_plain_name
from headrace.state.layout import HASH, Hashes, Layout, hashes, subs
from headrace.state.working import Working

FORMAT = 3
"""2: checksums of blocks at the end of the file. 3: texts and bytes have offsets of 64 bits."""
LEND_BLOCKS = 64
"""Blocks in a piece that is lent: a megabyte."""
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
    lo: float = 0
    hi: float = SLOTS
    sub_min: int | None = None
    sub_max: int | None = None
    generation: int = 0
    """Above 0: written by the new owner of slots whose windows are being recreated, see ``headrace.state.recreation``."""
    sub_from: int | None = None
    """Only rows with this sub-key or a later one count."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> RunRef:
        ref = cls(**data)
        if not is_plain_name(ref.file):
            raise ValueError(f"the name of a run leads elsewhere: {ref.file!r}")
        return ref


@dataclass(frozen=True)
class Run:
    """An open run: the rows of a reference's slots, mapped from the file."""

    ref: RunRef
    rows: pa.RecordBatch

    @property
    def h(self) -> Hashes:
        return hashes(self.rows)

    def slice(self, lo: float, hi: float) -> Run:
        """The part of the run in slots [lo, hi)."""
        lo, hi = max(lo, self.ref.lo), min(hi, self.ref.hi)
        begin, end = row_range(self.h, lo, hi)
        return Run(replace(self.ref, lo=lo, hi=hi, rows=end - begin), self.rows.slice(begin, end - begin))


def row_range(h: Hashes, lo: float, hi: float) -> tuple[int, int]:
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


def write_run(directory: Path, file: str, rows: pa.RecordBatch, layout: Layout, *, seq: int, lo: float, hi: float, sync: bool) -> RunRef:
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


class OpenRun:
    """A run's file, mapped; slots are checked when they are first needed."""

    def __init__(self, blocks: Blocks) -> None:
        self.blocks = blocks
        self.rows = open_batch(blocks)
        self.metadata = self.rows.schema.metadata or {}
        self.offsets = np.frombuffer(self.metadata.get(_SLOTS, b""), dtype="<u4")
        self.known: set[tuple[int, int]] = set()

    def row_range(self, lo: float, hi: float) -> tuple[int, int]:
        """Where the rows of slots [lo, hi) lie."""
        return (self._row_at(lo), self._row_at(hi)) if lo < hi else (0, 0)

    def _row_at(self, edge: float) -> int:
        """The first row at or after an edge; within a slot, its hashes say which."""
        slot = int(edge)
        if slot == edge:
            return int(self.offsets[slot])
        begin, end = int(self.offsets[slot]), int(self.offsets[slot + 1])
        need_rows(self.blocks, self.rows.select([HASH]), begin, end)
        return begin + int(np.searchsorted(hashes(self.rows)[begin:end], np.uint64(hash_at(edge)), "left"))

    def slots(self, lo: float, hi: float) -> pa.RecordBatch:
        """The rows of slots [lo, hi)."""
        begin, end = self.row_range(lo, hi)
        if (begin, end) not in self.known:
            need_rows(self.blocks, self.rows, begin, end)
            self.known.add((begin, end))
        return self.rows.slice(begin, end - begin)


class RunReader:
    """Opens runs of one directory, or an executor's working copies of them; each process checks what it reads once, and keeps files
    mapped."""

    _open: ClassVar[OrderedDict[str, OpenRun]] = OrderedDict()
    _open_max: ClassVar[int] = 512
    """Each is an open file, and many a library cannot deal with numbers of files above 1,023."""

    def __init__(self, directory: Path, layout: Layout, working: Working | None = None) -> None:
        self.directory = directory
        self.layout = layout
        self.working = working

    def open(self, ref: RunRef) -> Run:
        rows = self._mapped(ref).slots(ref.lo, ref.hi)
        if ref.sub_from is not None:
            rows = rows.filter(pa.array(subs(rows) >= ref.sub_from))
        return Run(ref, rows)

    def count(self, ref: RunRef) -> int:
        """How many rows there are in a reference's slots, without reading them if need be."""
        if ref.sub_from is not None:
            return int(self.open(ref).rows.num_rows)
        begin, end = self._mapped(ref).row_range(ref.lo, ref.hi)
        return end - begin

    def _mapped(self, ref: RunRef) -> OpenRun:
        origin = self.directory / ref.file
        path = origin if self.working is None else self.working.folder / ref.file
        run = self._open.get(str(path))
        if run is not None and not run.blocks.is_whole():
            # Opened anew, a copy is mended and an original is refused.
            del self._open[str(path)]
            run = None
        if run is None:
            blocks = Blocks(origin, ref.bytes, ref.crc) if self.working is None else self.working.open(origin, ref.bytes, ref.crc)
            run = OpenRun(blocks)
            self._check_layout(origin, run)
            # A file that was removed keeps its place on disk for as long as somebody has it mapped.
            for gone in [known for known in self._open if not os.path.exists(known)]:
                del self._open[gone]
            self._open[str(path)] = run
            while len(self._open) > self._open_max:
                self._open.popitem(last=False)
        else:
            self._open.move_to_end(str(path))
        return run

    def lend(self, ref: RunRef) -> Iterator[tuple[int, bytes]]:
        """What the rows of a reference's slots lie in: first block and data, piece by piece."""
        run = self._mapped(ref)
        recorded = Recorded(run.blocks)
        need_rows(recorded, run.rows, *run.row_range(ref.lo, ref.hi))
        for piece in pieces(sorted(recorded.needed), LEND_BLOCKS):
            end = min(piece.stop * BLOCK_BYTES, run.blocks.data_bytes)
            yield piece.start, run.blocks.mapped[piece.start * BLOCK_BYTES : end]

    def keep(self, file: str) -> None:
        """A run that was just written to the directory will be read here."""
        if self.working is not None:
            self.working.keep(self.directory / file)

    def remove(self, file: str) -> None:
        """Remove a run that nobody names, here and in the directory."""
        for folder in (self.directory, *([self.working.folder] if self.working is not None else [])):
            self._open.pop(str(folder / file), None)
            # What cannot be removed now is swept later.
            with contextlib.suppress(OSError):
                (folder / file).unlink(missing_ok=True)

    def _check_layout(self, path: Path, run: OpenRun) -> None:
        about = json.loads(run.metadata.get(_META, b"{}"))
        if about.get("format") != FORMAT or about.get("fingerprint") != self.layout.fingerprint:
            raise CorruptStateError(
                where=str(path),
                wanted=f"a run of format {FORMAT} with layout {self.layout.fingerprint}",
                found=f"format {about.get('format')}, layout {about.get('fingerprint')}",
                path=str(path),
                hint="the file belongs to another operator, another version of the query, or another version of Headrace;"
                " if the query has changed, start it with a new checkpoint",
            )
