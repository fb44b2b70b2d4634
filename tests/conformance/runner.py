"""Runs a program on plain Spark and on Headrace, and compares the results.

Usually both get the files one by one, and the results of each step are compared; Headrace rescales in the middle. In a backlog all files
are there at the beginning, and each is a batch. In a program that restarts, the query is stopped in the middle and started again.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

import headrace as hr
from tests.conformance.data import SCHEMAS, tables
from tests.conformance.program import Program
from tests.integration.both import Answer, Disturb, Feed, Values, _fed, assert_same_rows, settings, values


def feeds_of(program: Program, root: Path) -> list[Feed]:
    """The files of the program's streams."""
    return [Feed.of(root, SCHEMAS[name], tables(name)) for name in program.inputs]


def built(
    spark: SparkSession, program: Program, feeds: list[Feed], root: Path, options: dict[str, str] | None = None
) -> tuple[DataFrame, list[Path]]:
    """The program's DataFrame, and the folders that its streams watch. ``options`` are those of the streams."""
    folders = [root / name for name in program.inputs]
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
    streams = [
        spark.readStream.schema(feed.schema).options(**(options or {})).parquet(str(folder))
        for feed, folder in zip(feeds, folders, strict=True)
    ]
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


def answer_to_a_backlog(spark: SparkSession, program: Program, feeds: list[Feed], root: Path) -> Answer:
    """All results of a query that finds all files at its start, and takes one of each stream in a batch."""
    frame, folders = built(spark, program, feeds, root, {"maxFilesPerTrigger": "1"})
    for feed, folder in zip(feeds, folders, strict=True):
        for at, path in enumerate(path for files in feed.files for path in files):
            shutil.copy(path, folder)
            # Spark takes the oldest files first, and many may be written in a millisecond.
            os.utime(folder / path.name, (1_700_000_000 + at, 1_700_000_000 + at))
    found: list[Values] = []
    writer = frame.writeStream.outputMode(program.mode).option("checkpointLocation", str(root / "ckpt")).trigger(availableNow=True)
    query = writer.foreachBatch(lambda batch, _: found.extend(values(batch))).start()
    try:
        query.awaitTermination()
    finally:
        query.stop()
    return Answer([found], frame.columns)


def answer_with_a_restart(spark: SparkSession, program: Program, feeds: list[Feed], root: Path) -> Answer:
    """The results by step of a query that is stopped after two files, and started again by the same program."""
    halves = [[replace(feed, files=files) for feed, files in zip(feeds, part, strict=True)] for part in _halves(feeds)]
    answers = [answer(spark, program, half, root) for half in halves]
    return Answer([step for each in answers for step in each.steps], answers[0].columns)


def _halves(feeds: list[Feed]) -> tuple[list[list[list[Path]]], list[list[list[Path]]]]:
    return [feed.files[:2] for feed in feeds], [feed.files[2:] for feed in feeds]


Run = Callable[[SparkSession, Program, list[Feed], Path], Answer]


def compare(spark: SparkSession, program: Program, root: Path, run: Run | None = None) -> None:
    """Both engines give the same rows in each step. ``run`` is another way to run the program."""
    feeds = feeds_of(program, root)
    with settings(spark, **{name.replace(".", "__"): value for name, value in program.conf}):
        # One partition is enough for Spark, and a query keeps the settings that it was started with.
        with settings(spark, spark__sql__shuffle__partitions="1"):
            wanted = (run or answer)(spark, program, feeds, root / "spark")
        hr.enable(spark)
        try:
            with settings(spark, headrace__instances="1"):
                theirs = root / "ours"
                found = run(spark, program, feeds, theirs) if run else answer(spark, program, feeds, theirs, rescaling())
        finally:
            hr.disable(spark)
    assert len(found.steps) == len(wanted.steps)
    assert any(wanted.steps), f"{program.name} has results to compare"
    for step, (mine, theirs) in enumerate(zip(found.steps, wanted.steps, strict=True)):
        if program.ordered:
            assert mine == theirs, f"{program.name}, step {step}"
        else:
            assert_same_rows(mine, theirs, wanted.columns, f"{program.name}, step {step}")
