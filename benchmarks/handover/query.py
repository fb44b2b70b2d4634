"""Counts over time windows, with event time at the pace of the clock. Slots change owners by one protocol after another."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.rows import START_S, numbered
from headrace.bench.runner import Runner
from headrace.control.handover import Protocol

STEP_MS = 500
"""The seconds of event time in a batch, and the interval between batches."""
OVER_S_MAX = 120.0
SLOTS = (0, 1024)
"""The slots that change owners: half of those of the first of two instances."""


def columns(rows: DataFrame, params: dict[str, Any]) -> DataFrame:
    """Key and event time, made from the row number; used by source and check. A batch touches its keys one after another."""
    value, per_batch = F.col("value"), F.lit(params["rows"])
    ms = F.lit(START_S * 1000) + F.floor(value / per_batch) * STEP_MS + F.floor(F.pmod(value, per_batch) * STEP_MS / per_batch)
    return rows.select(F.pmod(value, F.lit(params["keys"])).alias("key"), F.timestamp_millis(ms).alias("ts"))


def source(spark: SparkSession, params: dict[str, Any]) -> DataFrame:
    return columns(numbered(spark, params), params)


def query(rows: Any, params: dict[str, Any]) -> Any:
    windows = F.window("ts", f"{params['window_s']} seconds", "1 second")
    return rows.withWatermark("ts", "0 seconds").groupBy("key", windows).agg(F.count("*").alias("n"))


def write(writer: Any, params: dict[str, Any], folder: Path) -> Any:
    writer = writer.outputMode("append").format("parquet").option("path", str(folder / "output"))
    return writer.option("headrace.instances", 2).trigger(processingTime=f"{STEP_MS} milliseconds")


def change(runner: Runner) -> None:
    """Move the slots to the other instance by each protocol in turn. In between, windows fill again and the slots move back."""
    asked = int(runner.lane.params["repeats"])
    for protocol in [each for each in Protocol for _ in range(asked)]:
        runner.notes.append(hand_over(runner.query, protocol, runner.lane.params))
        runner.query.move(SLOTS, to=0)
        settle_s = float(runner.lane.params["window_s"]) + 3
        time.sleep(settle_s if runner.lane.params["settle"] else 0.5)


def hand_over(query: Any, protocol: Protocol, params: dict[str, Any]) -> dict[str, Any]:
    """Move the slots, and return what it took until the change was complete."""
    before = query.lastProgress["headrace"]["version"]
    state = [(each["stateRows"], each["stateBytes"]) for each in query.lastProgress["headrace"]["instances"] if each["instance"] == 0]
    began = time.monotonic()
    query.move(SLOTS, to=1, protocol=str(protocol))
    returned_s = time.monotonic() - began
    epoch = query.routing()["aggregate"].epoch
    wait_until(lambda: _switched(query, epoch))
    switched_s = time.monotonic() - began
    wait_until(lambda: not query.routing()["aggregate"].recreations and _arrived(query, protocol, before))
    over_s = time.monotonic() - began
    seen = [p["headrace"] for p in query.recentProgress if p["headrace"]["version"] > before]
    changes = [change for p in seen for change in p["changes"]]
    fetched = sum(change["bytesFetched"] for change in changes) + sum(i["bytesFetched"] for p in seen for i in p["instances"])
    return {
        "protocol": str(protocol),
        "window_s": params["window_s"],
        "keys": params["keys"],
        "windows_moved": sum(rows for rows, _ in state) // 2,
        "asked_s": round(returned_s, 3),
        "switched_s": round(switched_s, 3),
        "over_s": round(switched_s if protocol in (Protocol.STATE_RECREATION, Protocol.BUFFERING) else over_s, 3),
        "bytes": fetched,
        "longest_batch_ms": max(p["batchMs"] for p in seen),
    }


def _switched(query: Any, epoch: int) -> bool:
    """True if a batch with the new routing has ended."""
    return bool(query.lastProgress["headrace"]["routing"]["aggregate"]["epoch"] >= epoch)


def _arrived(query: Any, protocol: Protocol, after: int) -> bool:
    """True if the new owner has merged the old state, in protocols where it arrives later."""
    if protocol is not Protocol.MERGE or query._engine.routing.placement is None:
        return True
    told = [c for p in query.recentProgress if p["headrace"]["version"] > after for c in p["headrace"]["changes"]]
    return any(change["protocol"] == Protocol.MERGE and "arrived" in change["why"] for change in told)


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + OVER_S_MAX
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(f"the hand-over took more than {OVER_S_MAX:g} s")
        time.sleep(0.02)
