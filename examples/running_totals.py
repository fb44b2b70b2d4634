"""Running totals per key in update mode; then the same state, read as a table.

python examples/running_totals.py
"""

import tempfile
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import headrace as hr


def main(spark: SparkSession, folder: str) -> None:
    orders = Path(folder) / "orders"
    spark.createDataFrame([("ada", 3.5), ("bob", 2.0), ("ada", 1.5)], "customer string, amount double").write.parquet(str(orders))

    stream = hr.stream(spark.readStream.schema("customer string, amount double").parquet(str(orders)))
    totals = stream.groupBy("customer").agg(F.count("*").alias("orders"), F.sum("amount").alias("total"))
    query = (
        totals.writeStream.outputMode("update")
        .foreachBatch(lambda rows, batch: rows.orderBy("customer").show())
        .option("checkpointLocation", f"{folder}/totals-checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()

    # State is data: it can be read as a DataFrame, at any kept version.
    query.state().orderBy("customer").show()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        main(hr.session("running totals"), scratch)
