"""A query follows its load by itself: a burst makes it grow, quiet makes it shrink, and its results are those of an undisturbed one."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

import headrace as hr
from headrace.cli import app, run
from headrace.control.governor import Outcome
from headrace.errors import QueryError
from headrace.sim.replay import read_batches, replay

# Workers need not be able to import the tests.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

pytestmark = pytest.mark.spark

ROW_S = 0.002
QUICK = {"lower": 0.3, "target": 0.45, "upper": 0.6, "period_s": 1.0, "cooldown_s": 1.0}
"""Tasks that sleep most of the time leave the batch's own work a large part of it; so the thresholds lie low."""


class Slow(hr.Processor):
    """Counts rows by key, and takes its time for each."""

    def process(self, rows: pa.Table, state: Any) -> pa.Table:
        time.sleep(rows.num_rows * ROW_S)
        new = rows.group_by("k").aggregate([("v", "count")])
        counts = pa.table({"k": new["k"], "n": pc.add(new["v_count"], pc.fill_null(state.get(new)["n"], 0))})
        state.put(counts)
        return counts


@dataclass
class Source:
    """A folder that rows are written to."""

    folder: Path
    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(5))
    written: Counter[int] = field(default_factory=Counter)
    files: int = 0

    def pour(self, rows: int, until: Callable[[], bool], seconds_max: float = 120.0) -> None:
        """So many rows every fifth of a second, until something is the case."""
        deadline = time.monotonic() + seconds_max
        while not until():
            assert time.monotonic() < deadline, "what was waited for did not happen"
            keys = self.random.integers(0, 40, rows).tolist()
            hidden = self.folder / f".{self.files}"
            pq.write_table(pa.table({"k": keys, "v": keys}), hidden)
            hidden.rename(self.folder / f"{self.files}.parquet")
            self.written.update(keys)
            self.files += 1
            time.sleep(0.2)


@pytest.fixture
def source(tmp_path: Path) -> Source:
    folder = tmp_path / "in"
    folder.mkdir()
    return Source(folder)


def start(spark: SparkSession, tmp_path: Path, source: Source, counts: dict[int, int], settings: hr.Elastic | None) -> hr.HeadraceQuery:
    stream = hr.stream(spark.readStream.schema("k long, v long").parquet(str(source.folder)))
    counted = stream.groupBy("k").process(Slow(), "k long, n long", state="n long")
    writer = counted.writeStream.foreachBatch(lambda rows, _: counts.update({row.k: row.n for row in rows.collect()}))
    writer = writer.option("checkpointLocation", str(tmp_path / "ckpt")).option("headrace.instances", 1)
    return (writer if settings is None else writer.elastic(settings)).start()


def instances(query: hr.HeadraceQuery) -> int:
    return query.routing()["process"].instances


def told_of(query: hr.HeadraceQuery) -> list[int]:
    return [change["instances"] for each in query.recentProgress for change in each["headrace"]["changes"]]


def outcomes(query: hr.HeadraceQuery) -> list[Outcome]:
    return [entry.outcome for entry in query.decisions()]


@pytest.mark.slow
def test_instances_follow_the_load_unless_somebody_knows_better(
    spark: SparkSession, tmp_path: Path, source: Source, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "250")
    counts: dict[int, int] = {}
    query = start(spark, tmp_path, source, counts, hr.Elastic(policy="elastic-manager", min=1, max=4, **QUICK))

    def ctl(*args: str) -> str:
        capsys.readouterr()
        assert run(app, ["ctl", args[0], str(tmp_path / "ckpt"), *args[1:]]) == 0
        return capsys.readouterr().out

    try:
        # A burst: 100 rows a fifth of a second are a second of work a second, for which three instances are wanted.
        # The routing changes first, and then the decision is noted.
        source.pour(100, until=lambda: instances(query) > 1 and any(e.outcome is Outcome.PERFORMED for e in query.decisions()))
        grown = next(entry for entry in query.decisions() if entry.outcome is Outcome.PERFORMED)
        assert (grown.what, grown.instances_before) == ("scale out", 1)
        assert "> 60%" in grown.why
        # Somebody knows better; the policy leaves it at that, also when it is quiet. (The policy itself never goes
        # that far, so this is a change wherever a slow machine had got to.)
        by_hand = 5
        query.rescale(by_hand)
        source.pour(2, until=lambda: Outcome.OVERRIDDEN in outcomes(query))
        assert instances(query) == by_hand
        assert f"rescale to {by_hand} was asked for; no automatic changes of process until" in ctl("decisions")
        # Given back, it shrinks.
        assert "all operators" in ctl("auto")
        # The progress tells of a change with the batch after it.
        source.pour(2, until=lambda: instances(query) == 1 and told_of(query)[-1] == 1)
        assert Outcome.RESUMED in outcomes(query)
        query.processAllAvailable()
        progress = query.recentProgress
        said = [json.loads(line) for line in ctl("decisions", "--json").splitlines()]
    finally:
        query.stop()
    assert counts == dict(source.written)
    done = [each["outcome"] for each in said if each["outcome"] in ("performed", "by hand")]
    assert (done[0], done[-1], done.count("by hand")) == ("performed", "performed", 1)
    # Every change is told by the progress too, with the reason.
    changes = [change for each in progress for change in each["headrace"]["changes"]]
    told = [(change["instances"], change["why"].split(":")[0]) for change in changes]
    assert told[0] == (grown.instances, "elastic-manager")
    assert told[-1] == (1, "elastic-manager")
    assert told.count((by_hand, f"rescale to {by_hand} was asked for; state recreation")) == 1
    decided = [each for batch in progress for each in batch["headrace"]["decisions"]]
    assert next(each for each in decided if each["outcome"] == "performed")["why"] == grown.why
    # The record can be replayed, and says much the same up to the first change: a running query may look at two batches at once.
    recorded = read_batches(each.json for each in progress)
    again = replay(recorded, hr.Elastic(policy="elastic-manager", min=1, max=4, **QUICK)).performed[0]
    assert (again.what, again.instances_before) == (grown.what, 1)


