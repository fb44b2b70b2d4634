"""What Spark's own web pages say of a query: the tests' own session has no pages, so a program of its own has them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import json, sys, time, urllib.request
from pyspark.sql import functions as F
import headrace as hr

spark = hr.session("pages", master="local[2]", spark__ui__enabled="true", spark__ui__port="0", spark__driver__memory="512m",
                   spark__driver__bindAddress="127.0.0.1", spark__driver__host="127.0.0.1")
spark.sparkContext.setLogLevel("ERROR")
rows = hr.stream(spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 100).load())
writer = rows.groupBy((F.col("value") % 7).alias("k")).count().writeStream.outputMode("update").format("noop").queryName("pages")
query = writer.option("headrace.ui", "false").option("checkpointLocation", sys.argv[1]).trigger(processingTime="200 milliseconds").start()
while (query.lastProgress or {}).get("batchId", 0) < 3:
    query.awaitTermination(0.1)
query.stop()

address = f"{spark.sparkContext.uiWebUrl}/StreamingQuery/statistics/?id={query.runId}".replace("localhost", "127.0.0.1")
page, deadline = "", time.monotonic() + 60
while "Total State Rows" not in page and time.monotonic() < deadline:
    page = urllib.request.urlopen(address, timeout=30).read().decode()
store = spark.sparkContext._jsc.sc().statusStore().store()
kind = spark._jvm.java.lang.Class.forName("org.apache.spark.sql.streaming.ui.StreamingQueryProgressWrapper")
shown, entries = [], store.view(kind).index("runId").first(query.runId).last(query.runId).iterator()
while entries.hasNext():
    shown.append(json.loads(entries.next().progress().json()))
print(json.dumps({"page": page, "shown": shown, "own": [each["stateOperators"] for each in query.recentProgress]}))
"""


@pytest.mark.extra
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_structured_streaming_tab_shows_the_state_of_our_operators(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(tmp_path / "ckpt")], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[:3000] + done.stderr[-1500:]
    seen = json.loads(done.stdout.splitlines()[-1])
    assert "Aggregated Number Of Total State Rows" in seen["page"]
    batches = sorted(seen["shown"], key=lambda each: each["batchId"])
    assert [each["batchId"] for each in batches] == list(range(len(seen["own"])))
    for batch, own in zip(batches, seen["own"], strict=True):
        (shown,) = batch["stateOperators"]
        assert {name: shown[name] for name in ("operatorName", "numRowsTotal", "memoryUsedBytes", "numShufflePartitions")} == {
            name: own[0][name] for name in ("operatorName", "numRowsTotal", "memoryUsedBytes", "numShufflePartitions")
        }
        assert batch["numInputRows"] == 100
        assert batch["durationMs"]["addBatch"] > 0
