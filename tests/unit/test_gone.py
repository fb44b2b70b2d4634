"""The error of a query whose JVM was killed, or cannot write to its disk."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from py4j.protocol import Py4JError

from headrace.api.query import HeadraceQuery
from headrace.errors import SessionError, StorageError
from headrace.runtime.failures import of_batch


def test_that_spark_has_died_is_an_error_of_ours() -> None:
    def refused() -> bool:
        raise ConnectionRefusedError(111, "Connection refused")

    query = HeadraceQuery.__new__(HeadraceQuery)
    vars(query)["_engine"] = SimpleNamespace(
        gate=SimpleNamespace(error=None),
        spark=SimpleNamespace(is_active=lambda: False, failure=refused),
        lifetime=SimpleNamespace(is_over=lambda: True, wait=lambda timeout=None: True),
    )
    with pytest.raises(SessionError, match="Spark has ended under the query"):
        query.awaitTermination()


def test_a_full_disk_of_sparks_own_is_told_as_one() -> None:
    """Java's exceptions that PySpark has no class for come as py4j's."""
    failure = Py4JError("An error occurred while calling o1.collect: java.io.IOException: No space left on device")
    told = of_batch(failure, 3, Path("/data/q"))
    assert isinstance(told, StorageError)
    assert "free some space" in str(told)
