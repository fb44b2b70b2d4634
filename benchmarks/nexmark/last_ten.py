"""q6 has a window of rows, which Spark's streaming cannot say; so it keeps the last prices itself, in a processor of Spark's own kind."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from pyspark import cloudpickle
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle  # type: ignore[attr-defined]

PRICES = 10
OUTPUT = "seller long, id long, dateTime timestamp, avg_price double"

# Pickled by value: workers need not be able to import the benchmarks.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


class LastTen(StatefulProcessor):
    """The average of a seller's last ten prices, after each auction that was won. Auctions come in the order of their time."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.last = handle.getValueState("last", "prices array<long>")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        known = self.last.get()
        prices = list(known[0]) if known else []
        for row in sorted(rows, key=lambda row: (row.dateTime, row.id)):
            prices = [*prices, row.final][-PRICES:]
            yield Row(seller=key[0], id=row.id, dateTime=row.dateTime, avg_price=sum(prices) / len(prices))
        self.last.update((prices,))

    def close(self) -> None:
        pass
