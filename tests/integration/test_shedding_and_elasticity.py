"""A query that may drop rows and may grow: it drops at once, until it has grown."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

import headrace as hr
from headrace.control.governor import Outcome

# Workers need not be able to import the tests.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

pytestmark = pytest.mark.spark


class Slow(hr.Processor):
    """Counts rows by key, and takes its time for each. It sleeps, so that more instances do more, whatever the machine."""

    def process(self, rows: pa.Table, state: Any) -> pa.Table:
        time.sleep(rows.num_rows * 0.0004)
        new = rows.group_by("k").aggregate([("v", "count")])
        counts = pa.table({"k": new["k"], "n": pc.add(new["v_count"], pc.fill_null(state.get(new)["n"], 0))})
        state.put(counts)
        return counts


@pytest.mark.extra
@pytest.mark.slow
def test_it_sheds_at_once_then_scales_out_and_stops_shedding(spark: SparkSession, tmp_path: Path) -> None:
    """One instance processes 2,500 rows/s at most, and 2,800 come. Two can."""
    folder = tmp_path / "in"
    folder.mkdir()
    calls = hr.stream(spark.readStream.schema("k long, v long").parquet(str(folder)))
    counted = hr.shed(calls, max_loss=0.9).groupBy("k").process(Slow(), "k long, n long", state="n long")
    writer = counted.writeStream.format("noop").deadline("4 seconds").option("checkpointLocation", str(tmp_path / "ckpt"))
    settings = hr.Elastic(policy="elastic-manager", min=1, max=4, period_s=6.0, cooldown_s=12.0)
    query = writer.option("headrace.instances", 1).elastic(settings).start()
    random, began = np.random.default_rng(3), time.monotonic()
    try:
        for number in range(180):
            keys = random.integers(0, 400, 700).tolist()
            pq.write_table(pa.table({"k": keys, "v": keys}), folder / f".{number}")
            (folder / f".{number}").rename(folder / f"{number}.parquet")
            time.sleep(max(0.0, began + number * 0.25 - time.monotonic()))
        query.processAllAvailable()
        entries, progress = query.decisions(), [each["headrace"] for each in query.recentProgress]
    finally:
        query.stop()
    shed = [(each["routing"]["process"]["instances"], sum(p["shed"] for p in each["shedding"]["places"].values())) for each in progress]
    grown = [entry for entry in entries if entry.outcome is Outcome.PERFORMED and entry.what == "scale out"]
    print([(entry.what, entry.outcome, entry.why) for entry in entries], shed)
    assert any(count == 1 and rows for count, rows in shed), "it shed before it grew"
    assert grown, "although it shed, the policy saw the load that was offered"
    assert not [entry for entry in entries if entry.what == "scale in" and entry.outcome is Outcome.PERFORMED], "no oscillation"
    assert [rows for _, rows in shed][-4:] == [0, 0, 0, 0], "with enough instances nothing is dropped"
