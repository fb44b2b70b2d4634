"""Sessions, windows counted in rows, and an aggregate of an aggregate.

python examples/windows.py
"""

import tempfile
from datetime import UTC, datetime, timedelta

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import headrace as hr

SCHEMA = "sensor string, ts timestamp, value double"


def main(spark: SparkSession, folder: str) -> None:
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    rows = [("a", second, float(second)) for second in (0, 3, 5, 40, 42, 44)] + [("b", second, 1.0) for second in (1, 50)]
    late = [("end", 3600, 0.0)]
    data = [(sensor, noon + timedelta(seconds=second), value) for sensor, second, value in rows + late]
    spark.createDataFrame(data, SCHEMA).coalesce(1).write.parquet(f"{folder}/readings")
    readings = hr.stream(spark.readStream.schema(SCHEMA).parquet(f"{folder}/readings")).withWatermark("ts", "5 seconds")

    sessions = readings.groupBy("sensor", F.session_window("ts", "10 seconds")).count()
    by_three = readings.groupBy("sensor", hr.count_window(3)).agg(F.avg("value").alias("mean"))
    per_half = readings.groupBy("sensor", F.window("ts", "30 seconds")).agg(F.avg("value").alias("mean"))
    highest = per_half.groupBy("window").agg(F.max("mean").alias("highest"))

    writers = []
    for name, stream in (("sessions", sessions), ("by-three", by_three), ("highest", highest)):
        writers.append(stream.writeStream.format("parquet").option("path", f"{folder}/{name}"))
    hr.start(*writers, checkpointLocation=f"{folder}/checkpoint", availableNow=True).awaitTermination()
    for name in ("sessions", "by-three", "highest"):
        spark.read.parquet(f"{folder}/{name}").show(truncate=False)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        main(hr.session("windows"), scratch)
