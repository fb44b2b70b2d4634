"""``headrace migrate``: a query that has run on plain Spark goes on here, with the results that Spark would have given, batch by batch."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import headrace as hr
from headrace.cli import app, run
from tests.integration.both import Values, assert_same_rows, settings, values
from tests.integration.migrated_queries import CASES, PROVIDERS, Case

pytestmark = pytest.mark.spark
SCHEMA = "k string, n int, x double, m decimal(8,2), ts timestamp"
ARROW = pa.schema(
    [("k", pa.string()), ("n", pa.int32()), ("x", pa.float64()), ("m", pa.decimal128(8, 2)), ("ts", pa.timestamp("us", tz="UTC"))]
)
BEGIN = datetime(2024, 1, 1, tzinfo=UTC)
FILES, MOVED = 6, 3
"""How many files come, and after how many the query is moved."""
PROGRAM = """
import os
from pyspark.sql import DataFrame, SparkSession, functions as F
{more}
spark = SparkSession.builder.getOrCreate()
events = spark.readStream.schema({schema!r}).parquet(os.environ["EVENTS"]).withWatermark("ts", "10 seconds")
others = spark.readStream.schema({schema!r}).parquet(os.environ["OTHERS"]).withWatermark("ts", "10 seconds")
others = others.select(F.col("k").alias("key"), F.col("n").alias("number"), F.col("ts").alias("at"))
frame = {query}
if __name__ == "__main__":
    frame.writeStream.outputMode({mode!r}).option("checkpointLocation", os.environ["OLD"]).format("noop").start().awaitTermination()
    spark.stop()
