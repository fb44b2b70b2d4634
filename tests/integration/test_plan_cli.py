"""`headrace plan` and `hr.measure`: what a query would do, and what its rows cost."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import headrace as hr
from headrace.api.planning import planning
from headrace.cli import app, run

pytestmark = pytest.mark.spark

PROGRAM = """
import headrace as hr
from pyspark.sql import functions as F
spark = hr.session("planned")
calls = hr.stream(spark.readStream.schema("src string, ts timestamp, seconds long").json({folder!r}))
calls = calls.withWatermark("ts", "10 seconds")
mean = calls.groupBy("src", F.window("ts", "1 hour", "1 minute")).agg(F.avg("seconds").alias("mean"))
top = mean.groupBy("window").agg(F.max("mean").alias("top"))
query = hr.start(
    mean.writeStream.format("parquet").option("path", {folder!r} + "/mean"),
    top.writeStream.format("json").option("path", {folder!r} + "/top"),
    checkpointLocation={folder!r} + "/checkpoint",
)
query.awaitTermination()
{more}
"""


def test_plan_prints_and_draws_without_running(spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(folder=str(tmp_path), more="spark.read.parquet('no such folder')"))
    svg, dot = tmp_path / "plan.svg", tmp_path / "plan.dot"
    assert run(app, ["plan", str(program), "--cost", "--svg", str(svg), "--dot", str(dot)]) == 0
    shown = capsys.readouterr()
    for words in ("-- aggregate-2 --", "start at program.py", "query-cloud", "deliver     to json"):
        assert words in shown.out
    assert "the program went on without results, and ended with" in shown.err
    assert "<svg" in svg.read_text()
    assert "digraph" in dot.read_text()
    assert not (tmp_path / "checkpoint").exists()


EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))
QUICK = ("heavy_customers", "process_per_key")
"""Of these two the program goes on to explain its query, and to read its state."""


@pytest.mark.parametrize("path", [pytest.param(p, id=p.stem, marks=[] if p.stem in QUICK else [pytest.mark.extra]) for p in EXAMPLES])
def test_every_example_can_be_planned(spark: SparkSession, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(app, ["plan", str(path)]) == 0
    shown = capsys.readouterr()
    assert "== Headrace plan ==" in shown.out
    # An example may look for the results of its query, which are not there; nothing else may stop it.
    ended = [line for line in shown.err.splitlines() if "ended with" in line]
    assert all("PATH_NOT_FOUND" in line or "TABLE_OR_VIEW_NOT_FOUND" in line for line in ended), ended


def test_a_planned_query_has_all_that_a_query_has(spark: SparkSession) -> None:
    rows = hr.stream(spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load())
    with planning():
        query = rows.groupBy("value").count().writeStream.outputMode("update").format("noop").start()
    assert {name for name in dir(hr.HeadraceQuery) if not name.startswith("_")} <= set(dir(query))
    assert query.state().columns == ["value", "count"]
    assert query.state("aggregate").collect() == []


def test_plan_says_what_is_wrong(spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nothing = tmp_path / "nothing.py"
    nothing.write_text("print('hello')")
    assert run(app, ["plan", str(nothing)]) != 0
    assert "a query that is started" in capsys.readouterr().err
    mistaken = tmp_path / "mistaken.py"
    mistaken.write_text(PROGRAM.format(folder=str(tmp_path), more="calls.groupBy('nobody').count()"))
    assert run(app, ["plan", str(mistaken)]) != 0
    assert "nobody" in capsys.readouterr().err


def test_instances_from_a_measured_sample(spark: SparkSession) -> None:
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 2000).load()
    counts = hr.stream(rows.select((F.col("value") % 100).alias("k"))).groupBy("k").count()
    measured = hr.measure(counts, seconds=2)
    assert measured.rows >= 2000
    assert measured.cost_us["aggregate"] > 0
    few, many = measured.instances(rate=1.0), measured.instances(rate=1e8)
    assert few == {"aggregate": 1}
    assert many["aggregate"] > 1
    assert measured.option(1.0) == "aggregate=1"
