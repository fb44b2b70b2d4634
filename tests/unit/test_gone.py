"""The error of a query whose JVM was killed, or cannot write to its disk."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from headrace.api.query import HeadraceQuery
from headrace.errors import SessionError, StorageError
from headrace.runtime.checkpoint import Checkpoint
from headrace.runtime.failures import of_batch
from headrace.runtime.gate import BatchGate
from headrace.runtime.safety.outage import Outage
from headrace.runtime.spark_query import SparkQuery


class Gone:
    """Spark's session and query, as they are after the JVM was killed."""

    def __getattr__(self, name: str) -> Any:
        raise ConnectionRefusedError(111, "Connection refused")


def test_that_spark_has_died_is_an_error_of_ours(tmp_path: Path) -> None:
    spark = SparkQuery(cast(SparkSession, Gone()))
    spark.attach(cast(StreamingQuery, Gone()))
    gate = BatchGate(lambda batch, version: None, checkpoint := Checkpoint(str(tmp_path)), spark, threading.Lock(), Outage(checkpoint, 0))
    lifetime = SimpleNamespace(is_over=lambda: True, wait=lambda timeout=None: True)
    engine: Any = SimpleNamespace(gate=gate, spark=spark, lifetime=lifetime)
    query = HeadraceQuery(engine, cast(Any, None))
    with pytest.raises(SessionError, match="Spark has ended under the query"):
        query.awaitTermination()
    assert query.exception() is gate.error


def test_a_full_disk_of_sparks_own_is_told_as_one() -> None:
    """Java's exceptions that PySpark has no class for come as py4j's."""
    failure = Py4JError("An error occurred while calling o1.collect: java.io.IOException: No space left on device")
    told = of_batch(failure, 3, Path("/data/q"))
    assert isinstance(told, StorageError)
    assert "free some space" in str(told)
