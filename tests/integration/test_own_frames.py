"""Operators that only Headrace has, on plain DataFrames: what follows them is Spark's, in methods and in SQL."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import headrace as hr

pytestmark = pytest.mark.spark

SCHEMA = "src string, ts timestamp, seconds long"
FIRST = [(f"c{i % 5}", i, (i * 37) % 101) for i in range(1, 61)]
SECOND = [(f"c{i % 7}", i, (i * 53) % 211) for i in range(61, 140)]
END = [("end", 100_000, 0)]
"""A row that moves the watermark past all others."""


class Totals(hr.Processor):
    """A running total of each caller."""

    def process(self, rows: Any, state: Any) -> Any:
        new = rows.group_by("src").aggregate([("seconds", "sum")])
        old = state.get(new)
        totals = pa.table({"src": new["src"], "total": pc.add(new["seconds_sum"], pc.fill_null(old["total"], 0))})
        state.put(totals)
        return totals


class Calls:
    """A stream over a folder, to which a test adds files."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark, self._folder, self._files = spark, folder, itertools.count()
        folder.mkdir()
        self.frame = spark.readStream.schema(SCHEMA).parquet(str(folder)).withWatermark("ts", "0 seconds")

    def add(self, rows: list[tuple[str, int, int]]) -> None:
        made = self._spark.createDataFrame(rows, "src string, at long, seconds long")
        part = self._folder.parent / f"part{next(self._files)}"
        made.select("src", F.timestamp_seconds("at").alias("ts"), "seconds").coalesce(1).write.parquet(str(part))
        for file in part.glob("*.parquet"):
            file.rename(self._folder / f"{part.name}.parquet")


@pytest.fixture
def calls(spark: SparkSession, tmp_path: Path) -> Calls:
    return Calls(spark, tmp_path / "in")


def run(frame: DataFrame, calls: Calls, folder: Path, mode: str = "append") -> Iterator[list[tuple[Any, ...]]]:
    """The results of each step: the first rows with one instance, then, after a restart with three, further rows."""
    found: list[list[tuple[Any, ...]]] = []

    def collect(rows: DataFrame, batch: int) -> None:
        found.append([tuple(row) for row in rows.collect()])

    for instances, rows in ((1, [FIRST]), (3, [SECOND, END])):
        writer = hr.writeStream(frame).foreachBatch(collect).outputMode(mode).option("headrace.instances", str(instances))
        query = writer.option("checkpointLocation", str(folder)).start()
        try:
            for each in rows:
                calls.add(each)
                query.processAllAvailable()
            yield [row for batch in found for row in batch]
        finally:
            query.stop()
        found.clear()


def all_of(frame: DataFrame, calls: Calls, folder: Path, mode: str = "append") -> list[tuple[Any, ...]]:
    return sorted(row for results in run(frame, calls, folder, mode) for row in results)


def test_a_processor_with_spark_s_methods_and_sql_behind_it(spark: SparkSession, calls: Calls, tmp_path: Path) -> None:
    totals = hr.groupBy(calls.frame, "src").process(Totals(), "src string, total long", state="total long")
    hr.named(totals.withColumn("double", F.col("total") * 2), "totals").createOrReplaceTempView("own_totals")
    names = spark.createDataFrame([(f"c{i}", f"name {i}") for i in range(4)], "src string, name string")
    names.createOrReplaceTempView("own_names")
    result = spark.sql("SELECT name, max(double) AS most FROM own_totals JOIN own_names USING (src) GROUP BY name")
    first, second = run(result, calls, tmp_path / "ckpt", "update")

    def expected(rows: list[tuple[str, int, int]]) -> dict[str, int]:
        return {f"name {i}": 2 * sum(s for src, _, s in rows if src == f"c{i}") for i in range(4)}

    assert dict(first) == expected(FIRST)
    assert dict(second) == expected(FIRST + SECOND)


def test_count_windows(calls: Calls, tmp_path: Path) -> None:
    threes = hr.groupBy(calls.frame, "src", hr.count_window(3)).agg(F.sum("seconds").alias("seconds")).drop("count_window")
    wanted = []
    for src in {src for src, _, _ in FIRST + SECOND}:
        mine = [seconds for each, _, seconds in sorted(FIRST + SECOND, key=lambda row: row[1]) if each == src]
        wanted += [(src, sum(mine[at : at + 3])) for at in range(0, len(mine) - 2, 3)]
    assert all_of(threes, calls, tmp_path / "ckpt") == sorted(wanted)


@pytest.mark.extra
def test_a_product_of_a_stream_with_itself(calls: Calls, tmp_path: Path) -> None:
    near = hr.crossJoin(calls.frame, calls.frame, within="2 seconds", where="seconds < seconds_right")
    rows = FIRST + SECOND + END
    pairs = [(a[0], b[0]) for a in rows for b in rows if abs(a[1] - b[1]) <= 2 and a[2] < b[2]]
    assert all_of(near.select("src", "src_right"), calls, tmp_path / "ckpt") == sorted(pairs)


