"""A running count and sum by key on executors, and a sink that sees every result. One executor after another is killed."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from benchmarks.aggregate.query import query
from benchmarks.recovery import faults
from benchmarks.recovery.rows import Delivery, columns, digest_of
from benchmarks.rows import numbered
from headrace.bench.runner import Runner

__all__ = ["change", "query", "source", "write"]

_delivered: dict[Path, list[Delivery]] = {}


def source(spark: SparkSession, params: dict[str, Any]) -> DataFrame:
    return columns(numbered(spark, params | {"partitions": params["executors"]}), params)


def write(writer: Any, params: dict[str, Any], folder: Path) -> Any:
    for name, value in params["options"].items():
        writer = writer.option(name, value)
    return writer.outputMode("update").foreachBatch(sink(deliveries(folder)))


def deliveries(folder: Path) -> list[Delivery]:
    """What the sink of a lane has seen so far."""
    return _delivered.setdefault(folder, [])


def sink(seen: list[Delivery]) -> Callable[[DataFrame, int], None]:
    def deliver(results: DataFrame, batch: int) -> None:
        table = results.toArrow()
        at_ms = time.time() * 1000
        seen.append(Delivery(batch, at_ms, digest_of(table)))

    return deliver


def change(runner: Runner) -> None:
    """Let one executor fail, and wait until the query is steady again and has as many executors as before."""
    runner.notes.append(faults.strike(runner, deliveries(runner.folder)))
