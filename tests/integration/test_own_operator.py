"""An operator that the package does not have: a kernel and a compiler in files of their own. No other file knows of it."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import headrace as hr
from headrace.api.origin import user_line
from headrace.api.stream import Stream, results_of
from headrace.compile.build import compile_flow
from headrace.compile.explain import rendered
from headrace.compile.registry import compiles
from headrace.config import Config
from headrace.errors import InvariantError, QueryError, StateSchemaError
from headrace.graph.nodes import OneInput
from headrace.ids import StoreId
from headrace.operators.kernel import OutputMode
from headrace.runtime.checkpoint import Checkpoint
from headrace.runtime.inspection import pinned, state_rows
from headrace.state.routing import Routing
from headrace.testing import QueryTest
from tests.own_operator import compiler, kernel
from tests.own_operator.compiler import GreatestNode, compile_greatest

pytestmark = pytest.mark.spark

# Workers need not be able to import the tests.
cloudpickle.register_pickle_by_value(sys.modules[kernel.__name__])

ROOT = Path(__file__).parents[2]


def greatest(stream: Stream, key: str, value: str, count: int) -> Stream:
    """The `count` greatest values of each key, as a list."""
    return results_of(GreatestNode(stream.rows, key, value, count, user_line("greatest")))


def three_greatest(games: Stream) -> Stream:
    return greatest(games, "player", "points", 3)


def three_greatest_by_spark(games: DataFrame) -> DataFrame:
    lists = F.slice(F.sort_array(F.collect_list("points"), asc=False), 1, 3)
    return games.dropna(subset=["points"]).groupBy("player").agg(lists.alias("points"))


def test_it_survives_a_rescale_and_a_crash(spark: SparkSession, tmp_path: Path) -> None:
    with QueryTest(spark, tmp_path) as t:
        games = t.source("player string, points long")
        t.start(three_greatest, mode="update", instances=2)
        games.add(*((f"p{i % 7}", (i * 37) % 101) for i in range(60)))
        games.add(("p1", 500), (None, 7), ("p2", None), (None, 9))
        t.run()
        t.rescale(3)
        games.add(*((f"p{i % 11}", (i * 53) % 211) for i in range(80)))
        t.run()
        games.add(("p1", 501), ("new", 1), ("p1", -5))
        t.abort("manifest-after")
        t.restart(instances=1)
        games.add(("p1", 502), ("new", 2))
        t.run()
        assert t.rows(batch=4) == [("new", [2, 1]), ("p1", [502, 501, 500])]
        t.assert_same_as_spark(three_greatest_by_spark)


@pytest.mark.extra
def test_its_state_is_shown_and_found_again(spark: SparkSession, tmp_path: Path) -> None:
    with QueryTest(spark, tmp_path) as t:
        games = t.source("player string, points long")
        t.start(lambda rows: greatest(rows, "player", "points", 2), mode="update")
        games.add(("ada", 1), ("ada", 3), ("ada", 2), ("bob", 5))
        t.run()
        assert t.state() == [("ada", [3, 2]), ("bob", [5])]
        checkpoint = Checkpoint.existing(str(t.checkpoint))
        with pinned(checkpoint) as manifest:
            found = [row for rows in state_rows(checkpoint, manifest, StoreId.parse("greatest")) for row in rows.to_pylist()]
        assert sorted((row["player"], row["points"]) for row in found) == [("ada", [3, 2]), ("bob", [5])]
        with pytest.raises(StateSchemaError, match=r"count 2; found count 4"):
            t.restart(lambda rows: greatest(rows, "player", "points", 4))


def test_output_modes_that_it_does_not_have_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    with QueryTest(spark, tmp_path) as t:
        t.source("player string, points long")
        with pytest.raises(QueryError, match=r"wanted outputMode\('update'\); found output mode append"):
            t.start(three_greatest, mode="append")


def test_it_is_explained_and_drawn(spark: SparkSession) -> None:
    rows = hr.stream(spark.readStream.format("rate").load().selectExpr("value % 7 AS player", "value AS points"))
    flow = compile_flow([(three_greatest(rows).rows, OutputMode.UPDATE, "here")], Config())
    text = rendered(flow, {"greatest": Routing.even(2)}, ["memory"], ["at-least-once"])
    assert "greatest    Python over Arrow, output mode update" in text
    assert "  count:      3" in text
    assert "count: 3" in rendered(flow, {"greatest": Routing.even(2)}, ["memory"], ["at-least-once"], "svg")


@dataclass(frozen=True, eq=False)
class Unknown(OneInput):
    where: str


def test_a_node_without_a_compiler_is_refused(spark: SparkSession) -> None:
    rows = hr.stream(spark.readStream.format("rate").load())
    refused = r"here: wanted a node that has a compiler: .*DedupNode.*; found Unknown; write .*@compiles\(Unknown\)"
    with pytest.raises(QueryError, match=refused):
        results_of(Unknown(rows.rows, "here"))


def test_a_node_has_one_compiler() -> None:
    with pytest.raises(InvariantError, match="one compiler: GreatestNode"):
        compiles(GreatestNode)(compile_greatest)


def test_the_worked_example_in_contributing_is_this_code() -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.S)
    whole, parts = [Path(str(each.__file__)).read_text() for each in (kernel, compiler)], Path(__file__).read_text()
    assert len(blocks) == 3
    for block, file in zip(blocks, whole, strict=False):
        header, _, code = file.partition("import annotations\n\n")
        assert code, header
        assert block == code
    assert f"\n{blocks[2]}" in parts
    assert "def test_" in blocks[2]
