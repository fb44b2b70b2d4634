"""A stateful operator of your own, over all keys at once: a smoothed mean of each sensor.

python examples/process_vectorised.py
"""

import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

import headrace as hr


class Smooth(hr.Processor):
    """An exponentially weighted mean of each sensor. The state is the mean and the number of readings."""

    def __init__(self, weight: float) -> None:
        self.weight = weight

    def process(self, rows: pa.Table, state: hr.KeyedState) -> pa.Table:
        new = rows.group_by("sensor").aggregate([("value", "mean"), ("value", "count")])
        old = state.get(new)  # one row for each row of `new`; null if a sensor is new
        before = pc.coalesce(old["mean"], new["value_mean"])
        mean = pc.add(pc.multiply(before, 1 - self.weight), pc.multiply(new["value_mean"], self.weight))
        readings = pc.add(new["value_count"], pc.fill_null(old["readings"], 0))
        smooth = pa.table({"sensor": new["sensor"], "mean": mean, "readings": readings})
        state.put(smooth)
        return smooth


def main(spark: SparkSession, folder: str) -> None:
    readings = Path(folder) / "readings"
    for values in ([("a", 10.0), ("b", 3.0), ("a", 12.0)], [("a", 15.0), ("c", 1.0)]):
        spark.createDataFrame(values, "sensor string, value double").coalesce(1).write.mode("append").parquet(str(readings))

    source = spark.readStream.schema("sensor string, value double").option("maxFilesPerTrigger", 1).parquet(str(readings))
    kept = "mean double, readings long"
    smooth = hr.stream(source).groupBy("sensor").process(Smooth(0.5), f"sensor string, {kept}", state=kept)
    query = (
        smooth.writeStream.foreachBatch(lambda rows, batch: rows.orderBy("sensor").show())
        .option("checkpointLocation", f"{folder}/smooth-checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()

    # State is data: typed columns, not pickled objects.
    query.state().orderBy("sensor").show()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        main(hr.session("smooth"), scratch)
