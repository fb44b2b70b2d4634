"""Looking up the state of many keys at once. Runs are searched from the newest to the oldest, until a key is found."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa

from headrace.state import keys
from headrace.state.layout import DELETED, Hashes, Indices, Layout, hashes
from headrace.state.run import Run, row_range


def newest(runs: Iterable[Run], needles: pa.RecordBatch, layout: Layout) -> tuple[Indices, pa.RecordBatch]:
    """Look up sorted, distinct keys; returns the indices of the keys that were found, and their newest values in the same order."""
    place, rows = newest_places(runs, needles, layout)
    found = np.flatnonzero(place >= 0)
    at = place[found]
    # Values from a single run are in order already.
    return found, rows if bool((at == np.arange(len(at))).all()) else rows.take(pa.array(at))


def newest_places(runs: Iterable[Run], needles: pa.RecordBatch, layout: Layout) -> tuple[Indices, pa.RecordBatch]:
    """Look up sorted, distinct keys; returns for each key the row of its newest values, or -1, and the rows in no particular order.

    Only for stores with at most one row per key. A tombstone ends the search for its key, and the key counts as not found.
    """
    h = hashes(needles)
    wanted = np.ones(needles.num_rows, dtype=np.bool_)
    place = np.full(needles.num_rows, -1, dtype=np.int64)
    pieces: list[pa.RecordBatch] = []
    rows = 0
    for run in runs:
        begin, end = row_range(h, run.ref.lo, run.ref.hi)
        which, where = _match(run, needles, np.flatnonzero(wanted[begin:end]) + begin, layout)
        if not len(which):
            continue
        wanted[which] = False
        if DELETED in run.rows.schema.names:
            alive = ~run.rows.column(DELETED).take(pa.array(where)).to_numpy(zero_copy_only=False)
            which, where = which[alive], where[alive]
        place[which] = rows + np.arange(len(which))
        rows += len(which)
        pieces.append(run.rows.select(layout.value_names).take(pa.array(where)))
    return place, _concatenate(pieces) if pieces else layout.empty().select(layout.value_names)


def all_rows(runs: Iterable[Run], needles: pa.RecordBatch) -> pa.RecordBatch | None:
    """All rows of all runs that have the hash of a needle, not merged; None if there are none."""
    h = np.unique(hashes(needles))
    pieces = [part for run in runs if (part := rows_of_hashes(run.rows, h)).num_rows]
    return _concatenate(pieces) if pieces else None


def rows_of_hashes(rows: pa.RecordBatch, h: Hashes) -> pa.RecordBatch:
    """The sorted rows that have one of these (sorted, distinct) hashes."""
    begin = np.searchsorted(hashes(rows), h, "left")
    count = np.searchsorted(hashes(rows), h, "right") - begin
    ahead = np.concatenate([[0], np.cumsum(count)[:-1]]).astype(np.int64)
    return rows.take(pa.array(np.repeat(begin - ahead, count) + np.arange(int(count.sum()))))


def _match(run: Run, needles: pa.RecordBatch, candidates: Indices, layout: Layout) -> tuple[Indices, Indices]:
    """The candidates (indices of needles) that are in the run, and their rows in it."""
    run_h, rows = run.h, run.rows.num_rows
    if not rows or not len(candidates):
        return candidates[:0], candidates[:0]
    h = hashes(needles)[candidates]
    at = np.searchsorted(run_h, h, "left")
    which: list[Indices] = []
    where: list[Indices] = []
    # The first row with the hash nearly always has the key. If two keys share a hash, the next rows are compared too.
    while len(candidates):
        hit = (at < rows) & (run_h[np.minimum(at, rows - 1)] == h)
        candidates, at, h = candidates[hit], at[hit], h[hit]
        same = keys.equal(
            [run.rows.column(name).take(pa.array(at)) for name in layout.key_names],
            [needles.column(name).take(pa.array(candidates)) for name in layout.key_names],
            len(at),
        )
        which.append(candidates[same])
        where.append(at[same])
        candidates, at, h = candidates[~same], at[~same] + 1, h[~same]
    if len(which) == 1:
        return which[0], where[0]
    found = np.concatenate(which)
    order = np.argsort(found, kind="stable")
    return found[order], np.concatenate(where)[order]


def _concatenate(pieces: list[pa.RecordBatch]) -> pa.RecordBatch:
    plain = [piece.replace_schema_metadata(None) for piece in pieces]
    return plain[0] if len(plain) == 1 else pa.concat_batches(plain)
