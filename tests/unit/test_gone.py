"""What a query says when Spark's JVM was killed under it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from headrace.errors import SessionError
from headrace.runtime.query import HeadraceQuery


def test_that_spark_has_died_is_an_error_of_ours() -> None:
    def refused() -> bool:
        raise ConnectionRefusedError(111, "Connection refused")

    query = HeadraceQuery.__new__(HeadraceQuery)
    vars(query)["_loop"] = SimpleNamespace(error=None)
    vars(query)["_life"] = SimpleNamespace(
        is_active=lambda: False, is_over=lambda: True, session_is_gone=refused, wait=lambda timeout=None: True
    )
    with pytest.raises(SessionError, match="Spark has ended under the query"):
        query.awaitTermination()
