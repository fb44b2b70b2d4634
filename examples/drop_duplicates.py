"""Events that arrive twice are emitted once. Keys are removed from the state when the watermark has passed them.

python examples/drop_duplicates.py
"""

import tempfile
from datetime import UTC, datetime

from pyspark.sql import SparkSession

import headrace as hr

SCHEMA = "id long, ts timestamp, text string"


def main(spark: SparkSession, folder: str) -> None:
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    rows = [(1, moment, "one"), (2, moment, "two"), (1, moment, "one"), (3, moment, "three"), (2, moment, "two")]
    spark.createDataFrame(rows, SCHEMA).write.parquet(f"{folder}/events")

    events = hr.stream(spark.readStream.schema(SCHEMA).parquet(f"{folder}/events"))
    once = events.withWatermark("ts", "1 minute").dropDuplicates(["id", "ts"])
    query = (
        once.writeStream.format("json")
        .option("path", f"{folder}/once")
        .option("checkpointLocation", f"{folder}/once-checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.read.schema(SCHEMA).json(f"{folder}/once").orderBy("id").show()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        main(hr.session("drop duplicates"), scratch)
