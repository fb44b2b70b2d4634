"""Runs a program on plain Spark and on Headrace, file by file, and compares the results of each step. Headrace rescales in the middle."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

import headrace as hr
from tests.conformance.data import SCHEMAS, tables
from tests.conformance.program import Program
from tests.integration.both import Answer, Disturb, Feed, Values, _fed, assert_same_rows, settings, values


def feeds_of(program: Program, root: Path) -> list[Feed]:
    """The files of the program's streams."""
    return [Feed.of(root, SCHEMAS[name], tables(name)) for name in program.inputs]


def built(spark: SparkSession, program: Program, feeds: list[Feed], root: Path) -> tuple[DataFrame, list[Path]]:
    """The program's DataFrame, and the folders that its streams watch."""
    folders = [root / name for name in program.inputs]
    streams = [feed.stream(spark, folder) for feed, folder in zip(feeds, folders, strict=True)]
    return program.function(spark, *streams), folders


def rescaling() -> Disturb:
    """Begins with one instance, and goes on with three before the third file."""
    sizes = iter((None, None, 3))

    def before_a_step(query: hr.HeadraceQuery) -> None:
        size = next(sizes, None)
        if size is not None:
            query.rescale(size)

    return before_a_step


def answer(spark: SparkSession, program: Program, feeds: list[Feed], root: Path, between: Disturb | None = None) -> Answer:
    """The program's results by step. What runs it is the session's business, as for any user."""
    frame, folders = built(spark, program, feeds, root)
    steps: list[list[Values]] = []

    def collect(batch: DataFrame, _: int) -> None:
        steps.append(values(batch.select(*program.columns) if program.columns else batch))

    query = frame.writeStream.outputMode(program.mode).option("checkpointLocation", str(root / "ckpt")).foreachBatch(collect).start()
    return _fed(query, feeds, folders, steps, list(program.columns) or frame.columns, program.mode, between)


def compare(spark: SparkSession, program: Program, root: Path) -> None:
    """Both engines give the same rows in each step."""
    feeds = feeds_of(program, root)
    with settings(spark, **{name.replace(".", "__"): value for name, value in program.conf}):
        # One partition is enough for Spark, and a query keeps the settings that it was started with.
        with settings(spark, spark__sql__shuffle__partitions="1"):
            wanted = answer(spark, program, feeds, root / "spark")
        hr.enable(spark)
        try:
            with settings(spark, headrace__instances="1"):
                found = answer(spark, program, feeds, root / "ours", rescaling())
        finally:
            hr.disable(spark)
    assert len(found.steps) == len(wanted.steps)
    assert any(wanted.steps), f"{program.name} has results to compare"
    for step, (mine, theirs) in enumerate(zip(found.steps, wanted.steps, strict=True)):
        if program.ordered:
            assert mine == theirs, f"{program.name}, step {step}"
        else:
            assert_same_rows(mine, theirs, wanted.columns, f"{program.name}, step {step}")