@pytest.mark.extra
def test_joins_with_the_last_row_of_a_key(calls: Calls, tmp_path: Path) -> None:
    """Of rows at one time, those of the left side come first: a row meets itself, and on the left the row before it."""
    last = hr.join(calls.frame, calls.frame, "src", last=1).select("src", "seconds", "seconds_right")
    wanted = set()
    for src in {src for src, _, _ in FIRST + SECOND}:
        mine = [seconds for each, _, seconds in sorted(FIRST + SECOND, key=lambda row: row[1]) if each == src]
        wanted |= {(src, a, a) for a in mine} | {(src, b, a) for a, b in itertools.pairwise(mine)}
    assert {row for row in all_of(last, calls, tmp_path / "ckpt") if row[0] != "end"} == wanted


@pytest.mark.parametrize("by_split", [pytest.param(True, marks=pytest.mark.extra), False])
def test_two_sinks_share_an_aggregate(calls: Calls, tmp_path: Path, by_split: bool) -> None:
    """Both sinks read the results of one operator; the rows that only one condition takes come to one sink."""
    per_minute = calls.frame.groupBy("src", F.window("ts", "1 minute")).agg(F.sum("seconds").alias("seconds"))
    parts: dict[str, DataFrame] = {"many": per_minute.filter("seconds > 500"), "few": per_minute.filter("seconds <= 500")}
    if by_split:
        parts = hr.split(per_minute, many="seconds > 500", otherwise="few")
    found: dict[str, list[tuple[Any, ...]]] = {"many": [], "few": []}

    def collecting(name: str) -> Any:
        return lambda rows, batch: found[name].extend(tuple(row) for row in rows.select("src", "seconds").collect())

    writers = [hr.writeStream(part).foreachBatch(collecting(name)) for name, part in parts.items()]
    query = hr.start(*writers, checkpointLocation=str(tmp_path / "ckpt"))
    for rows in (FIRST, SECOND, END):
        calls.add(rows)
        query.processAllAvailable()
    assert len(query.routing()) == 1
    query.stop()
    sums: dict[tuple[str, int], int] = {}
    for src, at, seconds in FIRST + SECOND:
        sums[src, at // 60] = sums.get((src, at // 60), 0) + seconds
    assert sorted(found["many"]) == sorted((src, n) for (src, _), n in sums.items() if n > 500)
    assert sorted(found["few"]) == sorted((src, n) for (src, _), n in sums.items() if n <= 500)
    assert found["many"]
    assert found["few"]


def test_writers_that_use_different_columns_of_one_aggregate(spark: SparkSession, calls: Calls, tmp_path: Path) -> None:
    """The first one does not use the event time behind dropDuplicates. The second one does."""
    once = calls.frame.dropDuplicates(["src", "seconds"])
    counts = once.groupBy("src").agg(F.count("*").alias("n"), F.max("ts").alias("last"))
    found: dict[str, list[tuple[Any, ...]]] = {"n": [], "last": []}

    def collecting(name: str) -> Any:
        return lambda rows, batch: found[name].extend(tuple(row) for row in rows.collect())

    writers = [hr.writeStream(counts.select("src", name)).outputMode("update").foreachBatch(collecting(name)) for name in found]
    calls.add(FIRST)
    query = hr.start(*writers, checkpointLocation=str(tmp_path / "ckpt"))
    query.processAllAvailable()
    query.stop()
    batch = spark.read.schema(SCHEMA).parquet(str(tmp_path / "in")).dropDuplicates(["src", "seconds"])
    wanted = batch.groupBy("src").agg(F.count("*").alias("n"), F.max("ts").alias("last"))
    for name, rows in found.items():
        assert sorted(rows) == sorted(tuple(row) for row in wanted.select("src", name).collect())


@pytest.mark.extra
def test_shedding_is_declared_on_a_dataframe(calls: Calls, tmp_path: Path) -> None:
    """Without a deadline nothing is dropped."""
    shed = hr.shed(calls.frame, max_loss=0.5, by="src", weight="w")
    counts = shed.groupBy("src").agg(F.count("*").alias("n"), hr.coverage("w").alias("c"))
    _, second = run(counts, calls, tmp_path / "ckpt", "update")
    assert all(row[2] == 1.0 for row in second)
    last = {row[0]: row[1] for row in second}
    assert last == {src: sum(each == src for each, _, _ in FIRST + SECOND + END) for src in {row[0] for row in SECOND + END}}


def test_spark_alone_refuses_it_and_says_what_to_do(spark: SparkSession, calls: Calls, tmp_path: Path) -> None:
    totals = hr.groupBy(calls.frame, "src").process(Totals(), "src string, total long", state="total long")
    calls.add(FIRST)
    query = totals.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "ckpt")).trigger(availableNow=True).start()
    with pytest.raises(Exception, match=r"call hr\.enable\(spark\) before df\.writeStream"):
        query.awaitTermination()


def test_mistakes_are_reported_at_the_user_s_line(spark: SparkSession, calls: Calls) -> None:
    with pytest.raises(hr.HeadraceError, match=r"test_own_frames\.py:\d+.*a batch DataFrame"):
        hr.groupBy(spark.range(3), "id")
    with pytest.raises(hr.QueryError, match="wanted a streaming DataFrame"):
        hr.crossJoin(calls.frame, "calls", within="1 second")  # type: ignore[arg-type]
    with pytest.raises(hr.QueryError, match="at least one branch"):
        hr.split(calls.frame)
    with pytest.raises(hr.HeadraceError, match="seconds_wrong"):
        hr.crossJoin(calls.frame, calls.frame, within="1 second", where="seconds < seconds_wrong")
