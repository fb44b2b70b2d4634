"""A running count and sum whose state is in a folder, or in a local S3 server behind a proxy that takes its time."""

from __future__ import annotations

import atexit
import contextlib
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from benchmarks.aggregate import query as plain
from benchmarks.store.server import hadoop_settings, s3_server

__all__ = ["query", "source", "write"]

BUCKET = "bench"
PLAIN = len("spark.hadoop.")
query = plain.query


def source(spark: SparkSession, params: dict[str, Any]) -> DataFrame:
    if params["delay_ms"] is not None and spark.conf.get("fs.s3a.endpoint", None) is None:
        serving = contextlib.ExitStack()
        atexit.register(serving.close)
        port = serving.enter_context(s3_server(BUCKET, delay_s=params["delay_ms"] / 1000))
        for name, value in hadoop_settings(port).items():
            spark.conf.set(name[PLAIN:], value)
    return plain.source(spark, params)


def write(writer: Any, params: dict[str, Any], folder: Path) -> Any:
    if params["delay_ms"] is not None:
        writer = writer.option("headrace.stateLocation", f"s3a://{BUCKET}/{folder.name}")
    return plain.write(writer, params, folder)
