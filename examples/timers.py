"""Timers: orders that were not paid within ten minutes of event time.

A timer fires when the watermark passes it, so the result does not depend on when rows arrive.

python examples/timers.py
"""

import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import headrace as hr

PATIENCE = timedelta(minutes=10)


class Reminders(hr.KeyProcessor):
    def process(self, order: int, rows: list[Any], state: Any) -> None:
        for row in rows:
            if row.event == "ordered":
                state.customer = row.customer
                state.set_timer(row.ts + PATIENCE)
            else:
                state.delete()
                state.delete_timer()

    def on_timer(self, order: int, at: datetime, state: Any) -> Iterator[tuple[int, str, datetime]]:
        yield order, state.customer, at
        state.delete()


def main(spark: SparkSession, folder: str) -> None:
    events = Path(folder) / "events"
    schema = "order int, customer string, event string, ts timestamp"

    def at(minute: int) -> datetime:
        return datetime(2026, 1, 1, 12, minute, tzinfo=UTC)

    hour = [(1, "ada", "ordered", at(0)), (2, "bob", "ordered", at(1)), (1, "ada", "paid", at(5)), (3, "eve", "ordered", at(30))]
    spark.createDataFrame(hour, schema).coalesce(1).write.parquet(str(events))

    stream = hr.stream(spark.readStream.schema(schema).parquet(str(events))).withWatermark("ts", "1 minute")
    state = hr.State("customer string", timers="event")
    reminders = stream.groupBy("order").process(Reminders(), "order int, customer string, due timestamp", state)
    query = (
        reminders.writeStream.foreachBatch(lambda rows, batch: rows.show())
        .option("checkpointLocation", f"{folder}/reminders-checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()

    # Order 3 still waits, until the watermark passes 12:40.
    query.state("process.timers").show()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        main(hr.session("reminders"), scratch)
