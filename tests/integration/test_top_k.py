"""Top-k at a small size: a loop that is open, a buffer that overflows, an instance more; every window's ranking is the reference's."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from benchmarks.top_k.lane import run
from benchmarks.top_k.outcome import ELASTIC, ONE, SPARK, Order
from benchmarks.top_k.views import lines, write_blocks


@pytest.mark.extra
@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize("name", [ELASTIC, ONE, SPARK])
def test_every_ranking_is_right_though_lines_are_discarded(spark: SparkSession, tmp_path: Path, name: str) -> None:
    blocks = write_blocks(tmp_path / "blocks", lines(280, seed=1, count=2_000), 12, 500)
    small = Order(name, tmp_path / "lane", tuple(blocks), 500, 2, 4, 2.0, 6.0, 2, 2, rate=500 * 60, period_s=0.5)
    # A session of its own: the lane sets things that later tests must not find.
    own = spark.newSession()
    own.conf.set("spark.sql.shuffle.partitions", "2")
    seen = run(own, small)
    assert not seen.wrong
    assert len(seen.rankings) >= 3
    assert seen.discarded() > 0
    assert seen.consumed() > 0
    came, took = seen.latencies()
    assert len(came) == len(seen.offered) - seen.discarded() / 500
    assert took.min() > 0
    assert min(seen.capacity.values()) > 0
    assert seen.batches[-1].instances == (1 if name == ONE else 2)
    assert (name == ELASTIC) == bool(seen.decisions)
