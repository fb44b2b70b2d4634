"""Every query of Nexmark, in SQL and as a DataFrame, gives Spark's answers on both engines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from benchmarks.nexmark.bench import BENCHMARK, NOT_SPARK, chosen, lane_name
from benchmarks.nexmark.events import AUCTION_MS_MAX, DELAY, JITTER_MS
from benchmarks.nexmark.frames import FRAMES
from benchmarks.nexmark.queries import QUERIES
from benchmarks.nexmark.sql import REFERENCE, SQL
from benchmarks.nexmark.tables import so_far
from headrace.bench.inline import InlineLane
from headrace.bench.model import OURS, ROCKSDB, Benchmark, Lane
from headrace.bench.run import BenchSettings, run_benchmark
from headrace.errors import HeadraceError

pytestmark = pytest.mark.spark

PARAMS = {"rows": 2000, "step_s": 10, "in_flight": 30, "form": "sql"}


def test_all_queries_are_there() -> None:
    assert list(QUERIES) == [f"q{number}" for number in range(23)]
    assert set(FRAMES) == set(QUERIES)
    assert set(SQL) | set(REFERENCE) == set(QUERIES)
    assert {each.name for each in chosen({"queries": "stateful"})} | {each.name for each in chosen({"queries": "stateless"})} == set(
        QUERIES
    )


def test_an_unknown_query_is_refused() -> None:
    with pytest.raises(HeadraceError, match="q23"):
        BENCHMARK.lanes({**BENCHMARK.options, "queries": "q3,q23"})


def test_each_query_has_a_lane_per_engine() -> None:
    lanes = BENCHMARK.lanes(BENCHMARK.options)
    assert [lane.name for lane in lanes if lane.engine == OURS] == [lane_name(name, OURS) for name in QUERIES]
    assert [lane.params["query"] for lane in lanes if lane.engine == ROCKSDB] == [name for name in QUERIES if name not in NOT_SPARK]


def test_events_have_nexmarks_proportions_and_hold_together(spark: SparkSession) -> None:
    t = so_far(spark, 5000, PARAMS)
    assert (t.person.count(), t.auction.count(), t.bid.count()) == (100, 300, 4600)
    assert t.auction.agg(F.countDistinct("id")).collect() == [(300,)]
    assert t.person.agg(F.countDistinct("id")).collect() == [(100,)]
    assert t.auction.filter(F.unix_millis("expires") - F.unix_millis("dateTime") > AUCTION_MS_MAX).count() == 0
    # Half of the bids go to hot auctions, and most auctions get some.
    hot = t.bid.filter(F.col("auction") % 100 == 0).count()
    assert 0.45 < hot / 4600 < 0.6
    assert t.auction.join(t.bid, t.auction.id == t.bid.auction, "left_semi").count() > 200
    assert t.person.join(t.auction, t.person.id == t.auction.seller, "left_semi").count() > 10


def test_event_time_is_out_of_order_but_never_late(spark: SparkSession) -> None:
    seconds = int(DELAY.split()[0])
    assert seconds * 1000 > JITTER_MS
    times = [row[0] for row in so_far(spark, 3000, PARAMS).bid.select(F.unix_millis("dateTime")).collect()]
    newest = 0
    for time in times:
        assert time > newest - seconds * 1000
        newest = max(newest, time)
    assert times != sorted(times)


@pytest.mark.slow
@pytest.mark.extra
@pytest.mark.parametrize("form", ["sql", "dataframe"])
@pytest.mark.parametrize("name", QUERIES)
def test_both_engines_give_sparks_batch_answer(spark: SparkSession, tmp_path: Path, name: str, form: str) -> None:
    def inline(benchmark: Benchmark, lane: Lane, place: Path) -> InlineLane:
        return InlineLane(spark, benchmark.name, lane, place)

    options = f"--queries {name} --form {form} --rows 2000 --in-flight 30"
    settings = BenchSettings(seconds=0.2, turns=1, warmup=5, directory=str(tmp_path))
    line: dict[str, Any] = run_benchmark("nexmark", options.split(), settings, inline)
    assert "reasons" not in line
    assert line["equal"] is True, line["lanes"]
    assert set(line["ratio"]) == {name} - set(NOT_SPARK)
    assert all(lane["rows_checked"] > 0 and not lane["digest"].startswith("0 rows") for lane in line["lanes"].values())
