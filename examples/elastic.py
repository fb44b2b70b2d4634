"""Instances that follow the load: the query scales out in a burst of orders and scales in afterwards. No order is lost.

python examples/elastic.py
"""

import tempfile
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import headrace as hr


class Check(hr.Processor):
    """Counts the orders of each customer. A slow call of two milliseconds per order makes the operator busy."""

    def process(self, rows: pa.Table, state: hr.KeyedState) -> pa.Table:
        time.sleep(rows.num_rows * 0.002)
        new = rows.group_by("customer").aggregate([("customer", "count")])
        orders = pc.add(new["customer_count"], pc.fill_null(state.get(new)["orders"], 0))
        counted = pa.table({"customer": new["customer"], "orders": orders})
        state.put(counted)
        return counted


def write_orders(folder: Path, at: int, rows: int) -> None:
    """Write a file of orders. It is renamed into place, so the query reads all of it or nothing."""
    pq.write_table(pa.table({"customer": [f"customer {n % 50}" for n in range(rows)]}), folder / f".{at}")
    (folder / f".{at}").rename(folder / f"{at}.parquet")


def main(spark: SparkSession, folder: str) -> None:
    orders = Path(folder) / "orders"
    orders.mkdir()

    # Limits and times for an example of a few seconds; the defaults suit real streams.
    settings = hr.Elastic(policy="elastic-manager", min=1, max=4, lower=0.3, target=0.5, upper=0.7, period_s=1.0, cooldown_s=1.0)
    checked = hr.stream(spark.readStream.schema("customer string").parquet(str(orders))).groupBy("customer")
    query = (
        checked.process(Check(), "customer string, orders long", state="orders long")
        .writeStream.format("noop")
        .option("checkpointLocation", f"{folder}/orders-checkpoint")
        .option("headrace.instances", 1)
        .elastic(settings)
        .start()
    )
    try:
        # The first batch compiles code, so it takes longer than any other.
        write_orders(orders, 0, 1)
        query.processAllAvailable()
        written = files = 1
        # A burst of 500 orders a second until the query has scaled out, then few orders until it has scaled in; at most a minute.
        for rows, wanted in ((100, lambda count: count > 1), (1, lambda count: count == 1)):
            while not wanted(query.routing()["process"].instances) and files < 300:
                write_orders(orders, files, rows)
                written, files = written + rows, files + 1
                time.sleep(0.2)
        query.processAllAvailable()

        for entry in query.decisions():
            print(f"{entry.instances_before} -> {entry.instances}  {entry.outcome}, {entry.times}x: {entry.why}")
        counted = query.state().agg(F.coalesce(F.sum("orders"), F.lit(0))).first()
        print(f"{written:,} orders written, {counted[0] if counted else 0:,} counted")

        # After a change by hand the policy leaves the operator alone, until elastic_resume().
        query.rescale(2)
        query.elastic_resume()
    finally:
        query.stop()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        main(hr.session("elastic orders"), scratch)
