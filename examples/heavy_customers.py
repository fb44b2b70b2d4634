"""Customers whose calls are long on average over an hour: a sliding window of 60 panes, emitted when it closes.

python examples/heavy_customers.py
"""

import tempfile
from datetime import UTC, datetime, timedelta

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import headrace as hr

CDR = "src string, start timestamp, end timestamp, ts timestamp"


def write_calls(spark: SparkSession, path: str) -> None:
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    rows = []
    for minute in range(90):
        for customer, seconds in (("ada", 900), ("bob", 60)):
            end = begin + timedelta(minutes=minute)
            rows.append((customer, end - timedelta(seconds=seconds), end, end))
    spark.createDataFrame(rows, CDR).write.parquet(path)


def main(spark: SparkSession, folder: str) -> None:
    write_calls(spark, f"{folder}/calls")

    calls = hr.stream(spark.readStream.schema(CDR).parquet(f"{folder}/calls"))
    heavy = (
        calls.withColumn("duration", F.col("end").cast("long") - F.col("start").cast("long"))
        .withWatermark("ts", "10 seconds")
        .groupBy("src", F.window("ts", "1 hour", "1 minute"))
        .agg(F.avg("duration").alias("avg_duration"), F.count("*").alias("calls"))
        .filter(F.col("avg_duration") > 600)
    )
    query = (
        heavy.writeStream.format("parquet")
        .option("path", f"{folder}/heavy")
        .option("checkpointLocation", f"{folder}/heavy-checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    query.explain()
    spark.read.parquet(f"{folder}/heavy").orderBy("window").show(3, truncate=False)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        main(hr.session("heavy customers"), scratch)
