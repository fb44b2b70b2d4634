"""A streaming source that offers fragments at a fixed rate, whether the query keeps up or not (open loop).

    head, at once | the gun | fragment n at gun + n / rate | ... | the end

A batch reads what has been offered when Spark asks. Spark's own ``rate`` source offers whole seconds only, which dominates the latency
of small batches. Files that are moved into a folder cost a listing and a log entry per batch, and wait for each other. Here the number
of fragments is a function of the clock, to the microsecond. No thread has to keep the pace, and a batch that runs again after a crash
gets the same fragments. Without a rate, every batch reads ``rows`` fragments (closed loop): this gives the greatest throughput.

The gun is a file that holds the start time. It is written when the head, which fills the state, has been processed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

START_S = 39_352 * 43_200
"""The start of event time: a multiple of twelve hours, so that windows of all sizes begin there."""
SCHEMA = "n long, at timestamp, text string"
_ROWS_PER_ARROW_BATCH = 20_000


def event_us(numbers: np.ndarray, head: int, span_s: float, density: float) -> np.ndarray:
    """The event time of a fragment: the head covers the first ``span_s`` seconds, then come ``density`` fragments per second."""
    spread = numbers * (span_s / max(head, 1))
    behind = span_s + (numbers - head) / density
    return (START_S * 1_000_000 + np.floor(np.where(numbers < head, spread, behind) * 1_000_000)).astype(np.int64)


class Fragments(DataSource):
    """The source; see `Reader` for its options."""

    @classmethod
    def name(cls) -> str:
        return "fragments"

    def schema(self) -> str:
        return SCHEMA

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return Reader(dict(self.options))


class Reader(DataSourceStreamReader):
    def __init__(self, options: dict[str, str]) -> None:
        self.pool = options["pool"]
        """The file with the head, followed by the pool."""
        self.head = int(options["head"])
        self.span_s = float(options["span_s"])
        self.density = float(options["density"])
        self.rate = float(options["rate"])
        """Fragments per second; 0 means ``rows`` per batch."""
        self.rows = int(options["rows"])
        self.limit = int(options["limit"])
        """The number of fragments after the head."""
        self.gun = Path(options["gun"])
        self.parts = int(options["parts"])
        self._fired_s: float | None = None

    def initialOffset(self) -> dict[str, int]:
        return {"n": 0}

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:
        if start["n"] < self.head:
            return {"n": self.head}
        if self._fired_s is None:
            if not self.gun.exists():
                return start
            self._fired_s = float(self.gun.read_text())
        offered = int((time.time() - self._fired_s) * self.rate) if self.rate else start["n"] - self.head + self.rows
        return {"n": max(start["n"], self.head + min(max(offered, 0), self.limit))}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        cuts = np.linspace(start["n"], end["n"], self.parts + 1).astype(int).tolist()
        return [InputPartition((a, b)) for a, b in pairwise(cuts) if b > a]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        texts = feather.read_table(self.pool, memory_map=True)["text"].combine_chunks()
        begin, end = partition.value
        for at in range(begin, end, _ROWS_PER_ARROW_BATCH):
            numbers = np.arange(at, min(at + _ROWS_PER_ARROW_BATCH, end))
            body = len(texts) - self.head
            places = np.where(numbers < self.head, numbers, self.head + (numbers - self.head) % body)
            moments = pa.array(event_us(numbers, self.head, self.span_s, self.density), pa.timestamp("us", "UTC"))
            yield pa.record_batch({"n": numbers, "at": moments, "text": texts.take(pa.array(places))})
