"""Mistakes with users' own operators: said at the line that made them, or when the operator fails, with nothing lost."""

from __future__ import annotations

import shutil
import sys
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

import headrace as hr
from headrace.errors import HeadraceError, ProcessorError
from tests.integration.both import Answer, Feed, assert_same_rows, spark_batch
from tests.integration.own_totals import SCHEMA, Totals, TotalsPerKey, per_key, rows, totals

pytestmark = pytest.mark.spark

# Workers need not be able to import the tests.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def test_an_error_of_the_user_is_shown_and_nothing_is_lost(spark: SparkSession, tmp_path: Path) -> None:
    class Fails(TotalsPerKey):
        def process(self, key: Any, rows: Any, state: Any) -> Any:
            if any(row.v == 99 for row in rows):
                raise ValueError("99 is not a number that I like")
            yield from super().process(key, rows, state)

    feed = Feed.of(tmp_path, SCHEMA, [rows(10, 50).set_column(3, "v", pa.array(range(100, 150))), rows(11, 500)])
    folder = tmp_path / "in"
    folder.mkdir()
    steps: list[Any] = []

    def start(processor: Any) -> Any:
        result = totals(processor)(hr.stream(feed.stream(spark, folder))).named("totals")
        writer = result.writeStream.option("checkpointLocation", str(tmp_path / "ckpt")).trigger(availableNow=True)
        return writer.foreachBatch(lambda frame, _: steps.extend(map(tuple, frame.collect()))).start()

    shutil.copy(feed.files[0][0], folder)
    start(Fails()).awaitTermination()
    shutil.copy(feed.files[1][0], folder)
    with pytest.raises(ProcessorError) as caught:
        start(Fails()).awaitTermination()
    message = str(caught.value)
    assert "Fails.process raised ValueError: 99 is not a number that I like" in message
    assert 'raise ValueError("99 is not a number that I like")' in message
    assert "py4j" not in message
    start(TotalsPerKey()).awaitTermination()
    wanted = spark_batch(spark, [feed], lambda s: s.groupBy("k", "part").agg(F.count("*"), F.sum("v"))).rows
    assert_same_rows(Answer([steps], []).last(2), wanted, ["k", "part", "count", "total"], "after the mistake was mended")


class Twice(hr.Processor):
    def process(self, rows: pa.Table, state: Any) -> pa.Table:
        return rows.select(["name"])

    def on_timers(self, due: pa.Table, state: Any) -> pa.Table:
        return due.select(["name"])


class WrongArguments(hr.KeyProcessor):
    def process(self, rows: Any, state: Any) -> Any:  # type: ignore[override]
        return []


class WrongForm(hr.Processor):
    def process(self, rows: pa.Table, state: Any) -> pa.Table:
        return rows

    def on_timer(self, key: Any, at: Any, state: Any) -> Any: ...


class Merges(TotalsPerKey):
    """Processors could define this in earlier versions, with two arguments."""

    def merge(self, left: Any) -> Any: ...


class NotSent(hr.KeyProcessor):
    def __init__(self) -> None:
        self.lock = threading.Lock()

    def process(self, key: Any, rows: Any, state: Any) -> Any: ...


def test_mistakes_are_errors_at_the_line_that_made_them(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    stream = hr.stream(spark.readStream.schema("name string, ts timestamp, v long").parquet(str(tmp_path / "in")))
    timed = stream.withWatermark("ts", "1 second")
    fine = per_key(lambda key, rows, state: None)
    timers = hr.State("n long", timers="event")
    by_name = stream.groupBy("name")
    mapped = stream.withColumn("m", F.create_map("name", "v")).groupBy("name")
    cases = [
        (lambda: by_name.process(Totals, "k string", "n long"), "found the class Totals itself; write Totals()"),
        (lambda: by_name.process(len, "k string", "n long"), "wanted an instance of a class derived from hr.Processor or hr.KeyProcessor"),
        (lambda: by_name.process(hr.Processor(), "k string", "n long"), "wanted a method process of Processor"),
        (lambda: by_name.process(WrongArguments(), "k string", "n long"), "wanted WrongArguments.process(self, key, rows, state)"),
        (lambda: by_name.process(WrongForm(), "k string", "n long"), "found on_timer, which is never called"),
        (lambda: by_name.process(NotSent(), "k string", "n long"), "NotSent cannot be sent to a task"),
        (lambda: by_name.process(fine, "k strong", "n long"), "schema"),
        (lambda: by_name.process(fine, "", "n long"), "wanted at least one column to emit"),
        (lambda: by_name.process(fine, "k string", ""), "wanted a state with values, maps or timers"),
        (lambda: by_name.process(fine, "k string", "n lung"), "state"),
        (lambda: by_name.process(fine, "k string", "n long, n long"), "wanted each column once; found 'n'"),
        (lambda: by_name.process(fine, "k string", "delete long"), "wanted another name for a part of the state; found 'delete'"),
        (lambda: by_name.process(fine, "k string", hr.State(maps={"seen": "a long"})), "map 'seen'"),  # type: ignore[dict-item]
        (lambda: by_name.process(fine, "k string", hr.State("n long", ttl="1 fortnight")), "ttl"),
        (lambda: by_name.process(fine, "k string", hr.State("n long", ttl="1 hour", ttl_by="event")), "wanted a stream with an event time"),
        (lambda: by_name.process(fine, "k string", timers), "on_timer"),
        (lambda: by_name.process(Twice(), "name string", "n long"), "hr.State(..., timers='event')"),
        (lambda: by_name.process(Twice(), "name string", timers), "call withWatermark on the stream first"),
        (lambda: timed.groupBy("name").process(Twice(), "name long", timers), "wanted column 'name' of type int64; found string"),
        (lambda: timed.groupBy("name").process(Twice(), "other string", timers), "wanted the columns other string; found name string"),
        (lambda: timed.groupBy("name", F.window("ts", "1 minute")).process(fine, "k string", "n long"), "grouped by a window"),
        (lambda: stream.groupBy().process(fine, "k string", "n long"), "wanted at least one key"),
        (lambda: by_name.process(fine, "k string", "n long", initial=spark.range(1)), "wanted the columns struct<name:string,n:bigint>"),
        (lambda: by_name.process(fine, "k string", "n long", orderBy="when"), "wanted columns of the stream: name, ts, v; found 'when'"),
        (lambda: mapped.process(fine, "k string", "n long", orderBy=["v", "m"]), "found m map<string,bigint>"),
        (lambda: by_name.process(fine, "k string", "n long", orderBy=F.col("v")), "wanted a column's name, or a list of names"),  # type: ignore[arg-type]
    ]
    for build, said in cases:
        with pytest.raises(HeadraceError) as caught:
            build()
        assert said in str(caught.value), str(caught.value)
        assert "process at test_process_mistakes.py:" in str(caught.value)
    emitted = T.StructType.fromDDL("name string")
    assert by_name.process(Merges(), emitted, "count long, total long").schema == emitted
    assert by_name.process(fine, emitted, T.StructType.fromDDL("n long")).schema == emitted
