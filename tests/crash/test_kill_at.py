"""``kill_at`` of the testing kit: a program that is killed in a batch, and programs that never get there."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from headrace.errors import QueryError
from headrace.testing import assert_same_rows, kill_at
from tests.crash.driver import SCHEMA, start
from tests.crash.harness import ROOT, write_input


@pytest.mark.crash
@pytest.mark.slow
@pytest.mark.spark
def test_a_program_is_killed_and_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    source, out, checkpoint = write_input(tmp_path / "in", files=3, seed=6), tmp_path / "out", tmp_path / "checkpoint"
    command = [sys.executable, "-m", "tests.crash.driver", "running", *map(str, (source, out, checkpoint)), "--instances", "2"]
    kill_at(command, "manifest-after", batch=1, cwd=ROOT)
    assert sorted(path.name for path in out.iterdir()) == ["batch-000000.parquet"], "batch 1 is committed and not delivered"
    start(spark, "running", source, out, checkpoint, 3).awaitTermination()
    told = {row.k: tuple(row) for path in sorted(out.iterdir()) for row in spark.read.parquet(str(path)).collect()}
    rows = spark.read.schema(SCHEMA).parquet(str(source))
    wanted = rows.groupBy("k").agg(F.count("*").alias("n"), F.sum("v").alias("s"), F.min("v").alias("low"), F.max("v").alias("high"))
    assert_same_rows(told.values(), wanted.collect(), columns=wanted.columns, keys=["k"])


def test_a_program_that_ends_otherwise_is_an_error() -> None:
    with pytest.raises(QueryError, match=r"(?s)kill_at at test_kill_at.py:\d+: .* found that it ended with exit code 3, saying:\nbye"):
        kill_at([sys.executable, "-c", "print('bye'); raise SystemExit(3)"], "job-done", batch=1)
    with pytest.raises(QueryError, match=r"ran for more than 1 s"):
        kill_at([sys.executable, "-c", "import time; time.sleep(60)"], "job-done", batch=1, timeout_s=1)
    with pytest.raises(QueryError, match=r"a point of the driver: batch-begin, .*; found 'run-before'"):
        kill_at([sys.executable, "-c", ""], "run-before", batch=1)
