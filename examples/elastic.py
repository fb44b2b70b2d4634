"""Instances that follow the load: a burst of clicks makes the query grow, quiet makes it shrink, and no click is lost.

python examples/elastic.py
"""

import tempfile
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import headrace as hr


def write_clicks(folder: Path, at: int, rows: int) -> None:
    """A file of clicks; renamed into place, so that the query sees all of it or nothing."""
    pq.write_table(pa.table({"page": [f"page {n % 1000}" for n in range(rows)]}), folder / f".{at}")
    (folder / f".{at}").rename(folder / f"{at}.parquet")


def main(spark: SparkSession, folder: str) -> None:
    clicks = Path(folder) / "clicks"
    clicks.mkdir()

    # Thresholds for a few seconds of example; those of the papers (0.5, 0.6, 0.9) and the default times are for real streams.
    settings = hr.Elastic(policy="elastic-manager", min=1, max=2, lower=0.2, target=0.25, upper=0.3, period_s=1.0, cooldown_s=1.0)
    query = (
        hr.stream(spark.readStream.schema("page string").parquet(str(clicks)))
        .groupBy("page")
        .agg(F.count("*").alias("clicks"))
        .writeStream.outputMode("update")
        .format("noop")
        .option("checkpointLocation", f"{folder}/clicks-checkpoint")
        .option("headrace.instances", 1)
        .elastic(settings)
        .start()
    )
    try:
        written = 0
        for at in range(12):
            rows = 400_000 if 3 <= at < 6 else 100
            write_clicks(clicks, at, rows)
            written += rows
            time.sleep(0.4)
        query.processAllAvailable()

        for entry in query.decisions():
            print(f"{entry.instances_before} -> {entry.instances}  {entry.outcome}, {entry.times}x: {entry.why}")
        counted = query.state().agg(F.sum("clicks")).first()
        print(f"{written:,} clicks written, {counted[0] if counted else 0:,} counted")

        # Who knows better says so; the policy then leaves the operator alone until it is given back.
        query.rescale(2)
        query.elastic_resume()
    finally:
        query.stop()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        main(hr.session("elastic clicks"), scratch)
