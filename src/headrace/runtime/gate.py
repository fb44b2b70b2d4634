"""The gate between Spark and the batch loop: Spark calls it with every micro-batch.

It runs one batch at a time, under the batch lock, for which changes of the routing wait. While the query is being stopped, it begins no
batch. It turns a failure into one error of Headrace. That error must reach Spark, because Spark commits the batch if the call returns.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame

from headrace.errors import FencedError, HeadraceError
from headrace.ids import Version
from headrace.logs import log_fields, logger
from headrace.runtime.checkpoint import Checkpoint
from headrace.runtime.failures import Stopping, of_batch, of_gone, of_query
from headrace.runtime.safety.outage import Outage
from headrace.runtime.spark_query import SparkQuery
from headrace.spark.gateway import GONE
from headrace.spark.streaming import callback_connection

HOLD_S = 0.01
"""While a batch must not begin, how often to check whether Spark has stopped."""
_log = logger(__name__)


@dataclass
class BatchGate:
    """The function that the query gives to Spark's ``foreachBatch``."""

    run: Callable[[DataFrame, Version], None]
    """Runs one batch."""
    checkpoint: Checkpoint
    spark: SparkQuery
    lock: threading.Lock
    """Held while a batch runs."""
    outage: Outage
    """Waits while the checkpoint's folder is away."""
    stopping: threading.Event = field(default_factory=threading.Event)
    """When set, no further batch begins."""
    running_in: int | None = None
    """The thread of the current batch; None if no batch runs."""
    connection: Any = None
    """The connection through which Spark's query thread calls. Nothing else closes it."""
    finished: Version | None = None
    """The last batch that ended well since this start of the query."""
    error: HeadraceError | None = None
    """The error that ended the query; None if it has not failed."""

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        # A version has the number of Spark's batch.
        version = Version(batch_id)
        with self.lock:
            begins = not self.stopping.is_set()
            if begins:
                self.running_in = threading.get_ident()
                self.connection = callback_connection(batch)
                try:
                    with log_fields(query=self.checkpoint.location, version=version):
                        self._run_or_fail(batch, version)
                finally:
                    self.running_in = None
        if not begins:
            self._hold()

    def failure(self) -> HeadraceError | None:
        """The error that ended the query, in a batch or outside of batches; None if it still runs or has ended without one."""
        if self.error is None and not self.spark.is_active():
            self.error = self._failure_outside_batches()
        return self.error

    def _failure_outside_batches(self) -> HeadraceError | None:
        try:
            found = self.spark.failure()
        except GONE as gone:
            return of_gone(gone)
        return None if found is None else of_query(found, self.checkpoint.location)

    def wait_for_batch(self) -> None:
        """Return when no batch runs."""
        with self.lock:
            pass

    def _run_or_fail(self, batch: DataFrame, version: Version) -> None:
        try:
            self.outage.run(lambda: self.run(batch, version), version, lambda: self.stopping.is_set() or not self.spark.is_active())
        except Exception as failure:
            if not self.spark.is_active():
                # Spark is stopping the query, or has ended. The exception is only a consequence of that.
                # Its text is left to the traceback: Spark's exceptions ask the JVM for it, which may have ended.
                _log.info("the batch was cancelled, because the query is being stopped: %s", type(failure).__name__, exc_info=True)
                raise Stopping from None
            # If the query was replaced, its successor may have removed files. Report that it was replaced, not the missing file.
            replaced = failure if isinstance(failure, FencedError) else self.checkpoint.fence.lost(f"going on with batch {version}")
            self.error = replaced or of_batch(failure, version, self.checkpoint.location)
            raise self.error from (failure if replaced is not None and replaced is not failure else self.error.__cause__)
        self.finished = version

    def _hold(self) -> None:
        """Block while the query is being stopped, until Spark knows of the stop. Before, it would take an exception as a failure."""
        while self.spark.is_active():
            time.sleep(HOLD_S)
        raise Stopping
