"""Rows that Spark keeps on executors, several copies of each, instead of reading their source again.

They are a *local checkpoint* of a DataFrame: the rows are computed once, all partitions of them, and written to the disks of executors. The
DataFrame that is built on them no longer knows where they came from. If all copies of a partition are lost, reading it is an error. Spark
never computes it from the source instead, which would give other rows by then.
"""

from __future__ import annotations

from pyspark import StorageLevel
from pyspark.sql import DataFrame

from headrace.spark.gateway import java_frame, printed
from headrace.spark.plans import analyzed

_LOST = "CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND"
"""Spark's name for the error that all copies of a partition are gone."""


def keep_rows(frame: DataFrame, copies: int) -> DataFrame:
    """Compute the rows, and let so many executors keep each partition of them. Returns a DataFrame that reads the copies.

    Spark makes the copies before it returns. It makes fewer if there are not as many executors.
    """
    on_disk = StorageLevel(useDisk=True, useMemory=False, useOffHeap=False, deserialized=False, replication=copies)
    return frame.localCheckpoint(eager=True, storageLevel=on_disk)


def compute(frame: DataFrame) -> None:
    """Compute the rows once, and leave them. If they are persisted, they are cached from then on."""
    java_frame(frame.select()).queryExecution().toRdd().count()


def drop_rows(kept: DataFrame) -> None:
    """Remove the copies."""
    blocking = False
    analyzed(kept).rdd().unpersist(blocking)


def are_lost(failure: BaseException) -> bool:
    """True if a job failed because all copies of a partition are gone."""
    return _LOST in printed(failure)
