"""A start that is refused changes nothing: neither for a query that runs, nor for the program that is mended and started again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import headrace as hr
from headrace.errors import CheckpointError, QueryError
from headrace.runtime.failpoints import VARIABLE
from headrace.runtime.fencing import NO_LOCKS

pytestmark = pytest.mark.spark


class Case:
    """A folder of rows, and a checkpoint."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder, self.files = spark, folder, 0
        self.told: dict[Any, Any] = {}

    def offer(self, *keys: str) -> None:
        (self.folder / "in").mkdir(exist_ok=True)
        path = self.folder / "in" / f"{self.files}.json"
        path.with_name(f".{path.name}").write_text("\n".join(json.dumps({"k": key, "v": 1}) for key in keys))
        path.with_name(f".{path.name}").rename(path)
        self.files += 1

    def rows(self, schema: str = "k string, v long") -> Any:
        return hr.stream(self.spark.readStream.schema(schema).json(str(self.folder / "in")))

    def writer(self, counts: Any, kind: str = "foreachBatch") -> Any:
        writer = counts.writeStream.outputMode("update").option("checkpointLocation", str(self.folder / "checkpoint"))
        if kind != "foreachBatch":
            return writer.format(kind)
        return writer.foreachBatch(lambda rows, _: self.told.update({row[0]: row[1] for row in rows.collect()}))

    def counts(self, kind: str = "foreachBatch") -> Any:
        return self.writer(self.rows().groupBy("k").count(), kind)


@pytest.fixture
def case(spark: SparkSession, tmp_path: Path) -> Case:
    return Case(spark, tmp_path)


def test_a_query_that_runs_is_not_fenced_off_where_the_disk_has_no_locks(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, NO_LOCKS)
    case.offer("a")
    query = case.counts().queryName("not_fenced_off").start()
    try:
        query.processAllAvailable()
        with pytest.raises(QueryError, match="nosuch"):
            case.counts().option("headrace.instancesOf", "nosuch=2").start()
        with pytest.raises(QueryError, match="that is running"):
            case.counts().queryName("not_fenced_off").start()
        case.offer("a")
        query.processAllAvailable()
        assert case.told == {"a": 2}
    finally:
        query.stop()


def test_the_table_of_a_query_that_runs_stays(case: Case) -> None:
    case.offer("a")
    query = case.counts("memory").queryName("table_that_stays").start()
    try:
        query.processAllAvailable()
        with pytest.raises(CheckpointError, match="is running on it"):
            case.counts("memory").queryName("table_that_stays").start()
        assert [tuple(row) for row in case.spark.table("table_that_stays").collect()] == [("a", 1)]
    finally:
        query.stop()


def test_state_is_not_dropped_by_a_start_that_was_refused(case: Case) -> None:
    def run(*names: str, **options: str) -> None:
        rows = case.rows()
        made = {"x": rows.groupBy("k").count(), "y": rows.groupBy("k").sum("v")}
        writers = [case.writer(made[name].named(name)).option("headrace.instancesOf", "x=1,y=1") for name in names]
        for name, value in options.items():
            writers[0].option(f"headrace.{name}", value)
        hr.start(*writers, checkpointLocation=str(case.folder / "checkpoint"), availableNow=True).awaitTermination()

    case.offer("a")
    run("x", "y")
    with pytest.warns(UserWarning, match="no longer has these operators"), pytest.raises(QueryError, match="instancesOf"):
        run("x", operatorChanges="accept")
    case.offer("a", "a")
    run("x", "y")
    assert case.told == {"a": 3}


def test_what_never_ran_may_be_changed(case: Case) -> None:
    case.offer("a")
    with pytest.raises(QueryError, match="nosuch"):
        case.writer(case.rows("k string, v string").groupBy("k").count()).option("headrace.instancesOf", "nosuch=2").start()
    query = case.counts().start()
    query.processAllAvailable()
    query.stop()
    assert case.told == {"a": 1}
