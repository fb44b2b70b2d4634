"""Users' own operators in running queries: against Spark's aggregates, and against references written down here."""

from __future__ import annotations

import shutil
import sys
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark import cloudpickle
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle  # type: ignore[attr-defined]

import headrace as hr
from headrace.errors import QueryError, StateSchemaError
from headrace.ids import StoreId
from headrace.runtime.checkpoint import Checkpoint
from headrace.runtime.inspection import pinned, state_rows
from tests.integration.both import Feed, assert_equal, assert_same_rows, ours, spark_batch, values
from tests.integration.both import settings as setting
from tests.integration.own_totals import KEPT, OUT, SCHEMA, START, Totals, TotalsPerKey, per_key, rows, totals

pytestmark = pytest.mark.spark

# Workers need not be able to import the tests.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.mark.parametrize(
    ("processor", "files", "options"),
    [
        (Totals(), 4, {"instances": 3}),
        pytest.param(TotalsPerKey(), 4, {"instances": 3, "hashBits": 3, "depthMax": 1}, marks=pytest.mark.extra),
        (TotalsPerKey(), 2, {"instances": 1}),
        pytest.param(Totals(), 1, {"instances": 1, "hashBits": 2}, marks=pytest.mark.extra),
    ],
)
def test_running_totals_equal_spark_s_aggregate(spark: SparkSession, tmp_path: Path, processor: Any, files: int, options: Any) -> None:
    whole = rows(1, 1200)
    cuts = np.linspace(0, whole.num_rows, files + 1).astype(int)
    feed = Feed.of(tmp_path, SCHEMA, [whole.slice(a, b - a) for a, b in pairwise(cuts.tolist())])
    found = ours(spark, [feed], totals(processor), "append" if files > 1 else "update", tmp_path, **options)
    wanted = spark_batch(spark, [feed], lambda s: s.groupBy("k", "part").agg(F.count("*").alias("count"), F.sum("v").alias("total")))
    assert_same_rows(found.last(2), wanted.rows, found.columns, "the last word on every key")


class Sessions(hr.KeyProcessor):
    """Counts rows of a key until none has come for ten seconds."""

    def process(self, key: Any, rows: Any, state: Any) -> Any:
        for row in rows:
            if state.count is not None and row.ts >= state.last + timedelta(seconds=10):
                yield self.end(key, state)
            state.count = (state.count or 0) + 1
            state.last = row.ts
        state.delete_timer()
        state.set_timer(state.last + timedelta(seconds=10))

    def on_timer(self, key: Any, at: datetime, state: Any) -> Any:
        yield self.end(key, state)

    def end(self, key: Any, state: Any) -> Any:
        ended = (key, state.count, state.last)
        state.delete()
        return ended


def session_reference(table: pa.Table, until: datetime) -> list[tuple[Any, ...]]:
    by_key = defaultdict(list)
    for row in table.to_pylist():
        by_key[row["k"]].append(row["ts"])
    found = []
    for key, times in by_key.items():
        session: list[datetime] = []
        for ts in sorted(times):
            if session and ts >= session[-1] + timedelta(seconds=10):
                found.append((key, len(session), session[-1]))
                session = []
            session.append(ts)
        if session[-1] + timedelta(seconds=10) <= until:
            found.append((key, len(session), session[-1]))
    return [(k, n, int(ts.timestamp() * 1_000_000 + 0.5)) for k, n, ts in found]


def test_timers_fire_when_the_watermark_passes_whatever_the_batches(spark: SparkSession, tmp_path: Path) -> None:
    whole = pa.concat_tables([rows(2, 150, 0, 120), rows(3, 100, 200, 60)])
    end = whole["ts"].to_pylist()[-1]
    wanted = session_reference(whole, end - timedelta(seconds=1))
    state = hr.State("count long, last timestamp", timers="event")

    def query(s: Any) -> Any:
        return s.withWatermark("ts", "1 second").groupBy("k").process(Sessions(), "k string, count long, last timestamp", state)

    for cuts, options in (([90, 160], {"instances": 3}), ([], {"instances": 1, "hashBits": 2}), ([30, 60, 180], {})):
        edges = [0, *cuts, whole.num_rows]
        feed = Feed.of(tmp_path, SCHEMA, [whole.slice(a, b - a) for a, b in pairwise(edges)])
        found = ours(spark, [feed], query, "update" if not cuts else "append", tmp_path, **options)
        assert_same_rows(found.rows, wanted, found.columns, f"cut at {cuts}")


