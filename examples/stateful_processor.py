"""A StatefulProcessor as it was written for Spark: the greatest order of each customer, and a reminder a minute after the last one.

Only the line with hr.stream is Headrace's.

python examples/stateful_processor.py
"""

import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle  # type: ignore[attr-defined]

import headrace as hr


class Reminders(StatefulProcessor):
    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle
        self.greatest = handle.getValueState("greatest", "amount long")

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        (greatest,) = self.greatest.get() or (0,)
        for frame in rows:
            greatest = max(greatest, int(frame["amount"].max()))
            last = frame["ts"].max()
        self.greatest.update((greatest,))
        for timer in list(self.handle.listTimers()):
            self.handle.deleteTimer(timer)
        self.handle.registerTimer(int(last.timestamp() * 1000) + 60_000)
        return iter([])

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[pd.DataFrame]:
        yield pd.DataFrame({"customer": [key[0]], "greatest": [self.greatest.get()[0]]})


def main(spark: SparkSession, folder: str) -> None:
    orders = Path(folder) / "orders"
    schema = "customer string, amount long, ts timestamp"

    def at(minute: int) -> datetime:
        return datetime(2026, 1, 1, 12, minute, tzinfo=UTC)

    rows = [("ada", 10, at(0)), ("ada", 30, at(1)), ("bob", 20, at(2)), ("eve", 5, at(9))]
    spark.createDataFrame(rows, schema).coalesce(1).write.parquet(str(orders))

    stream = hr.stream(spark.readStream.schema(schema).parquet(str(orders)))
    grouped = stream.withWatermark("ts", "1 minute").groupBy("customer")
    reminders = grouped.transformWithStateInPandas(Reminders(), "customer string, greatest long", "Append", "EventTime")
    query = (
        reminders.writeStream.foreachBatch(lambda rows, batch: rows.show())
        .option("checkpointLocation", f"{folder}/reminders-checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()

    # Eve's timer still waits. Each state variable is a table.
    query.state("transformWithStateInPandas.timers").show()
    query.state("transformWithStateInPandas.greatest").show()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        main(hr.session("stateful processor"), scratch)
