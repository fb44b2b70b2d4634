"""One query with two branches and two sinks. The source is read once, and every batch reaches both sinks or neither.

python examples/split.py
"""

import tempfile
from datetime import UTC, datetime, timedelta

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import headrace as hr

SCHEMA = "src string, ts timestamp, seconds long"


def main(spark: SparkSession, folder: str) -> None:
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    rows = [("ada", noon, 700), ("bob", noon + timedelta(seconds=20), 5), ("ada", noon + timedelta(seconds=50), 30)]
    spark.createDataFrame([*rows, ("end", noon + timedelta(hours=1), 0)], SCHEMA).coalesce(1).write.parquet(f"{folder}/calls")

    calls = hr.stream(spark.readStream.schema(SCHEMA).parquet(f"{folder}/calls")).withWatermark("ts", "10 seconds")
    parts = calls.split(long="seconds > 600", otherwise="usual")
    per_minute = parts.usual.groupBy(F.window("ts", "1 minute")).agg(F.count("*").alias("calls"), F.sum("seconds").alias("seconds"))
    query = hr.start(
        parts.long.writeStream.format("json").option("path", f"{folder}/long"),
        per_minute.writeStream.format("parquet").option("path", f"{folder}/per-minute"),
        checkpointLocation=f"{folder}/checkpoint",
        availableNow=True,
    )
    query.awaitTermination()
    spark.read.schema(SCHEMA).json(f"{folder}/long").show()
    spark.read.parquet(f"{folder}/per-minute").show(truncate=False)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        main(hr.session("split"), scratch)