class SparkSessions(StatefulProcessor):
    """The same for Spark, which knows milliseconds and leaves the order of rows open."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle
        self.session = handle.getValueState("session", "count long, last long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        count, last = self.session.get() or (0, 0)
        for moment in sorted(int(row.ts.timestamp() * 1000 + 0.5) for row in rows):
            if count and moment >= last + 10_000:
                yield Row(k=key[0], count=count, last=datetime.fromtimestamp(last / 1000, UTC))
                count = 0
            count, last = count + 1, moment
        for timer in list(self.handle.listTimers()):
            self.handle.deleteTimer(timer)
        self.handle.registerTimer(last + 10_000)
        self.session.update((count, last))

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        count, last = self.session.get() or (0, 0)
        self.session.clear()
        yield Row(k=key[0], count=count, last=datetime.fromtimestamp(last / 1000, UTC))

    def close(self) -> None:
        pass


@pytest.mark.extra
def test_timers_and_late_rows_are_those_of_spark_s_transform_with_state(spark: SparkSession, tmp_path: Path) -> None:
    late = rows(12, 40, 0, 80)
    feed = Feed.of(
        tmp_path, SCHEMA, [rows(13, 60, 0, 60, keys=6), pa.concat_tables([rows(14, 60, 70, 60, keys=6), late]), rows(15, 5, 300, 1)]
    )
    out, state = "k string, count long, last timestamp", hr.State("count long, last timestamp", timers="event")

    def query(s: Any) -> Any:
        grouped = s.withWatermark("ts", "5 seconds").groupBy("k")
        if isinstance(s, hr.Stream):
            return grouped.process(Sessions(), out, state)
        return grouped.transformWithState(SparkSessions(), out, "Append", "EventTime")

    store = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    with setting(spark, spark__sql__streaming__stateStore__providerClass=store):
        found = assert_equal(spark, [feed], query, "append", tmp_path)
    assert len(found.steps[1]) > 5


class Distinct(hr.Processor):
    """How many different values a key has had, by a map; late rows must not come here."""

    def process(self, rows: pa.Table, state: Any) -> pa.Table:
        values = rows.group_by(["k", "v"]).aggregate([("v", "count"), ("ts", "max")])
        seen = state.map("seen")
        times = pc.add(values["v_count"], pc.fill_null(seen.get(values)["times"], 0))
        seen.put(values.select(["k", "v"]).append_column("times", times))
        counted = seen.items(rows).group_by("k").aggregate([("v", "count")])
        last = rows.group_by("k").aggregate([("ts", "max")])
        assert counted.num_rows == last.num_rows
        order = pc.index_in(last["k"], value_set=counted["k"].combine_chunks())
        return pa.table({"k": last["k"], "different": counted["v_count"].take(order), "ts": last["ts_max"]})


def test_maps_and_a_chain_into_windows_and_what_the_state_shows(spark: SparkSession, tmp_path: Path) -> None:
    late = pa.table({"k": ["late"], "part": pa.array([1], pa.int32()), "ts": [START], "v": [1]}).cast(rows(1, 1).schema)
    tables = [rows(5, 300, 0, 60, keys=5), pa.concat_tables([rows(6, 300, 60, 60, keys=5), late]), rows(7, 10, 300, 1)]
    feed = Feed.of(tmp_path, SCHEMA, tables)
    state = hr.State(maps={"seen": ("v long", "times long")})

    def query(s: Any) -> Any:
        counts = s.withWatermark("ts", "1 second").groupBy("k").process(Distinct(), "k string, different long, ts timestamp", state)
        # The event time comes out as one, so that windows can be built on it.
        return counts.groupBy(F.window("ts", "2 minutes")).agg(F.max("different").alias("most"), F.count("*").alias("rows"))

    found = ours(spark, [feed], query, "append", tmp_path, instances=2)
    seen: dict[Any, set[int]] = defaultdict(set)
    for row in pa.concat_tables([tables[0], tables[1].slice(0, 300)]).to_pylist():
        seen[row["k"]].add(row["v"])
    _, most, emitted = found.rows[0]
    assert most == max(map(len, seen.values()))
    assert emitted == sum(len(set(t["k"].to_pylist())) for t in (tables[0], tables[1].slice(0, 300)))


def test_a_restart_goes_on_where_it_was_and_state_can_be_given_and_read(spark: SparkSession, tmp_path: Path) -> None:
    first, second = rows(8, 200), rows(9, 200)
    feed = Feed.of(tmp_path, SCHEMA, [first, second])
    folder, checkpoint = tmp_path / "in", str(tmp_path / "ckpt")
    given = spark.createDataFrame([("key 1", 0, 1000, 5), ("nobody", 1, 7, 7)], OUT)

    def run(processor: Any, initial: Any = None, kept: Any = KEPT) -> Any:
        stream = hr.stream(feed.stream(spark, folder))
        result = stream.groupBy("k", "part").process(processor, OUT, state=kept, initial=initial).named("process")
        writer = result.writeStream.format("noop").option("checkpointLocation", checkpoint).option("headrace.hashBits", "4")
        started = writer.trigger(availableNow=True).start()
        started.awaitTermination()
        return started

    folder.mkdir()
    shutil.copy(feed.files[0][0], folder)
    run(TotalsPerKey(), given)
    shutil.copy(feed.files[1][0], folder)
    # The other form reads the same state.
    query = run(Totals(), given)
    found = [tuple(row) for row in query.state("process").collect()]
    answer = spark_batch(spark, [feed], lambda s: s.groupBy("k", "part").agg(F.count("*"), F.sum("v"))).rows
    wanted = {(row[0], row[1]): (row[2], row[3]) for row in answer}
    extra = wanted.get(("key 1", 0), (0, 0))
    wanted |= {("key 1", 0): (1000 + extra[0], 5 + extra[1]), ("nobody", 1): (7, 7)}
    assert_same_rows(found, [(*k, *v) for k, v in wanted.items()], ["k", "part", "count", "total"], "the state")
    # Without Spark, and without the program, the checkpoint says the same.
    with pinned(Checkpoint.existing(checkpoint)) as manifest:
        parts = state_rows(Checkpoint(checkpoint), manifest, StoreId.parse("process"))
        shown = [tuple(row.values()) for part in parts for row in part.to_pylist()]
    assert_same_rows(shown, found, ["k", "part", "count", "total"], "the state as the command line shows it")
    with pytest.raises(StateSchemaError, match="added: n"):
        run(per_key(lambda key, rows, state: None), kept="n long, total long")
    # What one query had comes into another: SEEP's get and set of the processing state.
    checkpoint = str(tmp_path / "more")
    again = run(TotalsPerKey(), query.state("process"), hr.State(KEPT, ttl="1 day")).state("process")
    twice = {(k, part): (2 * n, 2 * s) for (k, part), (n, s) in wanted.items()} | {("nobody", 1): (7, 7)}
    twice["key 1", 0] = (1000 + 2 * extra[0], 5 + 2 * extra[1])
    assert_same_rows([tuple(row)[:4] for row in again.collect()], [(*k, *v) for k, v in twice.items()], [*"kpct"], "the state handed on")
    checkpoint = str(tmp_path / "other")
    with pytest.raises(QueryError, match="each key once in the initial state"):
        run(Totals(), given.union(given))


TYPES = {
    "flag": ("boolean", "id % 2 = 0"),
    "small": ("tinyint", "cast(id as tinyint)"),
    "real": ("double", "if(id = 3, double('nan'), id / 3)"),
    "amount": ("decimal(20,3)", "cast(id as decimal(20,3)) / 7"),
    "text": ("string", "concat('é', id)"),
    "bytes": ("binary", "cast(concat('b', id) as binary)"),
    "day": ("date", "date_add(date'2026-01-01', cast(id as int))"),
    "at": ("timestamp", "timestamp_micros(id * 1234567)"),
    "local": ("timestamp_ntz", "timestamp_ntz'2026-01-01 00:00:00.000001'"),
    "length": ("interval day to second", "make_dt_interval(0, 1, cast(id as int))"),
    "months": ("interval year to month", "make_ym_interval(1, cast(id as int))"),
    "list": ("array<timestamp>", "array(timestamp_micros(id), null)"),
    "words": ("map<string,int>", "map(concat('k', id), cast(id as int))"),
    "pair": ("struct<a: int, b: array<string>>", "struct(cast(id as int) as a, array('x', null) as b)"),
}


class Last(hr.KeyProcessor):
    """Emits what it kept of each key in the batch before."""

    def process(self, key: Any, rows: Any, state: Any) -> Any:
        if state.exists:
            yield (key, *(getattr(state, name) for name in TYPES))
        for name in TYPES:
            setattr(state, name, getattr(rows[-1], name))


class LastVectorised(hr.Processor):
    def process(self, rows: pa.Table, state: Any) -> pa.Table:
        kept = state.get(rows).append_column("key", rows["key"]).filter(state.known(rows))
        state.put(rows)
        return kept


def test_all_types_come_and_stay_and_go(spark: SparkSession, tmp_path: Path) -> None:
    columns = [f"cast(if(id = 5, null, {sql}) as {kind}) as {name}" for name, (kind, sql) in TYPES.items()]
    made = spark.range(6).selectExpr("id as key", *columns)
    made.coalesce(1).write.parquet(str(tmp_path / "in"))
    (file,) = (tmp_path / "in").glob("*.parquet")
    kept = ", ".join(f"{name} {kind}" for name, (kind, _) in TYPES.items())
    feed = Feed(tmp_path / "feed", f"key long, {kept}", [[file], [Path(shutil.copy(file, tmp_path / "again.parquet"))]])
    wanted = values(made)
    for processor in (Last(), LastVectorised()):
        found = ours(spark, [feed], lambda s, p=processor: s.groupBy("key").process(p, f"key long, {kept}", kept), "append", tmp_path)
        assert_same_rows(found.rows, wanted if isinstance(processor, LastVectorised) else wanted[:5], found.columns, str(processor))
