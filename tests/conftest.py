"""Fixtures that all tests share."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

import headrace as hr
from tests import archive

GIVEN = os.environ.get("SPARK_SUBMIT_OPTS")


def pytest_runtest_setup() -> None:
    """Inherited by all that a test starts. Asked for each test, as the archive of classes may be made meanwhile."""
    os.environ["SPARK_SUBMIT_OPTS"] = GIVEN or archive.jvm_options()


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One small Spark for the whole test run: starting one takes longer than most tests."""
    session = hr.session(
        "headrace tests",
        master="local[2]",
        spark__ui__enabled="false",
        spark__sql__shuffle__partitions="2",
        spark__sql__session__timeZone="UTC",
        spark__driver__memory="2g",
        # Queries on few rows: compiling their plans would take longer than running them. Programs that tests start compile theirs.
        spark__sql__codegen__wholeStage="false",
        spark__sql__codegen__factoryMode="NO_CODEGEN",
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()
