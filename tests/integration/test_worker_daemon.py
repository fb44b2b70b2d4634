"""Sessions of ``hr.session`` fork Python workers from a process that has imported what tasks need."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from headrace.runtime.session import WORKER_DAEMON
from headrace.spark.worker_daemon import MODULE
from tests.conftest import PLAIN

pytestmark = [pytest.mark.spark, pytest.mark.skipif(PLAIN in os.environ, reason="a plain session has PySpark's own daemon")]


def test_workers_are_forked_from_the_daemon_of_the_session(spark: SparkSession) -> None:
    def look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = sum(batch.num_rows for batch in batches)
        parent = Path(f"/proc/{os.getppid()}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        yield pa.RecordBatch.from_pydict({"parent": [parent], "loaded": ["headrace.runtime.task" in sys.modules], "rows": [rows]})

    assert spark.conf.get(WORKER_DAEMON) == MODULE
    found = spark.range(10).mapInArrow(look, "parent string, loaded boolean, rows long").collect()
    assert all(MODULE in row["parent"] and row["loaded"] for row in found)
    assert sum(row["rows"] for row in found) == 10
