"""Makes sure that the suite runs on the Spark it is meant for, and says on which it ran."""

from __future__ import annotations

import os
from collections.abc import Callable

import pyspark
import pytest
from pyspark.sql import SparkSession

from headrace.spark.versions import SUPPORTED, minor_version

WANTED = "HEADRACE_SPARK"
"""Set by ``make test-matrix``: the version of Spark that must be found, such as 4.1."""
PROPERTY = "spark"


@pytest.fixture(autouse=True)
def spark_version(spark: SparkSession, record_property: Callable[[str, object], None]) -> str:
    """The version that the JVM reports. A test on another one than wanted fails."""
    found = minor_version(spark.version)
    assert found in SUPPORTED
    assert found == minor_version(pyspark.__version__), "the JVM and PySpark have different versions; is SPARK_HOME set?"
    assert found == os.environ.get(WANTED, found), f"{WANTED} wants another version than Spark {spark.version}"
    record_property(PROPERTY, spark.version)
    return found


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the versions that the tests saw, whichever process they ran in."""
    reports = terminalreporter.getreports("passed") + terminalreporter.getreports("failed")
    seen = {str(value) for report in reports for name, value in getattr(report, "user_properties", ()) if name == PROPERTY}
    if seen:
        terminalreporter.write_line(f"tests/matrix ran on Spark {', '.join(sorted(seen))}")
