"""The queries that `test_migrate.py` moves from plain Spark."""

from __future__ import annotations

from dataclasses import dataclass

PROVIDERS = ("HDFSBackedStateStoreProvider", "RocksDBStateStoreProvider")


@dataclass(frozen=True)
class Case:
    """A program."""

    name: str
    query: str
    mode: str = "append"
    more: str = ""
    quick: bool = False
    conf: tuple[tuple[str, str], ...] = ()
    """Settings of the session, with __ for a dot."""


_MANY = (
    'F.count("*"), F.sum("n"), F.avg("n"), F.avg("m"), F.sum("m"), F.sum("x"), F.min("k"), F.max("x"), F.stddev("n"), F.skewness("n"), '
    'F.corr("n", "x"), F.max_by("n", F.struct("ts", "n")), F.bit_xor("n"), F.collect_set("n"), F.approx_count_distinct("n"), '
    'F.percentile("n", 0.5), F.expr("count_if(n > 1)"), F.expr("sum(n) FILTER (WHERE x > 0)"), F.sort_array(F.collect_list("n"))'
)
CASES = [
    Case("tumbling windows", f'events.groupBy(F.window("ts", "10 seconds"), "k").agg({_MANY})', quick=True),
    Case("running", f'events.groupBy("k", F.expr("n % 2")).agg({_MANY})', "update"),
    Case("complete", 'events.groupBy().agg(F.count("*"), F.sum("m"))', "complete"),
    Case("sessions", 'events.groupBy(F.session_window("ts", "4 seconds"), "k").agg(F.sum("n"), F.max("x"))'),
    Case(
        "sliding windows",
        'events.groupBy("k", F.window("ts", "20 seconds", "5 seconds")).agg(F.sum("n"), F.count("x"))',
        conf=(("headrace__panes", "false"),),
    ),
    Case("duplicates", 'events.dropDuplicates(["k", "ts"])'),
    Case("duplicates for ever", 'events.select("k", "n").dropDuplicates()'),
    Case("duplicates for a time", 'events.dropDuplicatesWithinWatermark(["k", "n"])'),
    Case("join", 'events.join(others, F.expr("k = key AND at BETWEEN ts - INTERVAL 5 SECONDS AND ts + INTERVAL 8 SECONDS"))'),
    Case("semi join", 'events.join(others, F.expr("k = key AND n = number AND at BETWEEN ts AND ts + INTERVAL 9 SECONDS"), "leftsemi")'),
    Case(
        "outer join",
        'events.join(others, F.expr("k = key AND at BETWEEN ts - INTERVAL 8 SECONDS AND ts"), "left")',
    ),
    Case(
        "chain",
        'events.dropDuplicates(["k", "n", "ts"]).groupBy(F.window("ts", "5 seconds"), "k").count()'
        '.groupBy(F.window("window", "20 seconds")).agg(F.sum("count"), F.max("k"))',
    ),
    Case(
        "applyInPandasWithState",
        'events.groupBy("k").applyInPandasWithState(counted, "k string, c int", "c int", "append", "EventTimeTimeout")',
        more="""
import pandas as pd
def counted(key, frames, state):
    c = state.get[0] if state.exists else 0
    if state.hasTimedOut:
        yield pd.DataFrame({"k": [key[0]], "c": [-c]})
        state.remove()
        return
    for frame in frames:
        c += len(frame)
        last = int(frame["ts"].max().value // 1_000_000)
    state.update((c,))
    state.setTimeoutTimestamp(max(state.getCurrentWatermarkMs() + 1, last + 3000))
    yield pd.DataFrame({"k": [key[0]], "c": [c]})
""",
    ),
    Case(
        "transformWithState",
        'events.groupBy("k").transformWithState(Kept(), "k string, c long", "Append", "EventTime")',
        more="""
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor
class Kept(StatefulProcessor):
    def init(self, handle):
        self.handle = handle
        self.total = handle.getValueState("total", "c long")
        self.seen = handle.getListState("seen", "n int")
        self.by = handle.getMapState("by", "n int", "c long")
    def handleInputRows(self, key, rows, timerValues):
        c = self.total.get()[0] if self.total.exists() else 0
        for row in rows:
            c += 1
            self.seen.appendValue((row.n,))
            if row.n is not None:
                self.by.updateValue((row.n,), ((self.by.getValue((row.n,))[0] if self.by.containsKey((row.n,)) else 0) + 1,))
            last = int(row.ts.timestamp() * 1000)
        self.total.update((c,))
        self.handle.registerTimer(last + 15000)
        yield Row(k=key[0], c=c)
        yield Row(k=key[0], c=1000 * sum(each[0] or 0 for each in self.seen.get()) + sum(v[0] for _, v in self.by.iterator()))
    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        yield Row(k=key[0], c=-expiredTimerInfo.getExpiryTimeInMs())
    def close(self):
        pass
""",
        conf=(("spark__sql__streaming__stateStore__providerClass", f"org.apache.spark.sql.execution.streaming.state.{PROVIDERS[1]}"),),
    ),
    Case(
        "transformWithStateInPandas",
        'events.groupBy("k").transformWithStateInPandas(Kept(), "k string, c long", "Append", "EventTime")',
        more="""
import pandas as pd
from pyspark.sql.streaming import StatefulProcessor
class Kept(StatefulProcessor):
    def init(self, handle):
        self.handle = handle
        self.total = handle.getValueState("total", "c long, last timestamp")
        self.seen = handle.getListState("seen", "n int, tags array<string>")
        self.by = handle.getMapState("by", "n int, k string", "c long")
    def handleInputRows(self, key, rows, timerValues):
        c = self.total.get()[0] if self.total.exists() else 0
        for frame in rows:
            for n, ts in zip(frame["n"], frame["ts"]):
                c += 1
                n = -1 if pd.isna(n) else int(n)
                self.seen.appendValue((n, [key[0], str(n)]))
                at = (n, key[0])
                self.by.updateValue(at, ((self.by.getValue(at)[0] if self.by.containsKey(at) else 0) + 1,))
        self.total.update((c, ts.to_pydatetime()))
        self.handle.registerTimer(int(ts.timestamp() * 1000) + 15000)
        sums = sum(n + len(tags) for n, tags in self.seen.get()), sum(v for (v,) in self.by.values())
        yield pd.DataFrame({"k": [key[0], key[0]], "c": [c, 1000 * sums[0] + sums[1]]})
    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        yield pd.DataFrame({"k": [key[0]], "c": [-expiredTimerInfo.getExpiryTimeInMs()]})
    def close(self):
        pass
""",
        conf=(("spark__sql__streaming__stateStore__providerClass", f"org.apache.spark.sql.execution.streaming.state.{PROVIDERS[1]}"),),
    ),
    Case(
        "time to live",
        'events.groupBy("k").transformWithState(Kept(), "k string, c long", "Append", "ProcessingTime")',
        more="""
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor
class Kept(StatefulProcessor):
    def init(self, handle):
        self.total = handle.getValueState("total", "c long", 3_600_000)
        self.seen = handle.getListState("seen", "n int", 3_600_000)
        self.by = handle.getMapState("by", "n int", "c long", 3_600_000)
    def handleInputRows(self, key, rows, timerValues):
        c = self.total.get()[0] if self.total.exists() else 0
        for row in rows:
            c += 1
            self.seen.appendValue((row.n,))
            if row.n is not None:
                self.by.updateValue((row.n,), (c,))
        self.total.update((c,))
        yield Row(k=key[0], c=c + 1000 * len(list(self.seen.get())) + 1_000_000 * len(list(self.by.iterator())))
    def close(self):
        pass
""",
        conf=(
            ("spark__sql__streaming__stateStore__providerClass", f"org.apache.spark.sql.execution.streaming.state.{PROVIDERS[1]}"),
            # In this time mode Spark runs batches without rows for ever, and processAllAvailable would never return.
            ("spark__sql__streaming__noDataMicroBatches__enabled", "false"),
        ),
    ),
]  # fmt: skip
