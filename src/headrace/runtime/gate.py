"""The gate between Spark and the batch loop: Spark calls it with every micro-batch.

It lets one batch in at a time, under the lock that changes of the routing wait for. While the query is being stopped it lets none in. What
goes wrong inside becomes one error of ours. An exception must reach Spark: returning normally would commit the batch in Spark's own log.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame

from headrace.errors import HeadraceError
from headrace.ids import Version
from headrace.logs import log_fields
from headrace.runtime.checkpoint import Checkpoint
from headrace.runtime.failures import Stopping, of_batch
from headrace.runtime.spark_query import SparkQuery
from headrace.spark.streaming import callback_connection

HOLD_S = 0.01
"""How often a batch that may not begin looks whether Spark has stopped."""


@dataclass
class BatchGate:
    """``foreachBatch`` of the query."""

    run: Callable[[DataFrame, Version], None]
    """Runs one batch."""
    checkpoint: Checkpoint
    spark: SparkQuery
    lock: threading.Lock
    """Held while a batch runs."""
    stopping: threading.Event = field(default_factory=threading.Event)
    """Set: no further batch begins."""
    running_in: int | None = None
    """The thread of the batch that runs now."""
    connection: Any = None
    """The connection by which Spark's thread of the query calls; nobody else closes it."""
    finished: Version | None = None
    """The last batch that succeeded since the query started; None before the first."""
    error: HeadraceError | None = None
    """Why the query failed."""

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

    def wait_for_batch(self) -> None:
        """Return when no batch runs."""
        with self.lock:
            pass

    def _run_or_fail(self, batch: DataFrame, version: Version) -> None:
        try:
            self.run(batch, version)
        except Exception as failure:
            if not self.spark.is_active():
                # Spark is stopping the query, or is gone itself: whatever came up is the effect of that.
                raise Stopping from None
            # A query that was replaced misses files that its successor has removed: say why, not what.
            replaced = self.checkpoint.fence.lost(f"going on with batch {version}")
            self.error = replaced or of_batch(failure, version, self.checkpoint.location)
            raise self.error from (failure if replaced else self.error.__cause__)
        self.finished = version

    def _hold(self) -> None:
        """Keep Spark waiting while the query is being stopped: until Spark knows of the stop, it takes an exception for a failure."""
        while self.spark.is_active():
            time.sleep(HOLD_S)
        raise Stopping
