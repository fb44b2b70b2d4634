"""From Kafka to Kafka, exactly once: each batch is one transaction. It starts a broker, whose jars scripts/setup-kafka fetches.

python examples/kafka.py
"""

import json
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import headrace as hr
from headrace.testing.kafka import Broker, Record, connector


def main(spark: SparkSession, folder: str) -> None:
    broker = Broker(Path(folder) / "broker")
    broker.start()
    try:
        broker.create("calls", partitions=2)
        broker.create("totals")
        made = [("ada", 60), ("bob", 10), ("ada", 30)]
        broker.produce("calls", [Record(json.dumps({"src": src, "seconds": n}).encode(), key=src.encode()) for src, n in made])
        run(spark, folder, broker.address)
        for record in broker.consume("totals"):
            print(record.value)
    finally:
        broker.stop()


def run(spark: SparkSession, folder: str, servers: str) -> None:
    records = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", "calls")
        .option("startingOffsets", "earliest")
        .load()
    )
    calls = hr.stream(records).select(F.from_json(F.col("value").cast("string"), "src string, seconds long").alias("call")).select("call.*")
    totals = calls.groupBy("src").agg(F.sum("seconds").alias("total"), F.count("*").alias("calls"))
    query = (
        totals.select(F.col("src").alias("key"), F.to_json(F.struct("src", "total", "calls")).alias("value"))
        .writeStream.outputMode("update")
        .format("kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("topic", "totals")
        .option("checkpointLocation", f"{folder}/totals-checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    for progress in query.recentProgress[-1:]:
        print("backlog:", progress["headrace"]["backlog"])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        main(hr.session("kafka", spark__jars=connector()), scratch)
