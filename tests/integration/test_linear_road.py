"""Linear Road at a small size: a past, a few seconds at the road's own speed, two expressways, every answer checked."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from benchmarks.linear_road.check import expected, verdict
from benchmarks.linear_road.paced import prepare
from benchmarks.linear_road.reference import Answers
from benchmarks.linear_road.road import Traffic
from benchmarks.linear_road.run import Outcome, Run, response_times

PAST_S, PRESENT_S = 300, 4


@pytest.mark.extra
@pytest.mark.slow
@pytest.mark.spark
def test_every_answer_is_the_references(spark: SparkSession, tmp_path: Path) -> None:
    traffic = Traffic(rate_first=60, rate_last=60, accident_every_s=20, accident_s=(150, 200), questions=0.05)
    day = prepare(tmp_path / "day", traffic, PAST_S, PAST_S + PRESENT_S, portion_s=120)
    wanted = expected(day)
    assert wanted.accidents, "the case is one with accidents"
    assert len(wanted.daily) > 20
    outcome = Outcome(xways=2)
    Run(spark, day, tmp_path / "run", outcome, instances=2).go()
    told = outcome.table()
    found = verdict(told, wanted, 2, day)
    assert found.equal, found.why
    assert response_times(outcome, day)["toll"][4] > 0
    # The check would notice: one answer less, and one that is another.
    assert not verdict(told.slice(1), wanted, 2, day).equal
    other = Answers(wanted.tolls[:-1] + [(*wanted.tolls[-1][:3], 12_345)], wanted.accidents, wanted.balances, wanted.daily, wanted.travel)
    assert "toll" in verdict(told, other, 2, day).why
