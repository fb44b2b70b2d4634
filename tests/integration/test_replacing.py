"""A running query is replaced: state is kept, changed, computed from history or dropped, and results equal Spark's batch answer."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import headrace as hr
from headrace.cli import app, run
from headrace.errors import CheckpointMismatchError, QueryError, StateSchemaError, UnsupportedError
from tests.integration.replacing import SCHEMA, Place, by_key, sums, sums_and_more

pytestmark = pytest.mark.spark


@pytest.fixture
def place(spark: SparkSession, tmp_path: Path) -> Iterator[Place]:
    yield Place(spark, tmp_path)
    for query in spark.streams.active:
        query.stop()


def started(place: Place, writer: Any) -> hr.HeadraceQuery:
    place.offer(("a", 1, 1), ("b", 2, 2))
    place.offer(("a", 3, 3))
    place.offer(("c", 5, 4), ("a", 1, 4))
    query: hr.HeadraceQuery = writer.start()
    query.processAllAvailable()
    return query


def test_columns_are_added_kept_and_computed_from_history(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    """The sum is kept; the count begins empty, and is then computed from history, while nobody asks for it by hand."""
    query = started(place, place.update(hr.named(sums(place.rows()), "totals"), "r"))
    more = hr.named(sums_and_more(place.rows()), "totals")
    tried = query.replace(more, dry_run=True)
    assert tried.evolved["totals"] == ("added: max(v), empty", "added: count(1), empty")
    assert "changed: totals: added: max(v), empty; added: count(1), empty" in capsys.readouterr().out
    assert query.lastProgress is not None
    assert query.lastProgress["headrace"]["version"] == 2, "a dry run changes nothing"
    done = query.replace(more)
    assert (done.version, done.evolved) == (3, tried.evolved)
    assert done.pause_ms is not None
    assert done.pause_ms > 0
    place.offer(("a", 10, 5), ("d", 7, 5))
    query.processAllAvailable()
    batch = by_key(sums_and_more(place.batch()))
    assert place.told["r"]["a"] == ("a", 10, 15, 1), "high and count of the rows since the change, the sum of all"
    assert place.told["r"]["d"] == batch["d"]
    assert query.state().filter("k = 'b'").first()["s"] == 2
    place.told.clear()
    again = query.replace(more, backfill=["totals"])
    assert again.backfilled == ("totals",)
    assert place.told["r"] == batch, "all results are delivered with the change, although no row has come"
    place.offer(("b", 100, 6))
    query.processAllAvailable()
    assert place.told["r"] == by_key(sums_and_more(place.batch()))
    query.stop()


def test_a_change_is_tried_while_a_batch_is_being_delivered(place: Place) -> None:
    """The version of the batch is committed, and its results wait in the sink."""
    delivering, go_on = threading.Event(), threading.Event()

    def slow(batch: DataFrame, number: int) -> None:
        delivering.set()
        assert go_on.wait(60)

    place.offer(("a", 1, 1))
    writer = hr.writeStream(hr.named(sums(place.rows()), "totals")).outputMode("update").foreachBatch(slow)
    query = writer.option("checkpointLocation", str(place.folder / "slow")).start()
    assert delivering.wait(60)
    try:
        tried = query.replace(hr.named(sums_and_more(place.rows()), "totals"), dry_run=True)
        assert tried.evolved["totals"] == ("added: max(v), empty", "added: count(1), empty")
    finally:
        go_on.set()
    query.stop()


def test_new_operators_read_history_and_others_are_not_disturbed(place: Place) -> None:
    """Windows on top of duplicates: one operator is kept and computed again at once, for another one that reads it."""
    seen = hr.stream(place.timed()).dropDuplicates(["k", "ts"]).named("seen")
    counts = seen.groupBy(F.window("ts", "2 minutes")).agg(F.count("*").alias("n")).named("counts")
    query = started(place, place.files_of(counts, "counts"))
    place.offer(("a", 3, 3), ("e", 1, 9), ("e", 4, 9))
    query.processAllAvailable()
    totals = hr.named(seen.groupBy("k", F.window("ts", "4 minutes")).agg(F.count("*").alias("n")), "totals")
    done = query.replace(place.files_of(counts, "counts"), place.files_of(totals, "totals"), backfill=True)
    assert (set(done.kept), done.backfilled) == ({"seen", "counts"}, ("totals",))
    shown = ("window.start", "k", "n")
    before_end = F.col("window.end") <= F.lit("2024-01-01 00:08:00").cast("timestamp")
    distinct = place.batch().dropDuplicates(["k", "ts"])
    wanted = distinct.groupBy(F.window("ts", "4 minutes"), "k").agg(F.count("*").alias("n"))
    assert place.written("totals", *shown) == sorted(map(tuple, wanted.filter(before_end).select(*shown).collect()))
    place.offer(("e", 1, 9), ("f", 1, 30))
    place.offer(("f", 1, 50))
    query.processAllAvailable()
    query.processAllAvailable()
    closed = F.col("window.end") <= F.lit("2024-01-01 00:49:00").cast("timestamp")
    distinct = place.batch().dropDuplicates(["k", "ts"])
    wanted = distinct.groupBy(F.window("ts", "4 minutes"), "k").agg(F.count("*").alias("n"))
    assert place.written("totals", *shown) == sorted(map(tuple, wanted.filter(closed).select(*shown).collect()))
    wanted = distinct.groupBy(F.window("ts", "2 minutes")).agg(F.count("*").alias("n"))
    assert place.written("counts", "window.start", "n") == sorted(
        map(tuple, wanted.filter(closed).select("window.start", "n").collect())
    ), "the operators that were there have emitted each window once"
    query.stop()


def test_a_replacement_that_fails_leaves_the_old_query_running(place: Place) -> None:
    def broken(rows: DataFrame, version: int) -> None:
        raise ValueError("no sink")

    query = started(place, place.update(hr.named(sums(place.rows()), "totals"), "r"))
    ended: list[Any] = []
    waiting = threading.Thread(target=lambda: ended.append(query.awaitTermination()))
    waiting.start()
    other = hr.named(place.rows().groupBy("v").agg(F.sum("v").alias("s")), "totals")
    refused: list[tuple[Any, dict[str, Any], type[Exception], str]] = [
        (other, {}, StateSchemaError, r"keys \['k: string'\] stored, \['v: int'\] now.*backfill"),
        (place.spark.readStream.format("rate").load().groupBy("value").count(), {}, CheckpointMismatchError, "sources"),
        (sums(place.batch()), {}, Exception, "stream"),
        ("totals", {}, QueryError, "a streaming DataFrame, a stream, or writers"),
        (sums(place.rows()), {"backfill": ["nobody"]}, QueryError, "operators of the new query.*nobody"),
        (place.update(hr.named(sums_and_more(place.rows()), "totals"), "r").foreachBatch(broken), {}, QueryError, "no sink.*runs on"),
    ]
    for new, more, error, words in refused:
        with pytest.raises(error, match=f"(?s){words}"):
            query.replace(new, **more)
        assert query.isActive, words
    place.offer(("a", 10, 5))
    query.processAllAvailable()
    assert place.told["r"] == by_key(sums(place.batch()))
    assert query.replace(hr.named(sums(place.rows()).filter("s > 0"), "totals")).kept == ("totals",)
    place.offer(("b", 10, 6))
    query.processAllAvailable()
    assert place.told["r"] == by_key(sums(place.batch()))
    assert not ended
    query.stop()
    waiting.join(60)
    assert ended == [None], "whoever waits for the query waits for its successors too"
    with pytest.raises(QueryError, match=r"one that has ended.*operatorChanges"):
        query.replace(sums(place.rows()))


def test_states_are_never_mixed_up(place: Place) -> None:
    """Sinks change places, operators come and go, two of them compute the same, a column gets another name."""

    def small(rows: DataFrame) -> DataFrame:
        return sums(rows.filter("v < 3"))

    def large(rows: DataFrame) -> DataFrame:
        return sums(rows.filter("v >= 3"))

    query = started(place, place.update(small(place.rows()), "small"))
    rows = place.rows()
    done = query.replace(place.update(large(rows), "large"), place.update(small(rows), "small"), backfill=True)
    assert (len(done.kept), len(done.backfilled)) == (1, 1)
    place.offer(("a", 1, 5), ("a", 30, 5))
    query.processAllAvailable()
    # Two more that compute the same as one another: each has the whole history.
    twins = [hr.named(sums(rows), name) for name in ("one", "two")]
    writers = [place.update(twins[1], "two"), place.update(small(rows), "small"), place.update(twins[0], "one")]
    done = query.replace(*writers, backfill=True)
    assert (len(done.kept), set(done.backfilled), len(done.dropped)) == (1, {"one", "two"}, 1)
    place.offer(("c", 2, 6), ("b", 50, 6))
    query.processAllAvailable()
    key = F.col("k").alias("key")
    renamed = hr.named(place.rows().groupBy(key).agg(F.sum("v").alias("s")), "one")
    with pytest.raises(StateSchemaError, match="key: string"):
        query.replace(place.update(renamed, "one"))
    assert query.replace(place.update(renamed, "one"), rename={"k": "key"}).kept == ("one",)
    place.offer(("a", 1, 7))
    query.processAllAvailable()
    batch = place.batch()
    assert place.told["one"] == by_key(sums(batch))
    batch = batch.filter("ts <= '2024-01-01 00:06:00'")
    assert place.told["two"] == by_key(sums(batch))
    assert place.told["small"] == by_key(small(batch))
    assert place.told["large"] == by_key(large(batch.filter("ts <= '2024-01-01 00:05:00'")))
    query.stop()


def test_names_on_plain_dataframes(place: Place) -> None:
    """They go through views, SQL and further steps, and reach the operator."""
    hr.named(sums(place.rows()), "my totals").createOrReplaceTempView("named_totals")
    query = started(place, place.update(place.spark.sql("SELECT k, s + 1 AS s FROM named_totals WHERE s > 0"), "r"))
    assert list(query.routing()) == ["my_totals"]
    query.stop()
    place.offer(("a", 9, 5))
    changed = place.rows().filter("v > 1").transform(sums)
    restarted = place.update(hr.named(changed, "my totals"), "r").start()
    restarted.processAllAvailable()
    assert place.told["r"]["a"] == ("a", 14), "a named operator keeps its state when what feeds it changes"
    restarted.stop()
    both = sums(place.rows()).unionByName(sums(place.rows()))
    for bad, name in ((place.rows(), "rows"), (sums(place.rows()), "a/b"), (7, "seven")):
        with pytest.raises(QueryError, match="named at test_replacing"):
            hr.named(bad, name)  # type: ignore[type-var]
    with pytest.raises(QueryError, match="a union named 'both'"):
        place.update(hr.named(both, "both"), "r").start()
    with pytest.raises(QueryError, match=r"'x' and 'y'|'y' and 'x'"):
        place.update(hr.named(hr.named(sums(place.rows()), "x").filter("s > 0"), "y"), "r").start()


def test_a_query_is_replaced_by_a_program_in_a_file(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    query = started(place, place.update(sums(place.rows()), "r"))
    program = place.folder / "changed.py"
    program.write_text(
        f"""
