"""Undisturbed runs to compare with, in the tests' own Spark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.crash.driver import start
from tests.crash.harness import Left, Program

Undisturbed = Callable[[str, Path, Path], Left]


@pytest.fixture
def undisturbed(spark: SparkSession) -> Undisturbed:
    """Runs a kind of query over a folder from beginning to end; gives what it left."""

    def run(kind: str, source: Path, work: Path) -> Left:
        program = Program(kind, source, work)
        start(spark, kind, source, program.output, program.checkpoint, 2).awaitTermination()
        return Left.of(program)

    return run
