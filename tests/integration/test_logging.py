"""What a query prints: nothing by default; with a level, what the driver and Spark's Python workers log."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytestmark = pytest.mark.spark

PROGRAM = """
import sys
import headrace as hr
spark = hr.session("logs", master="local[2]", spark__ui__enabled="false")
spark.sparkContext.setLogLevel("ERROR")
print("begin", file=sys.stderr)
totals = hr.stream(spark.readStream.schema("k string, v long").parquet(sys.argv[1])).groupBy("k").sum("v")
writer = totals.writeStream.outputMode("update").format("noop").option("checkpointLocation", sys.argv[2])
query = writer.options(**dict(each.split("=") for each in sys.argv[3:])).start()
query.processAllAvailable()
query.rescale(1)
query.stop()
spark.stop()
"""


def printed(tmp_path: Path, *options: str) -> list[str]:
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"k": ["a", "b"], "v": [1, 2]}), tmp_path / "in" / "0.parquet")
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "in"), str(tmp_path / "ckpt"), "headrace.instances=2", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stderr.split("begin\n")[1].splitlines()


def test_a_query_prints_where_its_monitor_is_and_nothing_else(tmp_path: Path) -> None:
    (line,) = printed(tmp_path)
    assert line.startswith("headrace: the monitor is at http://127.0.0.1:")


@pytest.mark.extra
def test_a_query_without_a_monitor_prints_nothing(tmp_path: Path) -> None:
    assert printed(tmp_path, "headrace.ui=false") == []


def test_a_level_makes_driver_and_workers_print_with_fields(tmp_path: Path) -> None:
    lines = printed(tmp_path, "headrace.logLevel=debug")
    ckpt = tmp_path / "ckpt"
    assert any(f"DEBUG headrace.runtime.checkpoint [query={ckpt} version=0] committed" in line for line in lines)
    for instance in (0, 1):
        fields = f"[query={ckpt} version=0 operator=aggregate instance={instance}]"
        assert sum(f"DEBUG headrace.runtime.task {fields}" in line for line in lines) == 1
    assert any(f"INFO headrace.runtime.elastic [query={ckpt} operator=aggregate] 2 -> 1 instances" in line for line in lines)
