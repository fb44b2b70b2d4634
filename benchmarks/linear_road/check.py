"""Compares every answer with the reference, expressway by expressway."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.linear_road.paced import Prepared
from benchmarks.linear_road.reference import Answers, Reference
from benchmarks.linear_road.run import KINDS

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Verdict:
    equal: bool
    checked: int
    why: str = ""


def expected(day: Prepared) -> Answers:
    """The expected answers of one expressway."""
    spent = pq.read_table(day.history)
    reference = Reference({(vid, d, xway): toll for vid, d, xway, toll in zip(*(c.to_pylist() for c in spent.columns), strict=True)})
    for tuples in day.tables():
        reference.feed(zip(*(column.to_pylist() for column in tuples.columns), strict=True))
    return reference.answers


def verdict(told: pa.Table, wanted: Answers, xways: int, day: Prepared) -> Verdict:
    """The verdict: equal if every answer is there exactly once, and right."""
    kind = told["kind"].to_numpy()
    rows = np.stack([told[name].to_numpy().astype(np.int64) for name in ("Time", "a", "b", "c")], axis=1)
    plain = {
        "toll": [(time, vid, lav, toll) for vid, time, lav, toll in wanted.tolls],
        "accident": [(time, vid, seg, -1) for time, vid, seg in wanted.accidents],
        "daily": [(time, qid, -1, balance) for time, qid, balance in wanted.daily],
        "travel": [(time, qid, seconds, toll) for qid, time, seconds, toll in wanted.travel],
    }
    for at, name in enumerate(KINDS):
        mine = rows[kind == at]
        if name == "balance":
            why = _wrong_balances(mine, wanted, xways, day)
        else:
            shift = day.vids if name in ("toll", "accident") else day.qids
            why = _different(mine, np.array(plain[name], dtype=np.int64).reshape(-1, 4), xways, shift)
        if why:
            return Verdict(False, len(rows), f"{name}: {why}")
    return Verdict(True, len(rows))


def _different(found: Rows, one: Rows, xways: int, shift: int) -> str:
    """How the answers differ from copies of one expressway's answers; empty if they do not. ``shift`` separates the numbers of copies."""
    if len(found) != xways * len(one):
        return f"{len(found):,} answers instead of {xways * len(one):,}"
    copy = found[:, 1] // shift if xways > 1 else np.zeros(len(found), dtype=np.int64)
    found, one = found[np.argsort(copy, kind="stable")], one[np.lexsort(one.T)]
    for at in range(xways):
        mine = found[at * len(one) : (at + 1) * len(one)] - np.array([0, at * shift, 0, 0])
        mine = mine[np.lexsort(mine.T)]
        wrong = np.flatnonzero((mine != one).any(axis=1))
        if len(wrong):
            return f"{mine[wrong[0]].tolist()} instead of {one[wrong[0]].tolist()}, on expressway {at}"
    return ""


def _wrong_balances(found: Rows, wanted: Answers, xways: int, day: Prepared) -> str:
    right: dict[int, Any] = {qid: balances for _, qid, _, balances in wanted.balances}
    if len(found) != xways * len(right) or len(np.unique(found[:, 1])) != len(found):
        return f"{len(found):,} answers instead of {xways * len(right):,}"
    for time, qid, _, balance in found.tolist():
        if balance not in right[qid % day.qids if xways > 1 else qid]:
            return f"{balance} for question {qid} at {time} instead of one of {sorted(right[qid % day.qids if xways > 1 else qid])}"
    return ""
