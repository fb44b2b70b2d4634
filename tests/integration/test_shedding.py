"""Rows are dropped only where and as far as the user allows it; what was dropped is exact, repeatable, and counted."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import headrace as hr
from benchmarks.overload import hashing
from headrace.compile.shedding import SEED
from headrace.errors import QueryError, UnsupportedError
from headrace.runtime.checkpoint import Checkpoint
from headrace.runtime.shedding import MEMORY
from headrace.state.drops import ShedId
from headrace.testing import QueryTest

pytestmark = pytest.mark.spark

ROWS = "k long, ts timestamp, v long"
SCALE = 1_000_000


@pytest.fixture
def t(spark: SparkSession, tmp_path: Path) -> Iterator[QueryTest]:
    with QueryTest(spark, tmp_path) as made:
        yield made


def some_rows(number: int, count: int = 200) -> list[tuple[int, datetime, int]]:
    random, begin = np.random.default_rng(number), datetime(2026, 1, 1, tzinfo=UTC)
    keys, values = random.integers(0, 30, count).tolist(), random.integers(0, 100, count).tolist()
    return [(k, begin + timedelta(seconds=60 * number + at / 10), v) for at, (k, v) in enumerate(zip(keys, values, strict=True))]


class Sink:
    """Keeps what each batch delivered. A batch that is delivered again must be the same."""

    def __init__(self) -> None:
        self.batches: dict[int, list[Any]] = {}
        self.again = 0

    def take(self, rows: DataFrame, number: int) -> None:
        found = sorted(rows.collect())
        if number in self.batches:
            self.again += 1
            assert found == self.batches[number]
        self.batches[number] = found


def overloaded(rows: Any, sink: Sink, mode: str = "append") -> Any:
    """A writer with a deadline that no batch can keep: as much is dropped as is allowed, as soon as costs are known."""
    return rows.writeStream.outputMode(mode).foreachBatch(sink.take).deadline("10 milliseconds")


def warm(t: QueryTest, rows: Any, count: int = 2) -> list[list[Any]]:
    """Run the first batches, from which the costs are learned. Nothing is dropped yet."""
    given = [some_rows(number) for number in range(count)]
    for each in given:
        rows.add(*each)
    t.run()
    t.query._engine.shedder.plan()  # type: ignore[union-attr]
    return given


def dropped(t: QueryTest) -> dict[int, dict[str, int]]:
    """By batch: the thresholds of the places, as the manifests say."""
    manifests, found = Checkpoint(str(t.checkpoint)).manifests, {}
    for version in manifests.versions():
        drops = manifests.read(version).drops
        found[int(version)] = {} if drops is None else {str(name): each.threshold for name, each in drops.places.items()}
    return found


def kept_by_row(t: QueryTest, number: int, rows: list[Any], threshold: int) -> list[Any]:
    """The rows of a batch that are kept, by the file and the position in it, in plain Python."""
    file = hashing.hash_text(f"file:{t._sources[0].folder.absolute()}/source0-{number:06d}.parquet")
    identity = hashing.hash_longs(np.arange(len(rows)), np.full(len(rows), file, dtype=np.uint64))
    return [row for row, at in zip(rows, hashing.positions(identity, SEED), strict=True) if at < threshold]


def kept_by_key(rows: list[Any], threshold: int) -> list[Any]:
    identity = hashing.hash_longs(np.array([row[0] for row in rows]))
    return [row for row, at in zip(rows, hashing.positions(identity, SEED), strict=True) if at < threshold]


def test_what_is_kept_of_each_row_and_key_is_what_plain_python_says(t: QueryTest) -> None:
    """Two branches of one source: one drops rows by a hash of their identity, the other by key. Batches are broken off and repeated."""
    by_row, by_key = Sink(), Sink()

    def query(calls: Any) -> Any:
        alone = hr.shed(calls.withWatermark("ts", "1 second"), max_loss=0.4)
        keyed = hr.shed(calls.withWatermark("ts", "1 second"), max_loss=0.7, by="k").groupBy("k", F.window("ts", "1 minute")).count()
        return {"rows": overloaded(alone, by_row), "windows": overloaded(keyed, by_key)}

    rows = t.source(ROWS)
    t.start(query, instances=2)
    given = warm(t, rows)
    assert all(not each for each in dropped(t).values())
    for number in range(2, 6):
        given.append(some_rows(number))
        rows.add(*given[-1])
        if number == 3:
            t.abort("job-done")
            t.restart()
            t.query._engine.shedder.plan()  # type: ignore[union-attr]
        elif number == 4:
            t.run()
            t.query._engine.shedder.plan()  # type: ignore[union-attr]
        elif number == 5:
            t.abort("manifest-after")
            t.restart()
        else:
            t.run()
    drops = dropped(t)
    assert drops[2] == {"shed": 600_000, "shed-2": 300_000}
    assert drops[5], "the batch that was delivered again dropped rows"
    for number, each in enumerate(given):
        wanted = kept_by_row(t, number, each, drops[number].get("shed", SCALE))
        assert sorted((row.k, row.v) for row in by_row.batches[number]) == sorted((k, v) for k, _, v in wanted)
    # Event time goes on although rows are dropped: the window of batch 4 is closed by batch 5, whoever was kept.
    counts: dict[tuple[int, int], int] = defaultdict(int)
    for number, each in enumerate(given[:-1]):
        for k, ts, _ in kept_by_key(each, drops[number].get("shed-2", SCALE)):
            counts[k, ts.minute] += 1
    found = {(row.k, row.window.start.minute): row["count"] for each in by_key.batches.values() for row in each}
    assert found == dict(counts)
    progress = t.query.recentProgress
    places = [each["headrace"]["shedding"]["places"] for each in progress if each["headrace"]["shedding"] and each["batchId"] == 2]
    assert not places or places[0]["shed-2"]["shed"] == 200 - len(kept_by_key(given[2], 300_000))


def test_the_least_worth_goes_first(t: QueryTest) -> None:
    sink = Sink()
    rows = t.source(ROWS)
    t.start(lambda calls: overloaded(hr.shed(calls, max_loss=0.5, by=F.col("v")), sink))
    warm(t, rows, 3)
    rows.add(*[(k, ts, v) for k, ts, v in some_rows(7, 2000)])
    t.run()
    drop = Checkpoint(str(t.checkpoint)).manifests.read(3).drops  # type: ignore[arg-type]
    assert drop is not None
    cut = drop.at(ShedId("shed")).cut
    assert cut is not None
    assert 30 < cut < 70
    found = [row.v for row in sink.batches[3]]
    assert min(found) >= cut
    given = [v for _, _, v in some_rows(7, 2000)]
    assert [v for v in sorted(found) if v > cut] == sorted(v for v in given if v > cut)
    assert 0.3 < len(found) / len(given) < 0.7


def test_weights_say_what_a_row_stands_for_and_coverage_what_a_result_saw(t: QueryTest) -> None:
    sink = Sink()

    def query(calls: Any) -> Any:
        seen = hr.shed(calls.withWatermark("ts", "1 second"), max_loss=0.5, weight="w")
        share = hr.coverage("w").alias("share")
        return overloaded(seen.groupBy(F.window("ts", "1 minute")).agg(F.count("*").alias("n"), F.sum("w").alias("all"), share), sink)

    rows = t.source(ROWS)
    t.start(query)
    warm(t, rows)
    for number in (2, 3):
        rows.add(*some_rows(number))
    t.run()
    by_minute = {row.window.start.minute: row for each in sink.batches.values() for row in each}
    assert (by_minute[0].n, by_minute[0]["all"], by_minute[0].share) == (200, 200.0, 1.0)
    assert by_minute[2].share == pytest.approx(0.5)
    assert 70 < by_minute[2].n < 130
    assert by_minute[2]["all"] == pytest.approx(2 * by_minute[2].n)


def test_versions_that_are_computed_again_drop_the_same_rows(t: QueryTest) -> None:
    """State stays at home, and the driver is lost: batches are read again and drop what the journal says, not what would be chosen now."""
    sink = Sink()
    query: Callable[..., Any] = lambda calls: overloaded(  # noqa: E731
        hr.shed(calls, max_loss=0.4).groupBy("k").agg(F.count("*").alias("n"), F.sum("v").alias("s")), sink, "update"
    )
    rows = t.source(ROWS)
    t.start(query, checkpointSeconds=100_000)
    given = warm(t, rows)
    for number in (2, 3):
        given.append(some_rows(number))
        rows.add(*given[-1])
    t.run()
    journal = Checkpoint(str(t.checkpoint)).journal
    thresholds = []
    for number in range(4):
        record = journal.read(number)  # type: ignore[arg-type]
        drops = None if record is None else record.facts.drops
        thresholds.append(SCALE if drops is None else drops.at(ShedId("shed")).threshold)
    assert thresholds[2:] == [600_000, 600_000]
    given.append(some_rows(4))
    rows.add(*given[-1])
    t.abort("job-done")
    t.restart()
    t.run()
    progress = t.query.lastProgress
    assert progress is not None
    assert progress["headrace"]["versionsRebuilt"] == 4
    drops = journal.read(4).facts.drops  # type: ignore[arg-type, union-attr]
    thresholds.append(SCALE if drops is None else drops.at(ShedId("shed")).threshold)
    totals: dict[int, tuple[int, int]] = defaultdict(lambda: (0, 0))
    for number, each in enumerate(given):
        for k, _, v in kept_by_row(t, number, each, thresholds[number]):
            totals[k] = (totals[k][0] + 1, totals[k][1] + v)
    assert {row.k: (row.n, row.s) for row in t.query.state().collect()} == dict(totals)


def test_it_says_why_and_how_much_in_decisions_and_progress(t: QueryTest) -> None:
    sink = Sink()
    rows = t.source(ROWS)
    t.start(lambda calls: overloaded(hr.shed(calls, max_loss=0.25), sink))
    warm(t, rows)
    rows.add(*some_rows(2))
    t.run()
    (entry,) = t.query.decisions()
    assert entry.what.endswith("drop 25.0% of shed")
    assert "for the deadline of 0.01 s" in entry.why
    assert "more must not be dropped" in entry.why
    progress = t.query.lastProgress
    assert progress is not None
    shedding = progress["headrace"]["shedding"]
    place = shedding["places"]["shed"]
    assert (place["arrived"], place["threshold"]) == (200, 750_000)
    assert place["shed"] == 200 - len(sink.batches[2])
    assert shedding["sinks"] == [{"sink": "0", "weight": 1.0, "delivered": pytest.approx(1 - place["shed"] / 200)}]
    assert progress["headrace"]["rows"] == 200
    assert json.loads(json.dumps(shedding)) == shedding
    assert [each["what"] for each in progress["headrace"]["decisions"]] == [entry.what]


def test_without_overload_nothing_is_dropped_and_without_shed_nothing_has_an_effect(t: QueryTest) -> None:
    sink = Sink()
    rows = t.source(ROWS)
    t.start(lambda calls: hr.shed(calls, max_loss=1.0).writeStream.foreachBatch(sink.take).deadline("1 hour"))
    given = warm(t, rows, 3)
    assert sum(len(each) for each in sink.batches.values()) == sum(map(len, given))
    calls = hr.stream(t._sources[0].frame)
    for writer, found in ((calls.writeStream.deadline("1 second"), "deadline"), (calls.writeStream.weight(2.0), "weight")):
        with pytest.raises(QueryError, match=rf"wanted a stream from which rows may be dropped; found none, and {found}"):
            writer.format("noop").start()


def test_mistakes_are_refused_at_the_user_s_line(t: QueryTest) -> None:
    rows = t.source(ROWS)
    calls = hr.stream(rows.frame)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"max_loss": 0}, "max_loss above 0 and at most 1"),
        ({"max_loss": 1.5}, "max_loss above 0 and at most 1"),
        ({"max_loss": 0.5, "by": "nobody"}, "nobody"),
        ({"max_loss": 0.5, "by": F.col("ts")}, "a number as the worth of a row"),
        ({"max_loss": 0.5, "weight": "v"}, "a new name for the column of weights"),
        ({"max_loss": 0.5, "by": F.col("v"), "weight": "w"}, "drops that do not depend on the row's value"),
    ]
    for arguments, message in wrong:
        with pytest.raises(QueryError, match=message) as refused:
            hr.shed(calls, **arguments)
        assert "test_shedding.py" in str(refused.value)
    with pytest.raises(UnsupportedError, match="before work is put into them"):
        hr.shed(calls.groupBy("k").count(), max_loss=0.5)
    with pytest.raises(QueryError, match="one shed on the way"):
        calls.shed(max_loss=0.5).shed(max_loss=0.5)
    with pytest.raises(QueryError, match="a weight above 0"):
        calls.writeStream.weight(0)
    with pytest.raises(QueryError, match="a deadline beyond the trigger interval"):
        calls.shed(max_loss=0.5).writeStream.deadline("1 second").trigger(processingTime="2 seconds").format("noop").start()
    same = hr.shed(hr.stream(rows.frame.withColumn("one", F.lit(1))), max_loss=0.5, by="one")
    with pytest.raises(QueryError, match="rows that differ in the columns that decide"):
        same.writeStream.format("noop").option("checkpointLocation", str(t.checkpoint)).start()


def test_event_time_goes_on_by_rows_that_never_leave_the_plan_of_their_source(t: QueryTest) -> None:
    sink = Sink()

    def query(calls: Any) -> Any:
        return overloaded(hr.shed(calls.withWatermark("ts", "1 second"), max_loss=1.0).groupBy(F.window("ts", "1 minute")).count(), sink)

    rows = t.source(ROWS)
    t.start(query)
    warm(t, rows)
    for number in (2, 3):
        rows.add(*some_rows(number))
    t.run()
    assert {row.window.start.minute: row["count"] for each in sink.batches.values() for row in each} == {0: 200, 1: 200}
    shedding = t.query.recentProgress[-1]["headrace"]["shedding"]["places"]["shed"]
    assert (shedding["arrived"], shedding["shed"]) == (200, 200)


def test_places_that_drop_by_the_same_identity_keep_the_same_rows(t: QueryTest) -> None:
    """Two sums of one stream, a union of them in one more operator, and each row that any of them wants is read and cached once."""
    sinks = Sink(), Sink(), Sink()

    def query(calls: Any) -> Any:
        aggregates = F.sum("v").alias("s"), F.sum("w").alias("w")
        few, many = (hr.shed(calls, max_loss=loss, weight="w").groupBy("k").agg(*aggregates) for loss in (0.8, 0.3))
        keyed = hr.shed(calls, max_loss=0.5, by="k").groupBy("k").agg(F.count("*").alias("n"))
        named = zip(("few", "many", "keyed"), (few, many, keyed), sinks, strict=True)
        return {name: overloaded(rows, sink, "update") for name, rows, sink in named}

    rows = t.source(ROWS)
    t.start(query)
    given = warm(t, rows)
    given.append(some_rows(2))
    rows.add(*given[-1])
    t.run()
    assert dropped(t)[2] == {"shed": 200_000, "shed-2": 700_000, "shed-3": 500_000}
    for sink, threshold in ((sinks[0], 200_000), (sinks[1], 700_000)):
        kept = kept_by_row(t, 2, given[2], threshold)
        totals: dict[int, int] = defaultdict(int)
        weights: dict[int, float] = defaultdict(float)
        for each, stands_for in ((given[0], 1.0), (given[1], 1.0), (kept, SCALE / threshold)):
            for k, _, v in each:
                totals[k] += v
                weights[k] += stands_for
        touched = {row[0] for row in kept}
        found = {row.k: (row.s, round(row.w, 6)) for row in sink.batches[2]}
        assert found == {k: (totals[k], round(weights[k], 6)) for k in touched}
    assert {row.k for row in sinks[2].batches[2]} == {row[0] for row in kept_by_key(given[2], 500_000)}
    places = t.query.recentProgress[-1]["headrace"]["shedding"]["places"]
    assert places["shed"]["shed"] == 200 - len(kept_by_row(t, 2, given[2], 200_000))
    assert places["shed-2"]["shed"] == 200 - len(kept_by_row(t, 2, given[2], 700_000))
    assert places["shed-3"]["shed"] == 200 - len(kept_by_key(given[2], 500_000))


def test_each_of_two_sources_decides_about_its_own_rows(t: QueryTest) -> None:
    sink = Sink()

    def query(calls: Any, bills: Any) -> Any:
        few, many = hr.shed(calls, max_loss=0.7, by="k"), hr.shed(bills, max_loss=0.4, by="k")
        return overloaded(few.union(many).groupBy("k").agg(F.count("*").alias("n"), F.sum("v").alias("s")), sink, "update")

    calls, bills = t.source(ROWS), t.source(ROWS)
    t.start(query)
    given = []
    for number in range(3):
        given.append((some_rows(number), some_rows(100 + number)))
        with t.batch():
            calls.add(*given[-1][0])
            bills.add(*given[-1][1])
        t.run()
        t.query._engine.shedder.plan()  # type: ignore[union-attr]
    drops = dropped(t)
    assert drops[2] == {"shed": 300_000, "shed-2": 600_000}
    totals: dict[int, list[int]] = defaultdict(lambda: [0, 0])
    for number, pair in enumerate(given):
        for name, rows in zip(("shed", "shed-2"), pair, strict=True):
            for k, _, v in kept_by_key(rows, drops[number].get(name, SCALE)):
                totals[k][0] += 1
                totals[k][1] += v
    latest = {row.k: [row.n, row.s] for number in sorted(sink.batches) for row in sink.batches[number]}
    assert latest == dict(totals)
    places = t.query.recentProgress[-1]["headrace"]["shedding"]["places"]
    assert {name: each["arrived"] for name, each in places.items()} == {"shed": 200, "shed-2": 200}


def test_the_first_batch_of_a_start_is_cut_by_assumed_costs_or_by_those_of_the_last_start(t: QueryTest) -> None:
    sink = Sink()
    query: Callable[..., Any] = lambda calls: (  # noqa: E731
        hr.shed(calls, max_loss=0.8).groupBy("k").count()
        .writeStream.outputMode("update").foreachBatch(sink.take).deadline("60 milliseconds")
    )
    rows = t.source(ROWS)
    given = [some_rows(0, 20_000)]
    rows.add(*given[0])
    t.start(query)
    t.run()
    threshold = dropped(t)[0]["shed"]
    assert threshold == 200_000, "20,000 rows would take longer than a few milliseconds"
    assert sum(row["count"] for row in sink.batches[0]) == len(kept_by_row(t, 0, given[0], threshold))
    t.query._engine.shedder.plan()  # type: ignore[union-attr]
    assert (Checkpoint(str(t.checkpoint)).directory / MEMORY).exists()
    t.restart()
    given.append(some_rows(1, 20_000))
    rows.add(*given[1])
    t.run()
    assert t.query._engine.shedder._costs.lines  # type: ignore[union-attr]
    shedding = t.query.recentProgress[0]["headrace"]["shedding"]["places"]["shed"]
    assert (shedding["arrived"], shedding["shed"]) == (20_000, 20_000 - len(kept_by_row(t, 1, given[1], shedding["threshold"])))


def test_hashes_in_numpy_are_those_of_spark(spark: SparkSession) -> None:
    paths = ["file:/a", "file:///some/folder/that is long enough for four lanes/part-00000.parquet", "", "Spark", "пятьдесят"]
    frame = spark.createDataFrame([(path, at) for path in paths for at in (0, 1, -5, 1 << 40)], "p string, n long")
    hashed = frame.select("p", "n", F.xxhash64("p", "n").alias("h"))
    for row in hashed.withColumn("at", F.pmod(F.xxhash64("h", F.lit(77)), F.lit(SCALE))).collect():
        mine = hashing.hash_longs(np.array([row.n]), np.array([hashing.hash_text(row.p)], dtype=np.uint64))
        assert int(mine.astype(np.int64)[0]) == row.h
        assert int(hashing.positions(mine, 77)[0]) == row.at
