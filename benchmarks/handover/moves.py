"""Bytes fetched when n instances become one more or one less: real runs and working copies, one folder per instance (Floe: O(1/n))."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa

from headrace.ids import SLOTS
from headrace.state.layout import Layout
from headrace.state.open_runs import OPEN
from headrace.state.routing import Routing
from headrace.state.run import RunReader, RunRef, write_run
from headrace.state.slots import clip
from headrace.state.working import Working

LAYOUT = Layout(keys=(("k", pa.int64()),), values=(("n", pa.int64()), ("s", pa.int64())))


def moved_share(rows: int, sizes: tuple[int, ...] = (1, 2, 4, 8, 16)) -> dict[str, dict[str, float]]:
    """By n: the share of the state's bytes that is fetched when n instances become n + 1, and when they become n again."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        runs = Path(folder) / "runs"
        runs.mkdir()
        refs = [_run(runs, at, rows // (2 * at + 1)) for at in range(3)]
        whole = sum(ref.bytes for ref in refs)
        for n in sizes:
            fewer, more = Path(folder) / f"{n}", Path(folder) / f"{n}-and-one"
            _fetch(fewer, runs, refs, Routing.even(n))
            added = _fetch(fewer, runs, refs, Routing.even(n).rescaled(n + 1))
            _fetch(more, runs, refs, Routing.even(n + 1))
            removed = _fetch(more, runs, refs, Routing.even(n + 1).rescaled(n))
            found[str(n)] = {"added": round(added / whole, 4), "removed": round(removed / whole, 4), "of_slots": round(1 / (n + 1), 4)}
    return found


def _run(folder: Path, at: int, rows: int) -> RunRef:
    h = np.sort(np.random.default_rng(at).integers(0, 2**63, rows).astype(np.uint64) * np.uint64(2))
    columns = [pa.array(h), pa.array(h.astype(np.int64)), pa.array(np.arange(rows)), pa.array(np.arange(rows))]
    batch = pa.RecordBatch.from_arrays(columns, schema=LAYOUT.schema)
    return write_run(folder, f"{at}.arrow", batch, LAYOUT, seq=at, lo=0, hi=SLOTS, sync=False)


def _fetch(copies: Path, runs: Path, refs: list[RunRef], routing: Routing) -> int:
    """Let every instance open what it owns, and return the bytes that were not in its folder yet."""
    fetched = 0
    for instance, ranges in enumerate(routing.ranges):
        OPEN.close_all()
        working = Working(copies / str(instance))
        reader = RunReader(runs, LAYOUT, working)
        for ref in clip(refs, ranges):
            reader.open(ref)
        fetched += working.fetched_bytes
    return fetched