import headrace as hr
from pyspark.sql import SparkSession, functions as F

spark = SparkSession.builder.getOrCreate()
rows = spark.readStream.schema({SCHEMA!r}).option("maxFilesPerTrigger", 1).json({str(place.source)!r})
table = rows.groupBy("k").agg(F.max("v").alias("high"), F.sum("v").alias("s"), F.count("*").alias("n"))
writer = hr.writeStream(table).outputMode("complete").format("memory").queryName("changed")
writer.option("checkpointLocation", {str(place.checkpoint)!r}).start().awaitTermination()
spark.stop()
"""
    )
    command = ["ctl", "replace", str(place.checkpoint), str(program)]
    assert run(app, [*command, "--backfill", "--dry-run"]) == 0
    assert "backfilled: aggregate" in capsys.readouterr().out
    assert run(app, [*command, "--backfill"]) == 0
    said = capsys.readouterr().out
    assert "backfilled: aggregate" in said
    assert "the pause took" in said
    place.offer(("b", 10, 5))
    query.processAllAvailable()
    assert by_key(place.spark.table("changed")) == by_key(sums_and_more(place.batch()))
    (place.folder / "wrong.py").write_text("raise SystemExit")
    assert run(app, ["ctl", "replace", str(place.checkpoint), str(place.folder / "wrong.py")]) == 2
    assert "a query that is started" in capsys.readouterr().err
    assert query.isActive
    query.stop()


def test_columns_get_wider_types_when_the_program_restarts(place: Place) -> None:
    """The source is read with wider columns: nothing is lost, so no option is needed. Narrower ones are refused with the column's name."""

    def extremes(schema: str) -> DataFrame:
        rows = place.rows(schema)
        return hr.named(rows.groupBy("k").agg(F.max("v").alias("high"), F.min("v").alias("low"), F.sum("v").alias("s")), "extremes")

    started(place, place.update(extremes(SCHEMA), "r")).stop()
    wide = SCHEMA.replace("int", "long")
    place.offer(("a", 2**40, 5), ("d", -(2**40), 5))
    query = place.update(extremes(wide), "r").start()
    query.processAllAvailable()
    batch = place.spark.read.schema(wide).json(str(place.source))
    assert place.told["r"] == by_key(batch.groupBy("k").agg(F.max("v"), F.min("v"), F.sum("v")))
    assert {tuple(row) for row in query.state().collect()} == set(
        by_key(batch.groupBy("k").agg(F.max("v"), F.min("v"), F.sum("v"))).values()
    )
    query.stop()
    with pytest.raises(StateSchemaError, match=r"max\(v\): int64 stored, int32 now.*backfill"):
        place.update(extremes(SCHEMA), "r").start()


