"""Queries of several operators and sinks mean the same however they run.

Each is run twice: with one instance on one file in order, and with three instances on many files whose rows are shuffled as far as the
watermark allows, stopped half-way and started again with two instances. Both must give what a plain single-threaded reference gives.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import headrace as hr
from tests.integration import random_graphs
from tests.integration.timed_events import END_S, EPOCH, SCHEMA, Event, Results, events, second, shuffled, source, write

_names = count()


def chain(stream: Any) -> Any:
    small = stream.groupBy("k", F.window("ts", "10 seconds")).agg(F.sum("v").alias("s"))
    larger = (
        small.filter("s >= 0").groupBy(F.window(F.window_time("window"), "60 seconds")).agg(F.max("s").alias("m"), F.count("*").alias("n"))
    )
    return larger.select(F.col("window.start").alias("t"), "m", "n")


def chain_reference(rows: list[Event]) -> Results:
    sums: dict[tuple[str, int], int] = defaultdict(int)
    for k, s, v in rows:
        sums[k, s // 10 * 10] += v
    minutes: dict[int, list[int]] = defaultdict(list)
    for (_, start), total in sums.items():
        minutes[start // 60 * 60].append(total)
    return {(start, max(each), len(each)) for start, each in minutes.items()}


def fused(stream: Any) -> Any:
    """The first operator gives results at once, so both run in one job."""
    firsts = stream.dropDuplicates(["k", "ts"]).select("k", "ts", (F.col("k") == "k1").alias("one"))
    return firsts.groupBy("one", F.window("ts", "2 minutes")).count().select(F.col("window.start").alias("t"), "one", "count")


def fused_reference(rows: list[Event]) -> Results:
    found: dict[tuple[int, bool], int] = defaultdict(int)
    for k, s in {(k, s) for k, s, _ in rows}:
        found[s // 120 * 120, k == "k1"] += 1
    return {(*key, n) for key, n in found.items()}


def sessions(stream: Any) -> Any:
    grouped = stream.groupBy("k", F.session_window("ts", "15 seconds")).agg(F.count("*").alias("n"), F.max("v").alias("m"))
    return grouped.select(F.col("session_window.start").alias("t"), "k", F.unix_seconds("session_window.end").alias("e"), "n", "m")


def sessions_reference(rows: list[Event]) -> Results:
    found: Results = set()
    epoch = int(EPOCH.timestamp())
    for key in {k for k, _, _ in rows}:
        own = sorted((s, v) for k, s, v in rows if k == key)
        open_: list[tuple[int, int]] = []
        for s, v in [*own, (10**9, 0)]:
            if open_ and s > open_[-1][0] + 15:
                found.add((open_[0][0], key, epoch + open_[-1][0] + 15, len(open_), max(v for _, v in open_)))
                open_ = []
            open_.append((s, v))
    return found


def counted(stream: Any) -> Any:
    windows = stream.groupBy("k", hr.count_window(4, 3)).agg(F.sum("v").alias("s"), F.collect_set("v").alias("all"))
    return windows.select(F.col("count_window.start").alias("t"), "k", F.col("count_window.number"), "s", F.size("all"))


def counted_reference(rows: list[Event]) -> Results:
    found: Results = set()
    for key in {k for k, _, _ in rows}:
        own = sorted((s, v) for k, s, v in rows if k == key)
        for number in range((len(own) - 4) // 3 + 1):
            part = own[number * 3 : number * 3 + 4]
            found.add((part[0][0], key, number, sum(v for _, v in part), 4))
    return found


def of_windows(stream: Any) -> Any:
    """Grouped by the window of the aggregate before."""
    per_key = stream.groupBy("k", F.window("ts", "1 minute", "20 seconds")).agg(F.count("*").alias("n"))
    return per_key.groupBy("window").agg(F.max("n").alias("m"), F.count("*").alias("k")).select(F.col("window.start").alias("t"), "m", "k")


def of_windows_reference(rows: list[Event]) -> Results:
    counts: dict[tuple[int, str], int] = defaultdict(int)
    for k, s, _ in rows:
        for start in range(s // 20 * 20 - 40, s // 20 * 20 + 1, 20):
            counts[start, k] += 1
    starts: dict[int, list[int]] = defaultdict(list)
    for (start, _), n in counts.items():
        starts[start].append(n)
    return {(start, max(each), len(each)) for start, each in starts.items()}


def united(stream: Any) -> Any:
    """Results of an operator and plain rows of the source, into one more operator."""
    sums = stream.groupBy("k", F.window("ts", "1 minute")).agg(F.sum("v").alias("v")).select("k", F.window_time("window").alias("ts"), "v")
    both = sums.union(stream.filter("v % 2 = 0").select("k", "ts", "v"))
    return both.groupBy(F.window("ts", "5 minutes")).agg(F.sum("v").alias("s"), F.count("*").alias("n")).select("window.start", "s", "n")


def united_reference(rows: list[Event]) -> Results:
    sums: dict[tuple[str, int], int] = defaultdict(int)
    for k, s, v in rows:
        sums[k, s // 60 * 60] += v
    all_rows = [(start, v) for (_, start), v in sums.items()] + [(s, v) for _, s, v in rows if v % 2 == 0]
    found: dict[int, list[int]] = defaultdict(list)
    for s, v in all_rows:
        found[s // 300 * 300].append(v)
    return {(start, sum(each), len(each)) for start, each in found.items()}


QUERIES: dict[str, tuple[Callable[[Any], Any], Callable[[list[Event]], Results]]] = {
    "aggregate of an aggregate": (chain, chain_reference),
    "operators in one job": (fused, fused_reference),
    "sessions": (sessions, sessions_reference),
    "tuple-count windows": (counted, counted_reference),
    "groups of windows": (of_windows, of_windows_reference),
    "union of results and rows": (united, united_reference),
}


def run(spark: SparkSession, query: Callable[[Any], Any], folder: Path, checkpoint: Path, instances: int) -> list[Any]:
    name = f"graph{next(_names)}"
    writer = query(source(spark, folder)).writeStream.format("memory").queryName(name)
    writer = writer.option("checkpointLocation", str(checkpoint)).option("headrace.instances", instances).trigger(availableNow=True)
    writer.start().awaitTermination()
    return list(spark.table(name).collect())


def before_end(rows: list[Any]) -> list[tuple[Any, ...]]:
    """Rows with their first column, the time, in seconds; without what the row at the end of all times brought."""
    plain = [(second(row[0]), *row[1:]) for row in rows]
    return [row for row in plain if row[0] < END_S - 10_000]


ELSEWHERE = {"groups of windows", "sessions", "tuple-count windows", "aggregate of an aggregate", "union of results and rows"}
"""Queries of which other tests say much the same."""


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.extra] if name in ELSEWHERE else []) for name in QUERIES])
def test_a_query_means_the_same_however_it_runs(name: str, spark: SparkSession, tmp_path: Path) -> None:
    query, reference = QUERIES[name]
    # Ties in time would make counting by rows a matter of the tie-break, which the reference does not know.
    rows = events() if name != "tuple-count windows" else list({(k, s): (k, s, v) for k, s, v in events()}.values())
    end = ("end", END_S, 0)
    write(tmp_path / "one", "0", [*sorted(rows, key=lambda e: e[1])])
    write(tmp_path / "one", "1", [end])
    plain = before_end(run(spark, query, tmp_path / "one", tmp_path / "c1", 1))

    files = shuffled(rows)
    for at, part in enumerate(files[: len(files) // 2]):
        write(tmp_path / "many", f"{at:02d}", part)
    first = run(spark, query, tmp_path / "many", tmp_path / "c2", 3)
    for at, part in enumerate(files[len(files) // 2 :]):
        write(tmp_path / "many", f"{50 + at}", part)
    write(tmp_path / "many", "99", [end])
    rest = run(spark, query, tmp_path / "many", tmp_path / "c2", 2)
    spread = before_end([*first, *rest])

    expected = reference(rows)
    assert len(plain) == len(set(plain))
    assert set(plain) == expected
    assert len(spread) == len(set(spread))
    assert set(spread) == expected


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.extra) for seed in range(2, 40))])
def test_random_graphs(seed: int, spark: SparkSession, tmp_path: Path) -> None:
    random = Random(seed)
    query = random_graphs.draw(random, random.randint(2, 4))
    while not 2 <= random_graphs.stateful(query) <= 5:
        query = random_graphs.draw(random, random.randint(2, 4))
    print(query.text)
    rows = events(seed, 120)
    files = shuffled(rows, 40)
    for at, part in enumerate(files[:2]):
        write(tmp_path / "in", f"{at:02d}", part)
    first = run(spark, query.build, tmp_path / "in", tmp_path / "c", 3)
    # Spark moves filters before watermarks, so every filter must let one of these pass, or its branch would hold the others back.
    end = [("end", END_S, v) for v in range(3)]
    for at, part in enumerate([*files[2:], end], start=2):
        write(tmp_path / "in", f"{at:02d}", part)
    rest = run(spark, query.build, tmp_path / "in", tmp_path / "c", 2)
    found = sorted((row.k, micros(row.ts), row.v) for row in [*first, *rest])
    expected = sorted(query.mean([(k, s * random_graphs.SECOND, v) for k, s, v in rows]))
    assert [row for row in found if row[0] != "end"] == expected


def micros(moment: datetime) -> int:
    return round((moment.replace(tzinfo=UTC) - EPOCH) / timedelta(microseconds=1))


def test_a_split_feeds_several_sinks_together(spark: SparkSession, tmp_path: Path) -> None:
    rows = events()
    for at, part in enumerate(shuffled(rows)):
        write(tmp_path / "in", f"{at:02d}", part)
    write(tmp_path / "in", "99", [("end", END_S, 0)])
    parts = source(spark, tmp_path / "in").split(small="v < 60", middle=F.col("v") < 100, otherwise="rest")
    sums = parts.middle.groupBy("k", F.window("ts", "5 minutes")).agg(F.sum("v").alias("s"))
    query = hr.start(
        parts.small.writeStream.format("parquet").option("path", str(tmp_path / "small")),
        sums.writeStream.format("parquet").option("path", str(tmp_path / "sums")),
        sums.groupBy("window").count().writeStream.format("json").option("path", str(tmp_path / "counts")),
        parts.rest.writeStream.format("parquet").option("path", str(tmp_path / "rest")),
        checkpointLocation=str(tmp_path / "ckpt"),
        availableNow=True,
    )
    query.awaitTermination()

    def read(name: str) -> Any:
        return spark.read.parquet(str(tmp_path / name))

    assert sorted(r.v for r in read("small").collect() if r.k != "end") == sorted(v for _, _, v in rows if v < 60)
    assert sorted(r.v for r in read("rest").collect()) == sorted(v for _, _, v in rows if v >= 100)
    expected: dict[tuple[str, int], int] = defaultdict(int)
    for k, s, v in rows:
        if 60 <= v < 100:
            expected[k, s // 300 * 300] += v
    assert {(r.k, second(r.window.start)): r.s for r in read("sums").collect()} == dict(expected)
    assert spark.read.json(str(tmp_path / "counts")).agg(F.sum("count")).first()[0] == len(expected)
    assert [o["operatorName"] for o in query.lastProgress.stateOperators] == ["aggregate", "aggregate-2"]


def test_what_is_random_is_drawn_anew_in_every_batch(spark: SparkSession, tmp_path: Path) -> None:
    """The plan of a graph is kept from batch to batch, but not where Spark has put random numbers into it."""
    for at, part in enumerate(shuffled(events(rows=120))):
        write(tmp_path / "in", f"{at}", part)
    source = hr.stream(spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "in")))
    parts = source.split(even="v % 2 = 0", odd="v % 2 = 1")
    seen: dict[str, list[str]] = {"even": [], "odd": []}

    def keep(name: str) -> Callable[..., None]:
        return lambda rows, batch: seen[name].extend(row["id"] for row in rows.collect())

    writers = [part.withColumn("id", F.expr("uuid()")).writeStream.foreachBatch(keep(name)) for name, part in parts.items()]
    hr.start(*writers, checkpointLocation=str(tmp_path / "checkpoint"), availableNow=True).awaitTermination()
    assert [len(ids) for ids in seen.values()] == [60, 60]
    assert len(set(seen["even"])) == 60


def test_sources_of_different_kinds_in_one_query(spark: SparkSession, tmp_path: Path) -> None:
    """Two sources, two aggregates, and one sink that takes both."""
    rows = events()
    half = len(rows) // 2
    for name, part in (("a", rows[:half]), ("b", rows[half:])):
        write(tmp_path / name, "0", sorted(part, key=lambda e: e[1]))
        write(tmp_path / name, "1", [("end", END_S, 0)])

    def per_minute(folder: str) -> Any:
        grouped = source(spark, tmp_path / folder).groupBy("k", F.window("ts", "1 minute"))
        return grouped.agg(F.sum("v").alias("s")).withColumn("from", F.lit(folder))

    both = per_minute("a").unionByName(per_minute("b"))
    writer = both.writeStream.format("parquet").option("path", str(tmp_path / "out"))
    writer.option("checkpointLocation", str(tmp_path / "ckpt")).trigger(availableNow=True).start().awaitTermination()
    expected: dict[tuple[str, str, int], int] = defaultdict(int)
    for at, (k, s, v) in enumerate(rows):
        expected["a" if at < half else "b", k, s // 60 * 60] += v
    found = spark.read.parquet(str(tmp_path / "out")).collect()
    assert {(r["from"], r.k, second(r.window.start)): r.s for r in found} == dict(expected)


def test_explain_draws_and_prices_a_graph(spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "in", "0", events()[:20])
    writer = chain(source(spark, tmp_path / "in")).writeStream.format("noop").option("headrace.instancesOf", "aggregate-2=1")
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    for mode, words in (
        (None, ("-- aggregate --", "-- aggregate-2 --", "from        aggregate")),
        ("cost", ("operator-set-cloud", "query-cloud", "hops")),
        ("dot", ("digraph", "aggregate-2")),
        ("svg", ("<svg", "aggregate-2")),
    ):
        query.explain(mode=mode)
        shown = capsys.readouterr().out
        assert all(word in shown for word in words), shown
    with pytest.raises(hr.HeadraceError, match="mode plan, cost, dot, svg"):
        query.explain(mode="poem")
    assert {op["operatorName"]: op["numShufflePartitions"] for op in query.lastProgress.stateOperators}["aggregate-2"] == 1


def test_operator_cloud_gives_the_same(spark: SparkSession, tmp_path: Path) -> None:
    rows = events()
    write(tmp_path / "in", "0", sorted(rows, key=lambda e: e[1]))
    write(tmp_path / "in", "1", [("end", END_S, 0)])
    writer = chain(source(spark, tmp_path / "in")).writeStream.format("memory").queryName("by_operator")
    writer = writer.option("checkpointLocation", str(tmp_path / "c")).option("headrace.strategy", "operator-cloud")
    writer.trigger(availableNow=True).start().awaitTermination()
    assert set(before_end(spark.table("by_operator").collect())) == chain_reference(rows)
