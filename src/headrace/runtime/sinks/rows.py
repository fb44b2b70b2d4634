"""``writeStream.foreach``: a user's function or object that gets each row of the results."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from pyspark import TaskContext
from pyspark.sql import DataFrame, Row


def is_row_writer(f: Any) -> bool:
    """True for a function of a row, and for an object with ``process``, and maybe with ``open`` and ``close``."""
    return callable(f) or callable(getattr(f, "process", None))


def for_each_row(f: Any) -> Callable[[DataFrame, int], None]:
    """A function for ``foreachBatch`` that hands each row to ``f``, as Spark's ``foreach`` does."""

    def deliver(frame: DataFrame, batch: int) -> None:
        def write(rows: Iterable[Row]) -> None:
            _write(f, rows, batch)

        frame.foreachPartition(write)

    return deliver


def _write(f: Any, rows: Iterable[Row], batch: int) -> None:
    """Hand the rows of one partition to ``f``. ``close`` gets the error, if there was one."""
    if callable(f):
        for row in rows:
            f(row)
        return
    context = TaskContext.get()
    partition = 0 if context is None else context.partitionId()
    error: Exception | None = None
    try:
        if not hasattr(f, "open") or f.open(partition, batch):
            for row in rows:
                f.process(row)
    except Exception as failure:
        error = failure
        raise
    finally:
        if hasattr(f, "close"):
            f.close(error)