class Visits(hr.KeyProcessor):
    """Sums values and counts visits, if it has a place for them."""

    def __init__(self, counts: bool) -> None:
        self.counts = counts

    def process(self, key: str, rows: list[Any], state: Any) -> Iterator[tuple[Any, ...]]:
        state.total = (state.total or 0) + sum(row.v for row in rows)
        if self.counts:
            state.visits = (state.visits or 0) + len(rows)
        yield (key, state.total, state.visits) if self.counts else (key, state.total)


def test_a_processor_gets_another_value(place: Place) -> None:
    def visits(**more: Any) -> Any:
        stream = hr.stream(place.rows()).groupBy("k")
        state = hr.State("visits long, total long", **more)
        return stream.process(Visits(True), "k string, total long, visits long", state).named("visits")

    first = hr.stream(place.rows()).groupBy("k").process(Visits(False), "k string, total long", hr.State("total long")).named("visits")
    started(place, place.update(first, "r")).stop()
    with pytest.raises(StateSchemaError, match="visits would start without the rows before"):
        place.update(visits(), "r").start()
    with pytest.raises(QueryError, match="defaults"):
        visits(defaults={"visits": "many"})
    place.offer(("a", 10, 5))
    query = place.update(visits(defaults={"visits": 100}), "r").start()
    query.processAllAvailable()
    assert place.told["r"]["a"] == ("a", 15, 101)
    place.told.clear()
    assert query.replace(visits(defaults={"visits": 100}), backfill=["visits"]).backfilled == ("visits",)
    counted = place.batch().groupBy("k").agg(F.sum("v"), F.count("*"))
    assert place.told["r"] == by_key(counted), "from history, nothing is missing"
    query.stop()


@pytest.mark.extra
def test_state_on_executors_is_kept_and_not_backfilled(place: Place) -> None:
    writer = place.update(hr.named(sums(place.rows()), "totals"), "r").option("headrace.checkpointSeconds", 60)
    query = started(place, writer)
    more = hr.named(sums_and_more(place.rows()), "totals")
    with pytest.raises(UnsupportedError, match="checkpointSeconds=0"):
        query.replace(more, backfill=True)
    assert query.replace(more).evolved["totals"] == ("added: max(v), empty", "added: count(1), empty")
    place.offer(("a", 10, 5))
    query.processAllAvailable()
    assert place.told["r"]["a"] == ("a", 10, 15, 1)
    query.stop()
