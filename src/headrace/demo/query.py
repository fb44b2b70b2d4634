"""The demo's program: every call is priced by the tariff service, and each customer has a running bill as state.

It is written for Spark, with `applyInPandasWithState`. The same code runs on plain Spark and on Headrace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from headrace import Stream
from headrace.demo import tariffs

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = "src string, dst string, start timestamp, end timestamp, ts timestamp"
PRICED = "src string, dst string, start timestamp, seconds long, cents long"
BILL = "calls long, cents long"
COLUMNS = ("src", "dst", "start", "seconds", "cents")

Calls = TypeVar("Calls", Stream, DataFrame)


def priced(calls: Calls, port: int) -> Calls:
    """Each call with its price. The state of a customer is the number of its calls and their sum."""
    return (
        calls.withColumn("seconds", F.col("end").cast("long") - F.col("start").cast("long"))
        .groupBy("src")
        .applyInPandasWithState(biller(port), PRICED, BILL, "append", "NoTimeout")
    )


def biller(port: int) -> Callable[..., Iterator[pd.DataFrame]]:
    """The function that works on the calls of one customer."""

    def bill(key: tuple[str], frames: Iterable[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
        import pandas as pd

        calls, cents = state.get if state.exists else (0, 0)
        service = tariffs.connection(port)
        for frame in frames:
            dst, seconds = frame["dst"].tolist(), frame["seconds"].tolist()
            prices = [service.price(number, length) for number, length in zip(dst, seconds, strict=True)]
            calls, cents = calls + len(prices), cents + sum(prices)
            src = [key[0]] * len(prices)
            yield pd.DataFrame({"src": src, "dst": dst, "start": frame["start"].tolist(), "seconds": seconds, "cents": prices})
        state.update((calls, cents))

    return bill


def answer(calls: DataFrame) -> DataFrame:
    """The same prices by Spark's batch engine: a join with a table of the tariffs, without the service and without our function."""
    table = [(f"{zone:02d}", tariffs.cents_per_minute(zone)) for zone in range(tariffs.ZONES)]
    zones = calls.sparkSession.createDataFrame(table, "zone string, per_minute long")
    seconds = F.col("end").cast("long") - F.col("start").cast("long")
    minutes = F.ceil(F.col("seconds") / 60)
    return (
        calls.select("src", "dst", "start", seconds.alias("seconds"), F.substring("dst", -2, 2).alias("zone"))
        .join(F.broadcast(zones), "zone")
        .select("src", "dst", "start", "seconds", (minutes * F.col("per_minute")).alias("cents"))
    )


def bills(calls: DataFrame) -> DataFrame:
    """The bill of each customer, from prices."""
    return calls.groupBy("src").agg(F.count("*").alias("calls"), F.sum("cents").alias("cents"))
