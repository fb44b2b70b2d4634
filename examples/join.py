"""Two calls from one number within a minute, too far apart for one person: a stream joined with itself.

python examples/join.py
"""

import tempfile
from datetime import UTC, datetime, timedelta

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import headrace as hr

SCHEMA = "src string, ts timestamp, lat double, lon double"
KM = """2 * 6371 * asin(sqrt(pow(sin(radians(lat_right - lat) / 2), 2)
    + cos(radians(lat)) * cos(radians(lat_right)) * pow(sin(radians(lon_right - lon) / 2), 2)))"""


def main(spark: SparkSession, folder: str) -> None:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    places = {"Madrid": (40.4, -3.7), "Lisbon": (38.7, -9.1), "Toledo": (39.9, -4.0)}
    made = [("ada", 0, "Madrid"), ("bob", 5, "Lisbon"), ("ada", 40, "Lisbon"), ("bob", 50, "Lisbon"), ("ada", 130, "Toledo")]
    rows = [(src, start + timedelta(seconds=at), *places[place]) for src, at, place in made]
    spark.createDataFrame(rows, SCHEMA).write.parquet(f"{folder}/calls")

    calls = hr.stream(spark.readStream.schema(SCHEMA).parquet(f"{folder}/calls")).withWatermark("ts", "10 seconds")
    # The columns of the later call have the suffix. `ts < ts_right` keeps each pair once.
    pairs = calls.join(calls, on="src", within="60 seconds", where=f"ts < ts_right and {KM} > 100")
    query = (
        pairs.select("src", "ts", "ts_right", F.round(F.expr(KM)).alias("km"))
        .writeStream.format("parquet")
        .option("path", f"{folder}/impossible")
        .option("checkpointLocation", f"{folder}/impossible-checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.read.parquet(f"{folder}/impossible").show(truncate=False)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        main(hr.session("join"), scratch)
