"""Checks a lane with numpy: the results are exactly those of the rows that were not dropped."""

from __future__ import annotations

import numpy as np

from benchmarks.overload import hashing
from benchmarks.overload.lane import OURS, SCALE, SOURCE_SEED, Outcome, Totals
from benchmarks.overload.offering import Block
from benchmarks.overload.query import HEAVY

SEED = 396238638
"""The seed of hashes that decide about rows, as docs/overload.md says."""


def kept(outcome: Outcome, branch: str, file: str, block: Block, values: np.ndarray, threshold: int) -> np.ndarray:
    """Which rows of a file were kept."""
    if outcome.name == OURS:
        if threshold >= SCALE:
            return np.ones(len(block.keys), dtype=bool)
        if branch == HEAVY:
            identity = hashing.hash_longs(block.keys)
        else:
            path = hashing.hash_text(f"{outcome.folder}/{file}")
            identity = hashing.hash_longs(np.arange(len(block.keys)), np.full(len(block.keys), path, dtype=np.uint64))
        return np.asarray(hashing.positions(identity, SEED) < threshold)
    if outcome.source_keep < SCALE:
        identity = hashing.hash_longs(values, hashing.hash_longs(block.keys))
        return np.asarray(hashing.positions(identity, SOURCE_SEED) < outcome.source_keep)
    return np.ones(len(block.keys), dtype=bool)


def expected(outcome: Outcome, blocks: list[Block], values: list[np.ndarray]) -> tuple[Totals, dict[str, int], str]:
    """The right totals, the rows kept by branch among the files that were offered by the clock, and what is wrong with the counts."""
    of = {each.name: each.block for each in outcome.came}
    timed = {each.name for each in outcome.came if each.at_s >= outcome.began_s}
    totals: Totals = {}
    delivered, wrong = {}, ""
    for branch, taken in outcome.taken.items():
        size = max(int(block.keys.max()) for block in blocks) + 1
        rows, digests = np.zeros(size, dtype=np.int64), np.zeros(size, dtype=np.int64)
        delivered[branch] = 0
        counted: dict[int, tuple[int, int]] = {}
        for file, number in taken.items():
            batch = outcome.batches[branch].get(number)
            if batch is None:
                # Its batch had not ended when the lane did.
                continue
            block = blocks[of[file]]
            which = kept(outcome, branch, file, block, values[of[file]], batch.thresholds.get(branch, SCALE))
            rows += np.bincount(block.keys[which], minlength=size)
            digests += np.bincount(block.keys[which], weights=block.digests[branch][which], minlength=size).astype(np.int64)
            delivered[branch] += int(which.sum()) if file in timed else 0
            arrived, shed = counted.get(number, (0, 0))
            counted[number] = arrived + len(which), shed + int((~which).sum())
        for number, (arrived, shed) in counted.items():
            said = outcome.batches[branch][number].counted.get(branch)
            if said is not None and said != (arrived, shed):
                wrong = wrong or f"batch {number} of {branch} says {said} rows arrived and were shed; these are {(arrived, shed)}"
        totals[branch] = {int(k): (int(rows[k]), int(digests[k])) for k in np.flatnonzero(rows)}
    return totals, delivered, wrong


def difference(found: Totals, right: Totals) -> str:
    """What is wrong with the results; empty if nothing is."""
    for branch, totals in right.items():
        mine = found.get(branch, {})
        off = [k for k in totals.keys() | mine.keys() if totals.get(k) != mine.get(k)]
        if off:
            return f"{len(off)} keys of {branch}, such as {off[0]}: {mine.get(off[0])} instead of {totals.get(off[0])}"
    return ""


def latencies(outcome: Outcome) -> np.ndarray:
    """Seconds from a file's arrival to the end of its batch, for each file that came by the clock and each branch.

    A file that no batch has read until the end counts with the time that it has waited by then.
    """
    found = []
    for branch, taken in outcome.taken.items():
        for each in outcome.came:
            if each.at_s < outcome.began_s:
                continue
            batch = outcome.batches[branch].get(taken.get(each.name, -1))
            found.append((outcome.ended_s if batch is None else batch.end_s) - each.at_s)
    return np.array(found)
