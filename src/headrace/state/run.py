"""Runs: immutable, sorted, memory-mapped files of state.

The file of a run is one Arrow record batch in the layout of its store. The schema metadata holds the format, the layout's fingerprint and
the row at which each slot begins. A *reference* in a manifest holds the file's length, its checksum and the slots that count. A process
checks both when it first needs rows of the run. Files never change, so an open run stays open.

Rows are sorted by hash, so the rows of a slot range are one contiguous slice. To partition state is to slice runs.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.errors import CorruptStateError, require
from headrace.ids import FIRST_EPOCH, SLOTS, RoutingEpoch, RunSeq, slot_bounds
from headrace.logs import logger, suppressed
from headrace.state.blocks import BLOCK_BYTES, Blocks, Recorded, need_rows, pieces, write_arrow
from headrace.state.conversion import Conversion
from headrace.state.disk import is_plain_name
from headrace.state.durable import DurableStore, FolderStore, put_file
from headrace.state.layout import Hashes, Layout, hashes, subs
from headrace.state.open_runs import ABOUT, OPEN, SLOT_OFFSETS, OpenRun
from headrace.state.working import Working

FORMAT = 3
"""The format of run files. 2 added checksums of blocks at the end of the file; 3 has 64-bit offsets for strings and binaries."""
TABLE = -1
"""Stands for the table of checksums, where otherwise the number of a block is."""
LEND_BLOCKS = 64
"""The most blocks that are lent in one piece: one megabyte."""
_log = logger(__name__)


@dataclass(frozen=True)
class RunRef:
    """A manifest entry for a run: file, length, checksum, and the slots whose rows count."""

    file: str
    bytes: int
    crc: int
    rows: int
    """How many rows the slots have that count."""
    seq: RunSeq
    """The sequence number of the newest rows in the run. In any slot, the ages of two runs do not overlap."""
    lo: float = 0
    hi: float = SLOTS
    """Rows in slots [lo, hi) count."""
    sub_min: int | None = None
    sub_max: int | None = None
    """The least and the greatest sub-key in the file; None if the store has no sub-keys."""
    generation: RoutingEpoch = FIRST_EPOCH
    """Above 0 if the new owner in a window recreation wrote it: the epoch of that change. See ``headrace.state.recreation``."""
    sub_from: int | None = None
    """Only rows with this sub-key or a greater one count; None if all do."""

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
    """An open run: a reference, and the rows of its slots, mapped from the file."""

    ref: RunRef
    rows: pa.RecordBatch

    @property
    def h(self) -> Hashes:
        """The hashes of the rows."""
        return hashes(self.rows)

    def slice(self, lo: float, hi: float) -> Run:
        """The part of the run in slots [lo, hi)."""
        lo, hi = max(lo, self.ref.lo), min(hi, self.ref.hi)
        begin, end = row_range(self.h, lo, hi)
        return Run(replace(self.ref, lo=lo, hi=hi, rows=end - begin), self.rows.slice(begin, end - begin))


def row_range(h: Hashes, lo: float, hi: float) -> tuple[int, int]:
    """The indices [begin, end) of the rows of slots [lo, hi) among rows with these sorted hashes."""
    if lo >= hi:
        return 0, 0
    first, last = slot_bounds(lo, hi)
    return int(np.searchsorted(h, np.uint64(first), "left")), int(np.searchsorted(h, np.uint64(last), "right"))


def slot_counts(h: Hashes) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The number of rows in each slot."""
    return np.bincount((h >> np.uint64(52)).astype(np.int64), minlength=SLOTS)


def write_run(directory: Path, file: str, rows: pa.RecordBatch, layout: Layout, *, seq: RunSeq, lo: float, hi: float, sync: bool) -> RunRef:
    """Write sorted rows as a new run file; returns the reference for a manifest. ``sync`` forces the file to disk."""
    offsets = np.concatenate([[0], np.cumsum(slot_counts(hashes(rows)))]).astype("<u4")
    about = {"format": FORMAT, "fingerprint": layout.fingerprint, "rows": rows.num_rows}
    rows = rows.replace_schema_metadata({ABOUT: json.dumps(about).encode(), SLOT_OFFSETS: offsets.tobytes()})
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


