"""A stateful operator of your own, key by key: an alarm for cards that were used in many places.

The state has two levels: the values of each card, and a map of the places where it was used. State expires after a day.

python examples/process_per_key.py
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import headrace as hr


class Alarms(hr.KeyProcessor):
    """Called once for each card and batch, with the sorted rows and the state of the card."""

    def process(self, card: str, rows: list[Any], state: Any) -> Iterator[tuple[str, int, float]]:
        for row in rows:
            state.places[row.place] = state.places.get(row.place, 0) + 1
            state.spent = (state.spent or 0.0) + row.amount
        if len(state.places) > 2 and not state.alarmed:
            state.alarmed = True
            yield card, len(state.places), state.spent


def main(spark: SparkSession, folder: str) -> None:
    payments = Path(folder) / "payments"
    first = [("ada", "Ulm", 10.0), ("bob", "Bonn", 5.0), ("ada", "Kiel", 7.5)]
    second = [("ada", "Rome", 900.0), ("bob", "Bonn", 1.0)]
    for rows in (first, second):
        spark.createDataFrame(rows, "card string, place string, amount double").coalesce(1).write.mode("append").parquet(str(payments))

    schema = "card string, place string, amount double"
    source = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(payments))
    state = hr.State("spent double, alarmed boolean", maps={"places": ("place string", "times long")}, ttl="1 day")
    alarms = hr.stream(source).groupBy("card").process(Alarms(), "card string, places int, spent double", state)
    query = (
        alarms.writeStream.foreachBatch(lambda rows, batch: rows.show())
        .option("checkpointLocation", f"{folder}/alarms-checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()

    query.state("process").select("card", "spent", "alarmed").orderBy("card").show()
    query.state("process.places").select("card", "place", "times").orderBy("card", "place").show()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        main(hr.session("alarms"), scratch)