@pytest.mark.extra
def test_a_dry_run_decides_and_changes_nothing(spark: SparkSession, tmp_path: Path, source: Source) -> None:
    counts: dict[int, int] = {}
    query = start(spark, tmp_path, source, counts, hr.Elastic(policy="rates", max=4, dry_run=True, period_s=0.5, target=0.5))
    try:
        source.pour(150, until=lambda: Outcome.DRY_RUN in outcomes(query))
        wanted = next(entry for entry in query.decisions() if entry.outcome is Outcome.DRY_RUN)
        assert wanted.instances > 1
        assert "of its time with" in wanted.why
        query.processAllAvailable()
        assert query.routing()["process"].epoch == 0
        assert not [change for each in query.recentProgress for change in each["headrace"]["changes"]]
    finally:
        query.stop()
    assert counts == dict(source.written)


def test_a_query_that_is_not_elastic_says_how_to_make_it_so(spark: SparkSession, tmp_path: Path, source: Source) -> None:
    query = start(spark, tmp_path, source, {}, None)
    try:
        for call in (query.decisions, query.elastic_resume):
            with pytest.raises(QueryError, match=r"a query that is elastic; found one that only changes by hand; start it with .*elastic"):
                call()
    finally:
        query.stop()


def test_what_is_no_setting_is_refused_at_the_user_s_line(spark: SparkSession, tmp_path: Path, source: Source) -> None:
    stream = hr.stream(spark.readStream.schema("k long, v long").parquet(str(source.folder))).groupBy("k").count()
    with pytest.raises(QueryError, match=r"elastic at test_elastic.py:\d+: wanted settings: hr.Elastic"):
        stream.writeStream.elastic("elastic-manager")  # type: ignore[arg-type]
    writers = [stream.writeStream.format("noop").outputMode("update").elastic(hr.Elastic(max=n)) for n in (2, 3)]
    with pytest.raises(QueryError, match=r"one elastic\(...\) for all writers"):
        hr.start(*writers, checkpointLocation=str(tmp_path / "ckpt"))


class Passing(hr.Processor):
    """Passes every row on, and takes its time for each."""

    def process(self, rows: pa.Table, state: Any) -> pa.Table:
        time.sleep(rows.num_rows * ROW_S)
        return rows.select(["k", "v"])


@pytest.mark.extra
@pytest.mark.slow
def test_stages_that_run_one_after_another_grow_although_each_alone_would_not(spark: SparkSession, tmp_path: Path, source: Source) -> None:
    """Three operators of which each needs about 45% of the time: together they need more than there is."""
    stream = hr.stream(spark.readStream.schema("k long, v long").parquet(str(source.folder)))
    for _ in range(3):
        stream = stream.groupBy("k").process(Passing(), "k long, v long", state="n long")
    writer = stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "ckpt")).option("headrace.instances", 1)
    query = writer.elastic(hr.Elastic(policy="elastic-manager", min=1, max=4, period_s=2.0, cooldown_s=2.0)).start()
    try:
        source.pour(45, until=lambda: any(e.outcome is Outcome.PERFORMED for e in query.decisions()))
        entries = query.decisions()
    finally:
        query.stop()
    first = next(entry for entry in entries if entry.outcome is Outcome.PERFORMED)
    assert (first.what, first.instances_before) == ("scale out", 1)
    assert "scan, combine and delivery" in first.why
    lines = [json.dumps(each) for each in query.recentProgress]
    watched = replay(read_batches(lines), hr.Elastic(policy="elastic-manager", min=1, max=4, period_s=2.0, dry_run=True))
    loads = [load for moment in watched.moments for load in moment.observation.operators]
    assert loads
    assert max(float(load.cpu.mean()) for load in loads) < 0.9, "no operator alone was above the threshold"
