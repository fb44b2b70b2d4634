"""Calls that overlap in time and share a phone number: all pairs of rows within a time bound, with any condition.

python examples/cross_join.py
"""

import tempfile
from datetime import UTC, datetime, timedelta

from pyspark.sql import SparkSession

import headrace as hr

SCHEMA = "src string, dst string, ts timestamp, ended timestamp"
OVERLAP = "ts < ts_right and ts_right < ended"
IN_COMMON = "(src = src_right or src = dst_right or dst = src_right or dst = dst_right)"


def main(spark: SparkSession, folder: str) -> None:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    made = [("ada", "bob", 0, 30), ("eve", "ada", 20, 25), ("bob", "eve", 40, 90), ("dan", "flo", 45, 50)]
    rows = [(src, dst, start + timedelta(seconds=began), start + timedelta(seconds=ended)) for src, dst, began, ended in made]
    spark.createDataFrame(rows, SCHEMA).write.parquet(f"{folder}/calls")

    calls = hr.stream(spark.readStream.schema(SCHEMA).parquet(f"{folder}/calls")).withWatermark("ts", "10 seconds")
    overlapping = calls.crossJoin(calls, within="1 minute", where=f"{OVERLAP} and {IN_COMMON}")
    query = (
        overlapping.select("src", "dst", "src_right", "dst_right")
        .writeStream.format("parquet")
        .option("path", f"{folder}/overlapping")
        .option("checkpointLocation", f"{folder}/overlapping-checkpoint")
        .option("headrace.productGrid", "2x2")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.read.parquet(f"{folder}/overlapping").show()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        main(hr.session("cross join"), scratch)
