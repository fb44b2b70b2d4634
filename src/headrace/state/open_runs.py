"""The runs that a process has open, as mapped files. Files never change, so runs stay open, and each block is checked only once."""

from __future__ import annotations

import json
import os
import threading
from collections import OrderedDict
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.ids import hash_at
from headrace.state.blocks import Blocks, need_rows, open_batch
from headrace.state.layout import HASH, hashes

SLOT_OFFSETS = b"headrace.slots"
"""The key of the schema metadata that holds the row at which each slot begins."""

ABOUT = b"headrace"
"""The key of the schema metadata that holds the format of the file and the fingerprint of its layout."""


class OpenRun:
    """A mapped run file. The blocks of a slot are checked when the slot is first read."""

    def __init__(self, blocks: Blocks) -> None:
        self.blocks = blocks
        self.rows = open_batch(blocks)
        self.metadata = self.rows.schema.metadata or {}
        self.offsets = np.frombuffer(self.metadata.get(SLOT_OFFSETS, b""), dtype="<u4")
        self.known: set[tuple[int, int]] = set()
        self.converted: tuple[Any, pa.RecordBatch] | None = None
        """Rows that were read under a later layout: what was asked for, and the answer."""

    @cached_property
    def about(self) -> dict[str, Any]:
        """The format of the file, the fingerprint of its layout, and how many rows it has."""
        found: dict[str, Any] = json.loads(self.metadata.get(ABOUT, b"{}"))
        return found

    def row_range(self, lo: float, hi: float) -> tuple[int, int]:
        """The indices [begin, end) of the rows of slots [lo, hi)."""
        return (self._row_at(lo), self._row_at(hi)) if lo < hi else (0, 0)

    def _row_at(self, edge: float) -> int:
        """The index of the first row at or after a position. For a position inside a slot, the hashes of the slot are searched."""
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
    """The open runs of this process, by path; at most ``most``, of which the least recently used is closed first. Safe for many threads."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._by_path: OrderedDict[str, OpenRun] = OrderedDict()
        self._lock = threading.Lock()

    def find(self, path: str) -> OpenRun | None:
        """The open run of a path; None if it is not open, or its file has been cut short."""
        with self._lock:
            run = self._by_path.get(path)
            if run is None:
                return None
            if not run.blocks.is_whole():
                # The caller opens it again. That repairs a working copy, and refuses a file of the checkpoint.
                del self._by_path[path]
                return None
            self._by_path.move_to_end(path)
            return run

    def add(self, path: str, run: OpenRun) -> None:
        """Keep a run open."""
        with self._lock:
            # A removed file takes up disk space as long as it is mapped, so it is closed.
            for gone in [known for known in self._by_path if not os.path.exists(known)]:
                del self._by_path[gone]
            self._by_path[path] = run
            while len(self._by_path) > self.most:
                self._by_path.popitem(last=False)

    def close(self, path: str) -> None:
        """Close the run of a path, if it is open."""
        with self._lock:
            self._by_path.pop(path, None)

    def close_all(self, directory: Path | None = None) -> None:
        """Close all runs of a directory, or all runs."""
        with self._lock:
            for path in [known for known in self._by_path if directory is None or Path(known).parent == directory]:
                del self._by_path[path]


OPEN = OpenRuns(512)
"""Each open run takes a file descriptor, and some libraries fail with descriptors above 1,023."""
