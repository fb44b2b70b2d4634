"""A query that is rescaled while it runs, and one whose driver is killed, give what undisturbed ones give."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import headrace as hr
from tests.crash.harness import KILLED, Left, Program, undisturbed, write_input
from tests.integration.both import assert_same_rows, ours, spark_batch
from tests.matrix.cases import before_end, feed, sliding

pytestmark = pytest.mark.spark


@pytest.mark.extra
def test_live_rescale(spark: SparkSession, tmp_path: Path) -> None:
    """1, 3, 2 and 4 instances, changed before each file."""
    rows, waiting, seen = feed(tmp_path), [3, 2, 4], [1]

    def rescale(query: hr.HeadraceQuery) -> None:
        if query.lastProgress and waiting:
            query.rescale(waiting.pop(0))
            seen.append(query.routing()["aggregate"].instances)

    found = ours(spark, [rows], sliding, "append", tmp_path, between=rescale, instances=1)
    assert seen == [1, 3, 2, 4]
    assert_same_rows(before_end(found.rows), before_end(spark_batch(spark, [rows], sliding).rows), found.columns, "rescaled")


@pytest.mark.extra
@pytest.mark.crash
def test_driver_killed_in_the_middle_of_a_batch(spark: SparkSession, tmp_path: Path) -> None:
    """kill -9 when the tasks of a batch are done and nothing is committed; the restarted program goes on with more instances."""
    source = write_input(tmp_path / "input", files=4, seed=5)
    program = Program("windowed", source, tmp_path / "crashed")
    code = program.run(2, "job-done@2")
    assert code == KILLED, f"exit code {code}\n{program.said()}"
    program.finish(3)
    assert program.marks() == {"job-done@2"}
    assert not Left.of(program).difference(undisturbed(spark, "windowed", source, tmp_path / "undisturbed"))
