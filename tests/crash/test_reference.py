"""The graph that other tests here kill and compare with itself is compared with a reference once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.crash.conftest import Undisturbed
from tests.crash.driver import DELAY_S
from tests.crash.harness import write_input

pytestmark = [pytest.mark.spark, pytest.mark.slow]

WITHIN_US = 3_000_000


def pairs_of(source: Path) -> Counter[tuple[int, int, int | None]]:
    """The join of the two branches, in plain Python: one file a batch, rows behind the watermark of the batch before are late."""
    low: list[tuple[int, int]] = []
    high: list[tuple[int, int]] = []
    reached_us = 0
    for path in sorted(source.iterdir()):
        table = pq.read_table(path)
        times = table.column("ts").cast(pa.int64()).to_pylist()
        rows = [(k, ts, v) for k, ts, v in zip(table.column("k").to_pylist(), times, table.column("v").to_pylist(), strict=True)]
        for k, ts, v in rows:
            if k is not None and ts > reached_us:
                (low if v is not None and v < 0.5 else high).append((k, ts))
        newest = max(ts for _, ts, _ in rows)
        reached_us = max(reached_us, newest // 1000 * 1000 - DELAY_S * 1_000_000)
    found: Counter[tuple[int, int, int | None]] = Counter()
    for k, ts in low:
        partners = [other for key, other in high if key == k and abs(other - ts) <= WITHIN_US]
        found.update((k, ts, other) for other in partners)
        if not partners and ts + WITHIN_US <= reached_us:
            found[k, ts, None] += 1
    return found


@pytest.mark.extra
def test_a_join_of_two_branches_equals_a_reference(tmp_path: Path, undisturbed: Undisturbed) -> None:
    source = write_input(tmp_path / "input", files=4, seed=2)
    expected = pairs_of(source)
    left = undisturbed("graph", source, tmp_path / "work")
    found = Counter((int(k), start.value // 1000, None if n is None else int(n)) for name, k, start, n in left.output if name == "pairs")
    assert any(partner is None for *_, partner in expected)
    assert any(partner is not None for *_, partner in expected)
    assert found == expected
