"""Fixtures that all tests share."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings
from pyspark.sql import SparkSession

import headrace as hr
from headrace.runtime.session import THREADS
from headrace.testing.kafka import connector, why_not
from tests import archive

GIVEN = os.environ.get("SPARK_SUBMIT_OPTS")

# Tests check results, not speed: on a busy machine any example may take long.
settings.register_profile("headrace", deadline=None)
settings.load_profile("headrace")


def pytest_runtest_setup() -> None:
    """Inherited by all processes that a test starts. Set for each test, because the archive of classes may be made meanwhile."""
    os.environ["SPARK_SUBMIT_OPTS"] = GIVEN or archive.jvm_options()


LACKING = re.compile(r"no [\w ]+ here: [^'\"\n]+")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """One line at the end of a test run for each thing that this machine lacks, and for which tests were skipped."""
    reasons = (LACKING.search(str(report.longrepr)) for report in terminalreporter.stats.get("skipped", ()))
    for reason, count in Counter(found[0] for found in reasons if found is not None).items():
        terminalreporter.write_line(f"{count} tests were skipped: {reason}", yellow=True)


PLAIN = "HEADRACE_PLAIN"
"""Set by ``make test-plain``: run the tests on a session that Headrace did not make."""

BASIC = {
    "spark.ui.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.driver.memory": "2g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}
"""Settings that have no effect on plans and tasks."""
if why_not() is None:
    BASIC["spark.jars"] = connector()


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One small Spark for the whole test run: starting one takes longer than most tests."""
    session = plain_session() if os.environ.get(PLAIN) else small_session()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


def plain_session() -> SparkSession:
    """A session of a user who does not know ``hr.session``: Spark's defaults, and no setting for Python."""
    for variable in ("PYSPARK_PYTHON", *THREADS):
        os.environ.pop(variable, None)
    builder = SparkSession.builder.appName("headrace tests").master("local[2]")
    for name, value in BASIC.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def small_session() -> SparkSession:
    return hr.session(
        "headrace tests",
        master="local[2]",
        **{name.replace(".", "__"): value for name, value in BASIC.items()},
        headrace__ui="false",
        spark__sql__shuffle__partitions="2",
        # Queries have few rows, and compiling their plans would take longer than running them. Programs that tests start do compile.
        spark__sql__codegen__wholeStage="false",
        spark__sql__codegen__factoryMode="NO_CODEGEN",
    )
