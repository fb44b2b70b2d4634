"""Runs that a process has mapped. Files never change, so a run that is open stays open, and what was checked once is not checked again."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pyarrow as pa

from headrace.ids import hash_at
from headrace.state.blocks import Blocks, need_rows, open_batch
from headrace.state.layout import HASH, hashes

SLOT_OFFSETS = b"headrace.slots"
"""Where a run says at which row each slot begins."""


class OpenRun:
    """A run's file, mapped; slots are checked when they are first needed."""

    def __init__(self, blocks: Blocks) -> None:
        self.blocks = blocks
        self.rows = open_batch(blocks)
        self.metadata = self.rows.schema.metadata or {}
        self.offsets = np.frombuffer(self.metadata.get(SLOT_OFFSETS, b""), dtype="<u4")
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


class OpenRuns:
    """The runs that this process has mapped, by path. Several queries of a driver, and readers of their state, use it from their own
    threads."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._by_path: OrderedDict[str, OpenRun] = OrderedDict()
        self._lock = threading.Lock()

    def find(self, path: str) -> OpenRun | None:
        with self._lock:
            run = self._by_path.get(path)
            if run is None:
                return None
            if not run.blocks.is_whole():
                # Opened anew, a copy is mended and an original is refused.
                del self._by_path[path]
                return None
            self._by_path.move_to_end(path)
            return run

    def add(self, path: str, run: OpenRun) -> None:
        with self._lock:
            # A file that was removed keeps its place on disk for as long as somebody has it mapped.
            for gone in [known for known in self._by_path if not os.path.exists(known)]:
                del self._by_path[gone]
            self._by_path[path] = run
            while len(self._by_path) > self.most:
                self._by_path.popitem(last=False)

    def close(self, path: str) -> None:
        with self._lock:
            self._by_path.pop(path, None)

    def close_all(self, directory: Path | None = None) -> None:
        """All of a directory, or all there are."""
        with self._lock:
            for path in [known for known in self._by_path if directory is None or Path(known).parent == directory]:
                del self._by_path[path]


OPEN = OpenRuns(512)
"""Each is an open file, and many a library cannot deal with numbers of files above 1,023."""
