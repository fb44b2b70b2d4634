"""Batches without rows: a source that has a new offset every second, and no rows.

Spark runs its own operators with processing-time timers in empty batches while the stream is quiet. Headrace's plan has no operator of
Spark's that would ask for that. So a second source asks: Spark plans a batch whenever a source has a new offset.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

NO_DATA_BATCHES = "spark.sql.streaming.noDataMicroBatches.enabled"
"""Spark's setting for batches without rows."""


def with_ticks(frame: DataFrame) -> DataFrame:
    """A streaming DataFrame with the same rows, of which Spark runs a batch at least every second. It has one source more, the last one."""
    session = frame.sparkSession
    if session.conf.get(NO_DATA_BATCHES, "true") != "true":
        return frame
    ticks = session.readStream.format("rate").option("rowsPerSecond", 1).load()
    # The optimiser removes this branch from the plan of every batch. Only the source's offsets stay.
    nothing = ticks.filter(F.lit(False)).select(*[F.lit(None).cast(f.dataType).alias(f.name) for f in frame.schema.fields])
    return frame.union(nothing)
