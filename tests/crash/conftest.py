"""Undisturbed runs to compare with, in the tests' own Spark."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.crash import harness
from tests.crash.harness import Left

Undisturbed = Callable[[str, Path, Path], Left]


@pytest.fixture
def undisturbed(spark: SparkSession) -> Undisturbed:
    """A function that runs a kind of query over a folder from beginning to end, and returns what it left."""
    return partial(harness.undisturbed, spark)
