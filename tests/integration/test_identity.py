"""After a restart every operator finds its own state, wherever it is in the program. If state is not found, the start is refused.

A query keeps totals of two groups of rows. The program is changed, more rows come, and results must equal Spark's over all rows.
"""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import headrace as hr
from headrace.errors import CheckpointMismatchError, QueryError, StateSchemaError

pytestmark = pytest.mark.spark

SCHEMA = "k string, v long"
Answers = dict[str, dict[Any, Any]]


class Program:
    """A program that is run, changed, and run again on one checkpoint."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder, self.files = spark, folder, 0
        self.answers: Answers = {}
        self.rows_read = 0

    def offer(self, source: str, *rows: tuple[str, int]) -> None:
        self.files += 1
        self.spark.createDataFrame(list(rows), SCHEMA).coalesce(1).write.mode("append").parquet(str(self.folder / source))

    def source(self, name: str = "in") -> Any:
        (self.folder / name).mkdir(exist_ok=True)
        return hr.stream(self.spark.readStream.schema(SCHEMA).parquet(str(self.folder / name)))

    def batch(self, name: str = "in") -> DataFrame:
        return self.spark.read.schema(SCHEMA).parquet(str(self.folder / name))

    def run(self, /, **streams: Any) -> hr.HeadraceQuery:
        """Each stream to a sink of its own, in this order; what is told of each key last, counts."""
        writers = [
            stream.writeStream.outputMode("update").option("headrace.instances", 1).foreachBatch(self._keep(name))
            for name, stream in streams.items()
        ]
        query = hr.start(*writers, checkpointLocation=str(self.folder / "checkpoint"), availableNow=True)
        query.awaitTermination()
        self.rows_read = sum(progress.numInputRows for progress in query.recentProgress)
        return query

    def _keep(self, name: str) -> Callable[[DataFrame, int], None]:
        def keep(rows: DataFrame, batch: int) -> None:
            self.answers.setdefault(name, {}).update({row[0]: row[1] for row in rows.collect()})

        return keep

    def identities(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "checkpoint" / "headrace" / "query.json").read_text())["identities"]
        return found


def totals(rows: Any) -> Any:
    return rows.groupBy("k").agg(F.sum("v").alias("s"))


def wanted(rows: DataFrame) -> dict[Any, Any]:
    return {row[0]: row[1] for row in totals(rows).collect()}


@pytest.fixture
def program(spark: SparkSession, tmp_path: Path) -> Program:
    return Program(spark, tmp_path)


def test_sinks_in_another_order_find_their_state_and_their_sources(program: Program) -> None:
    """Two operators over one source, one over another source: all three change places."""

    def build() -> dict[str, Any]:
        rows = program.source()
        return {"small": totals(rows.filter("v < 100")), "large": totals(rows.filter("v >= 100")), "other": totals(program.source("other"))}

    program.offer("in", ("a", 1), ("a", 100), ("b", 2))
    program.offer("other", ("a", 5), ("c", 6))
    program.run(**build())
    program.offer("in", ("a", 2), ("a", 200))
    program.offer("other", ("a", 7))
    streams = build()
    query = program.run(**{name: streams[name] for name in ("other", "large", "small")})
    rows = program.batch()
    assert program.answers["small"] == wanted(rows.filter("v < 100"))
    assert program.answers["large"] == wanted(rows.filter("v >= 100"))
    assert program.answers["other"] == wanted(program.batch("other"))
    assert program.rows_read == 3, "every row is read once, although two operators read one source"
    assert set(program.identities()) == {"aggregate", "aggregate-2", "aggregate-3"}
    assert {tuple(row) for row in query.state("aggregate").collect()} == set(wanted(rows.filter("v < 100")).items())


@pytest.mark.extra
def test_a_sink_on_an_operator_that_is_there_may_come_and_go(program: Program) -> None:
    program.offer("in", ("a", 1), ("b", 100))
    program.run(all=totals(program.source()))
    program.offer("in", ("a", 2))
    rows = program.source()
    program.run(raw=rows.filter("v < 100"), all=totals(rows))
    assert program.answers["all"] == wanted(program.batch())
    assert program.answers["raw"] == {"a": 2}
    program.offer("in", ("b", 3))
    program.run(all=totals(program.source()))
    assert program.answers["all"] == wanted(program.batch())


CHANGES: dict[str, tuple[Callable[[Program], Any], type[Exception], tuple[str, ...]]] = {
    "another filter": (lambda p: totals(p.source().filter("v > 1")), CheckpointMismatchError, ("CAST(1 AS", "CAST(0 AS")),
    "another key": (
        lambda p: p.source().filter("v > 0").groupBy(F.upper("k").alias("k")).agg(F.sum("v").alias("s")),
        CheckpointMismatchError,
        ("upper(k) AS k", "keys"),
    ),
    "another source": (lambda p: totals(p.source("elsewhere").filter("v > 0")), CheckpointMismatchError, ("elsewhere", "/in:")),
    "another function": (
        lambda p: p.source().filter("v > 0").groupBy("k").agg(F.max("v").alias("s")),
        StateSchemaError,
        ("sum(v)", "max(v)"),
    ),
    "another operator": (
        lambda p: p.source().filter("v > 0").dropDuplicates(["k"]),
        CheckpointMismatchError,
        ("new: dropDuplicates", "missing: aggregate"),
    ),
    "one more": (
        lambda p: totals(p.source().filter("v > 0")).union(totals(p.source().filter("v > 9"))),
        CheckpointMismatchError,
        ("new: aggregate-2", "operatorChanges"),
    ),
}


KEPT_BY_NAME = ("another filter", "another key")
"""Changes after which stored state and offsets still fit."""


def test_a_changed_operator_is_refused_and_the_right_one_goes_on(program: Program) -> None:
    program.offer("in", ("a", 1), ("b", 2))
    program.run(totals=totals(program.source().filter("v > 0")))
    for what, (build, error, words) in CHANGES.items():
        with pytest.raises(error) as caught:
            program.run(totals=build(program))
        for word in (*words, "new checkpointLocation"):
            assert word in str(caught.value), f"{what}: {caught.value}"
        assert (".named('aggregate')" in str(caught.value)) == (what in KEPT_BY_NAME), f"{what}: {caught.value}"
    # What does not change rows is no change: where rows lie, how fast they are read, the names of columns of the result.
    program.offer("in", ("a", 5), ("b", 0))
    same = program.spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(f"file://{program.folder}/in/")
    program.run(totals=hr.stream(same.repartition(3)).filter("v > 0").groupBy("k").agg(F.sum("v").alias("sum")))
    assert program.answers["totals"] == wanted(program.batch().filter("v > 0"))


def test_a_named_operator_keeps_its_state_when_what_feeds_it_changes(program: Program) -> None:
    program.offer("in", ("a", 1), ("b", 2))
    program.run(totals=totals(program.source()))
    # The name is given later; and then the filter comes.
    program.run(totals=totals(program.source()).named("daily totals"))
    assert program.identities()["aggregate"]["name"] == "daily totals"
    program.offer("in", ("a", 5), ("a", 50))
    program.run(totals=totals(program.source().filter("v < 9")).named("daily totals"))
    assert program.answers["totals"] == {"a": 6, "b": 2}
    # A stored id is a name too, so that what was never named can be kept.
    program.offer("in", ("b", 3), ("b", 30))
    program.run(totals=totals(program.source().filter("v < 8")).named("aggregate"))
    assert program.answers["totals"] == {"a": 6, "b": 5}
    with pytest.raises(StateSchemaError, match="layout"):
        program.run(totals=program.source().groupBy("k").agg(F.avg("v").alias("s")).named("daily totals"))


def test_an_operator_may_be_called_batch_but_not_like_a_source(program: Program) -> None:
    """These are also names that the engine gives to rows."""
    program.offer("in", ("a", 1), ("b", 2), ("a", 5))
    program.run(totals=totals(program.source()).named("batch"))
    assert program.answers["totals"] == {"a": 6, "b": 2}
    with pytest.raises(QueryError, match=r"other than those of sources, .* found 'source0'"):
        totals(program.source()).named("source0")


def test_changes_that_are_accepted(program: Program) -> None:
    def accepting(stream: Any) -> Any:
        return stream.writeStream.outputMode("update").option("headrace.operatorChanges", "accept").foreachBatch(lambda rows, _: None)

    def start(*streams: Any) -> hr.HeadraceQuery:
        query = hr.start(*map(accepting, streams), checkpointLocation=str(program.folder / "checkpoint"), availableNow=True)
        query.awaitTermination()
        return query

    def state(query: hr.HeadraceQuery, name: str) -> dict[Any, Any]:
        return {row[0]: row[1] for row in query.state(name).collect()}

    program.offer("in", ("a", 1), ("b", 2))
    rows = program.source()
    first, second, third = (totals(rows.filter(f"v > {least}")) for least in (0, 1, 2))
    start(first, second)
    program.offer("in", ("a", 10))
    with pytest.warns(UserWarning, match="(empty state|dropped)") as told:
        query = start(third, second)
    texts = [str(each.message) for each in told]
    assert any("empty state" in text and "aggregate" in text for text in texts)
    assert any("dropped: aggregate" in text for text in texts)
    assert state(query, "aggregate-3") == {"a": 10}, "without the rows before"
    assert state(query, "aggregate-2") == {"a": 10, "b": 2}
    # What was dropped does not come back with a gap in it, nor does a new operator take its place.
    program.offer("in", ("a", 100))
    with pytest.warns(UserWarning, match="empty state"):
        query = start(first, second, third)
    assert state(query, "aggregate-4") == {"a": 100}
    assert state(query, "aggregate-2") == {"a": 110, "b": 2}
    # Operators that compute the same, one of them younger, cannot be told apart.
    with pytest.raises(CheckpointMismatchError, match="name"):
        start(first, second, third, totals(rows.filter("v > 2")))


def test_operators_that_cannot_be_told_apart(program: Program) -> None:
    chosen, other = F.udf(lambda v: v > 0, "boolean"), F.udf(lambda v: v < 0, "boolean")
    rows = program.source()
    with pytest.raises(QueryError, match="told apart"):
        program.run(one=totals(rows.filter(chosen("v"))), two=totals(rows.filter(other("v"))))
    with pytest.raises(QueryError, match="twice"):
        program.run(one=totals(rows.filter(chosen("v"))).named("it"), two=totals(rows.filter(other("v"))).named("it"))
    result = totals(rows)
    with pytest.raises(QueryError, match="one name for an operator"):
        program.run(one=result.named("one"), two=result.named("two"))
    for bad in ("", "a/b", "a.b", "a,b", "a=b", "-", "x" * 99, 7):
        with pytest.raises(QueryError, match=r"test_identity.py.*daily totals"):
            totals(rows).named(bad)  # type: ignore[arg-type]
    with pytest.raises(QueryError, match="stateful operator"):
        rows.named("rows")


@pytest.mark.extra
@pytest.mark.slow
def test_fingerprints_are_the_same_in_another_process(program: Program) -> None:
    """Ids of columns, lambda variables, seeds and addresses differ from one session to the next."""
    code = textwrap.dedent(
        """
        import sys
        from pyspark.sql import functions as F
        import headrace as hr
        from headrace.compile.build import compile_flow
        from headrace.compile.lineage import lineages
        from headrace.config import Config
        from headrace.operators.kernel import OutputMode

        def double(v):
            return v * 2

        def printed(spark, shift):
            for _ in range(shift):  # other numbers for everything that is numbered
                spark.range(3).select(F.transform(F.array("id"), lambda x: x + 1), F.rand()).collect()
            names = spark.createDataFrame([("a", shift)], "k string, n int")
            rows = spark.readStream.schema("k string, v array<int>, ts timestamp").parquet(sys.argv[1])
            rows = hr.stream(rows.alias("r")).withWatermark("ts", "1 minute").filter(F.udf(double, "int")(F.size("v")) > 1)
            rows = rows.withColumn("w", F.transform("v", lambda x: x + 1)).withColumn("r", F.rand()).join(names, "k")
            parts = rows.split(a="n = 1", otherwise="b")
            sums = parts.a.union(parts.b).groupBy(F.element_at("w", 1).alias("e"), F.window("ts", "1 minute"))
            sums = sums.agg(F.sum(F.aggregate("v", F.lit(0), lambda x, y: x + y)).alias("s"))
            last = sums.filter("s > 3").groupBy("window").agg(F.max("s").alias("m"))
            flow = compile_flow([(last.rows, OutputMode.APPEND, ""), (parts.a.dropDuplicates(["k"]).rows, OutputMode.APPEND, "")], Config())
            return [each.fingerprint for each in lineages(flow).values()]
        """
    )
    scope: dict[str, Any] = {}
    given, sys.argv = sys.argv, ["", str(program.folder)]
    try:
        exec(code, scope)
        here = scope["printed"](program.spark, 3)
    finally:
        sys.argv = given
    start = "spark = hr.session('there', master='local[1]', spark__ui__enabled='false')"
    script = f"{code}\n{start}\nprint('PRINTS', *printed(spark, 1))\nspark.stop()"
    done = subprocess.run([sys.executable, "-c", script, str(program.folder)], capture_output=True, text=True, check=False)
    assert f"PRINTS {' '.join(here)}" in done.stdout, done.stdout + done.stderr[-2000:]
    assert len(set(here)) == 3
