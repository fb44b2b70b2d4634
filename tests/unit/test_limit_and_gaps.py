"""Kernels that the front end needs: ``limit`` over all batches, and sessions whose gap differs from row to row."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.operators.first_rows import FirstRows
from headrace.operators.partials import Count
from headrace.operators.session import SessionAggregate
from headrace.state.layout import Layout, Policy
from tests.unit.test_join_kernels import MS, Instance, Row

LIMIT = FirstRows(pa.schema([("c0", pa.int64())]), limit=5)
GAPS = SessionAggregate(
    Layout((("k0", pa.int64()),), (("start", pa.int64()), ("end", pa.int64()), ("p0", pa.int64())), has_sub=True, policy=Policy.KEEP),
    (Count(),),
    None,
)


@dataclass
class Fed(Instance):
    """An instance whose rows are: a number that is not used, the key, the time, and a value (the gap of a session)."""

    def _arrow(self, rows: list[Row]) -> pa.RecordBatch:
        made = {
            "h": [key for _, key, _, _ in rows],
            "k0": [key for _, key, _, _ in rows],
            "sub": [time * MS for _, _, time, _ in rows],
            "end": [(time + gap) * MS for _, _, time, gap in rows],
            "p0": [1 for _ in rows],
            "c0": [value for _, _, _, value in rows],
            "order": list(range(len(rows))),
        }
        schema = self.operator.input_schema
        return pa.RecordBatch.from_arrays([pa.array(made[f.name], f.type) for f in schema], schema=schema)


def test_a_limit_counts_the_rows_of_all_batches(tmp_path: Path) -> None:
    instance = Fed(LIMIT, tmp_path)
    batches = [[7, 3], [], [9, 1, 8], [4], [5]]
    found = [[row["c0"] for row in instance.batch([(0, 0, 0, value) for value in batch], 0)] for batch in batches]
    assert found == [[7, 3], [], [9, 1, 8], [], []]


def test_a_limit_takes_the_first_rows_of_a_batch(tmp_path: Path) -> None:
    assert [row["c0"] for row in Fed(LIMIT, tmp_path).batch([(0, 0, 0, value) for value in (6, 5, 4, 3, 2, 1)], 0)] == [6, 5, 4, 3, 2]


@pytest.mark.parametrize("seed", range(20))
def test_sessions_with_a_gap_for_each_row(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    rows = [(0, rng.randrange(2), rng.randrange(60), rng.choice([1, 3, 12])) for _ in range(30)]
    instance = Fed(GAPS, tmp_path)
    found: list[dict[str, Any]] = []
    # The watermark stays behind all rows until the end, so that none is late.
    for at in range(0, len(rows), 7):
        found += instance.batch(rows[at : at + 7], 0)
    found += instance.batch([], 1000)
    assert sorted((row["k0"], row["start"] // MS, row["end"] // MS, row["p0"]) for row in found) == _sessions(rows)


def _sessions(rows: list[Row]) -> list[tuple[int, int, int, int]]:
    """Key, start, end and number of rows of each session."""
    found: list[tuple[int, int, int, int]] = []
    for _, key, time, gap in sorted(rows, key=lambda row: (row[1], row[2])):
        if found and found[-1][0] == key and time <= found[-1][2]:
            _, start, end, count = found.pop()
            found.append((key, start, max(end, time + gap), count + 1))
        else:
            found.append((key, time, time + gap, 1))
    return sorted(found)