class RunReader:
    """Opens the runs of a store, or an executor's working copies. A process checks each block once, and keeps files mapped."""

    def __init__(
        self,
        runs: DurableStore | Path,
        layout: Layout,
        working: Working | None = None,
        *,
        writes_home: bool = False,
        earlier: Iterable[Conversion] = (),
    ) -> None:
        """``runs`` is the folder of runs, or what a store has of them. A store behind a network needs working copies.

        With ``writes_home``, new runs are written to the working copies only. Where runs cannot be written directly, `upload` brings them.
        ``earlier`` are the conversions of runs that were written with an earlier layout.
        """
        self.store: DurableStore = FolderStore(runs) if isinstance(runs, Path) else runs
        require(working is not None or self.store.local is not None, "runs behind a network are read from working copies")
        self.earlier = {each.fingerprint: each for each in earlier}
        self.layout = layout
        self.working = working
        self.writes_home = working is not None and (writes_home or self.store.local is None)

    @property
    def writes_to(self) -> Path:
        """The folder for new runs."""
        if self.writes_home and self.working is not None:
            return self.working.make_folder()
        assert self.store.local is not None
        return self.store.local

    def upload(self, file: str) -> None:
        """Bring a run that was written here to the store, if it was not written there."""
        if self.store.local is None and self.working is not None:
            put_file(self.store, file, self.working.path(file))
            self.working.note_original(file)

    def open(self, ref: RunRef) -> Run:
        """The run with the rows that count; raise an error if they are damaged."""
        run = self._mapped(ref)
        conversion = self._conversion(ref, run)
        rows = run.slots(ref.lo, ref.hi) if conversion is None else self._converted(ref, run, conversion)
        if ref.sub_from is not None:
            rows = rows.filter(pa.array(subs(rows) >= ref.sub_from))
        return Run(ref, rows)

    def count(self, ref: RunRef) -> int:
        """How many rows of a run count. Reads only the offsets of slots, unless the reference has a ``sub_from``."""
        if ref.sub_from is not None:
            return int(self.open(ref).rows.num_rows)
        begin, end = self._mapped(ref).row_range(ref.lo, ref.hi)
        return end - begin

    def _mapped(self, ref: RunRef) -> OpenRun:
        working, folder = self.working, self.store.local
        if working is not None:
            path = working.path(ref.file)
        else:
            assert folder is not None
            path = folder / ref.file
        run = OPEN.find(str(path))
        if run is None:
            blocks = Blocks(path, ref.bytes, ref.crc) if working is None else working.open(self.store, ref.file, ref.bytes, ref.crc)
            run = OpenRun(blocks)
            OPEN.add(str(path), run)
        run.blocks.used()
        return run

    def lend(self, ref: RunRef, *, whole: bool = False) -> Iterator[tuple[int, bytes]]:
        """The blocks that hold the rows of a reference's slots, in pieces: the number of the first block, and the data.

        With ``whole``, all blocks of the file. The table of checksums comes first, with the number ``TABLE``.
        """
        run = self._mapped(ref)
        if whole:
            run.blocks.need(0, run.blocks.data_bytes)
            needed: Iterable[int] = range(len(run.blocks.checksums))
        else:
            recorded = Recorded(run.blocks)
            need_rows(recorded, run.rows, *run.row_range(ref.lo, ref.hi))
            needed = sorted(recorded.needed)
        yield TABLE, run.blocks.mapped[run.blocks.data_bytes :]
        for piece in pieces(needed, LEND_BLOCKS):
            end = min(piece.stop * BLOCK_BYTES, run.blocks.data_bytes)
            yield piece.start, run.blocks.mapped[piece.start * BLOCK_BYTES : end]

    def keep(self, file: str) -> None:
        """Keep a working copy of a run that was just written to the directory, because this executor will read it."""
        if self.working is not None and not self.writes_home and self.store.local is not None:
            self.working.keep(self.store.local / file)

    def remove(self, file: str) -> None:
        """Remove a run that no manifest names, and its working copy."""
        for folder in (self.store.local, None if self.working is None else self.working.folder):
            if folder is None:
                continue
            OPEN.close(str(folder / file))
            with suppressed(_log, f"{folder / file} cannot be removed now; a sweep removes it later", OSError, level=logging.INFO):
                (folder / file).unlink(missing_ok=True)

    def _conversion(self, ref: RunRef, run: OpenRun) -> Conversion | None:
        """What makes the run's rows those of the layout; None if they are already. Raises an error if nothing does."""
        about = run.about
        found = about.get("fingerprint")
        if about.get("format") == FORMAT and found == self.layout.fingerprint:
            return None
        if about.get("format") == FORMAT and found in self.earlier:
            return self.earlier[found]
        where = self.store.where(ref.file)
        raise CorruptStateError(
            where=where,
            wanted=f"a run of format {FORMAT} with layout {self.layout.fingerprint}",
            found=f"format {about.get('format')}, layout {found}",
            path=where,
            hint="the file belongs to another operator, another version of the query, or another version of Headrace;"
            " if the query has changed, start it with a new checkpoint",
        )

    def _converted(self, ref: RunRef, run: OpenRun, conversion: Conversion) -> pa.RecordBatch:
        """The run's rows in the present layout. They are kept, because each batch needs them again until the run is merged away."""
        wanted = (conversion.columns, self.layout.fingerprint, *run.row_range(ref.lo, ref.hi))
        known = run.converted
        if known is None or known[0] != wanted:
            run.converted = known = wanted, conversion.apply(run.slots(ref.lo, ref.hi), self.layout)
        return known[1]