"""


def tables(seed: int) -> list[pa.Table]:
    random = Random(seed)
    return [
        pa.Table.from_pylist(
            [
                {
                    "k": random.choice(["a", "b", "c"]),
                    "n": random.choice([1, 2, 3, 4, None]),
                    "x": random.choice([0.5, -1.0, 2.0, None]),
                    "m": random.choice([1, 2, 5]),
                    "ts": BEGIN + timedelta(seconds=at * 9 + random.randrange(12)),
                }
                for _ in range(12)
            ],
            schema=ARROW,
        )
        for at in range(FILES)
    ]  # fmt: skip


@dataclass
class Place:
    """The folders of one run of a program."""

    root: Path
    case: Case
    monkeypatch: pytest.MonkeyPatch

    def __post_init__(self) -> None:
        for name in ("events", "others", "waiting"):
            (self.root / name).mkdir(parents=True)
        for seed, name in enumerate(("events", "others")):
            for at, table in enumerate(tables(seed)):
                pq.write_table(table, self.root / "waiting" / f"{name}{at}.parquet")
        self.program.write_text(PROGRAM.format(schema=SCHEMA, query=self.case.query, mode=self.case.mode, more=self.case.more))

    @property
    def program(self) -> Path:
        return self.root / "program.py"

    def enter(self) -> None:
        """Let the program read these folders."""
        for name in ("events", "others", "old"):
            self.monkeypatch.setenv(name.upper(), str(self.root / name))

    def frame(self) -> DataFrame:
        self.enter()
        names: dict[str, Any] = {"__name__": "program"}
        exec(compile(self.program.read_text(), str(self.program), "exec"), names)
        found: DataFrame = names["frame"]
        return found

    def steps(
        self, first: int, last: int, checkpoint: str, between: Callable[[Any, int], None] = lambda query, at: None
    ) -> list[list[Values]]:
        """Run the query over some of the files, one after the other."""
        batches: list[list[Values]] = []
        found: list[list[Values]] = []
        writer = self.frame().writeStream.outputMode(self.case.mode).option("checkpointLocation", str(self.root / checkpoint))
        query = writer.foreachBatch(lambda rows, _: batches.append(values(rows))).start()
        try:
            for at in range(first, last):
                between(query, at)
                before = len(batches)
                for name in ("events", "others"):
                    shutil.copy(self.root / "waiting" / f"{name}{at}.parquet", self.root / name / f"{at}.parquet")
                query.processAllAvailable()
                new = batches[before:]
                found.append((new[-1] if new else []) if self.case.mode == "complete" else [row for step in new for row in step])
        finally:
            query.stop()
        return found


def conf(case: Case, provider: str) -> dict[str, str]:
    return {
        "spark__sql__shuffle__partitions": "2",
        "spark__sql__streaming__stateStore__providerClass": f"org.apache.spark.sql.execution.streaming.state.{provider}",
        "headrace__instances": "2",
        **dict(case.conf),
    }


def params() -> list[Any]:
    return [
        pytest.param(
            case, provider, id=f"{case.name}, {provider}", marks=[] if case.quick and provider == PROVIDERS[0] else pytest.mark.extra
        )
        for case in CASES
        for provider in PROVIDERS
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("case", "provider"), params())
def test_a_query_goes_on_as_it_would_have(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: Case, provider: str
) -> None:
    undisturbed, moved = (Place(tmp_path / name, case, monkeypatch) for name in ("undisturbed", "moved"))
    with settings(spark, **conf(case, provider)):
        wanted = undisturbed.steps(0, FILES, "old")
        found = moved.steps(0, MOVED, "old")
        old, new = moved.root / "old", moved.root / "new"
        before = {path: path.stat().st_mtime_ns for path in old.rglob("*")}
        assert run(app, ["migrate", str(moved.program), str(old), str(new), "--dry-run"]) == 0
        assert not new.exists()
        assert run(app, ["migrate", str(moved.program), str(old), str(new)]) == 0
        assert {path: path.stat().st_mtime_ns for path in old.rglob("*")} == before
        hr.enable(spark)
        try:
            found += moved.steps(MOVED, FILES, "new", rescaled)
        finally:
            hr.disable(spark)
    assert sum(map(len, wanted[MOVED:])) > 0
    names = moved.frame().columns
    for at, (mine, theirs) in enumerate(zip(found, wanted, strict=True)):
        assert_same_rows(mine, theirs, names, f"step {at}")


def rescaled(query: Any, at: int) -> None:
    assert isinstance(query, hr.HeadraceQuery)
    if at == MOVED + 1:
        query.rescale(3)


REFUSED = [
    (
        'events.join(others, F.expr("k = key AND n = number AND at BETWEEN ts AND ts + INTERVAL 30 SECONDS"), "left")',
        "rows of the left side whose partners are forgotten",
    ),
    ('events.groupBy("k", F.window("ts", "20 seconds", "5 seconds")).count()', "cannot be divided into the panes"),
    ('events.groupBy("k", F.window("ts", "5 seconds")).agg(F.first("n"))', "and not its event time"),
]


@pytest.mark.extra
@pytest.mark.slow
@pytest.mark.parametrize(("query", "words"), REFUSED, ids=[words for _, words in REFUSED])
def test_what_cannot_go_on_exactly_is_refused(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], query: str, words: str
) -> None:
    case = Case("refused", query)
    place = Place(tmp_path / "place", case, monkeypatch)
    with settings(spark, **conf(case, PROVIDERS[0])):
        place.steps(0, FILES, "old")
        capfd.readouterr()
        assert run(app, ["migrate", str(place.program), str(place.root / "old"), str(place.root / "new")]) == 2
    assert words in capfd.readouterr().err.replace("\n", " ")
    assert not (place.root / "new").exists()


@pytest.mark.extra
@pytest.mark.slow
def test_another_program_is_refused(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    wrote = Case("wrote", 'events.groupBy("k", F.window("ts", "5 seconds")).agg(F.sum("n"))')
    others = {
        'events.groupBy("k", F.window("ts", "5 seconds")).agg(F.max("n"))': "wanted the buffer of max(n)",
        'events.groupBy("n", F.window("ts", "5 seconds")).agg(F.sum("n"))': "wanted n: int",
        'events.withColumn("other", F.col("k")).groupBy("other", F.window("ts", "5 seconds")).agg(F.sum("n"))': "wanted the keys other",
        'events.dropDuplicates(["k", "ts"])': "wanted the state of dedupe",
        'events.dropDuplicates(["k", "ts"]).groupBy("k", F.window("ts", "5 seconds")).agg(F.sum("n"))': "wanted the 1 operators",
    }
    place = Place(tmp_path / "place", wrote, monkeypatch)
    with settings(spark, **conf(wrote, PROVIDERS[0])):
        place.steps(0, 2, "old")
        for query, words in others.items():
            place.program.write_text(PROGRAM.format(schema=SCHEMA, query=query, mode="append", more=""))
            capfd.readouterr()
            assert run(app, ["migrate", str(place.program), str(place.root / "old"), str(place.root / "new")]) == 2
            assert words in capfd.readouterr().err.replace("\n", " ")
    assert run(app, ["migrate", str(place.program), str(place.root / "in"), str(place.root / "new")]) == 2


@pytest.mark.extra
@pytest.mark.slow
@pytest.mark.parametrize("seam", ["an unfinished batch", "results that are due"])
def test_nothing_is_lost_or_doubled_at_the_seam(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seam: str) -> None:
    """Spark is stopped after it has planned a batch and before it has finished it, or before the batch that would emit what is due."""
    case = Case("seam", 'events.groupBy("k", F.window("ts", "5 seconds")).agg(F.count("*"))')
    undisturbed, moved = (Place(tmp_path / name, case, monkeypatch) for name in ("undisturbed", "moved"))
    unfinished = seam == "an unfinished batch"
    batches: list[list[Values]] = []

    def collect(rows: DataFrame, _: int) -> None:
        if unfinished and len(list((moved.root / "events").iterdir())) > MOVED:
            raise RuntimeError("the machine is lost")
        batches.append(values(rows))

    with settings(spark, **conf(case, PROVIDERS[0])):
        wanted = [row for step in undisturbed.steps(0, FILES, "old") for row in step]
        with settings(spark, spark__sql__streaming__noDataMicroBatches__enabled=None if unfinished else "false"):
            query = moved.frame().writeStream.option("checkpointLocation", str(moved.root / "old")).foreachBatch(collect).start()
            for at in range(MOVED):
                shutil.copy(moved.root / "waiting" / f"events{at}.parquet", moved.root / "events" / f"{at}.parquet")
                query.processAllAvailable()
            if unfinished:
                shutil.copy(moved.root / "waiting" / f"events{MOVED}.parquet", moved.root / "events" / f"{MOVED}.parquet")
                with pytest.raises(StreamingQueryException):
                    query.processAllAvailable()
            query.stop()
        offsets, commits = (
            sorted(int(p.name) for p in (moved.root / "old" / name).iterdir() if p.name.isdigit()) for name in ("offsets", "commits")
        )
        assert (offsets[-1] > commits[-1]) == unfinished
        assert run(app, ["migrate", str(moved.program), str(moved.root / "old"), str(moved.root / "new")]) == 0
        hr.enable(spark)
        try:
            ours = moved.steps(MOVED + unfinished, FILES, "new")
        finally:
            hr.disable(spark)
    found = [row for step in [*batches, *ours] for row in step]
    assert_same_rows(found, wanted, ["k", "window", "count"], seam)
