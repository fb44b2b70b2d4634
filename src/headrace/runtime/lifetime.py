"""How a query ends: stopped, failed, interrupted, or left behind by its session. However it does, its checkpoint is free afterwards.

    stop()        no batch begins -> the batch that runs ends -> Spark notes it as done -> Spark stops -> the checkpoint is released

Waiting is done in Python, on an event, not in a call into the JVM: an interrupted call would leave its answer behind for the next one.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from pyspark.errors import StreamingQueryException

from headrace.logs import logger, suppressed
from headrace.runtime.gate import BatchGate
from headrace.runtime.spark_query import SparkQuery
from headrace.spark.gateway import GONE, is_spark_interrupt_handler
from headrace.spark.streaming import hang_up

LOOK_S = 1.0
"""How often to look whether the session of a query is still there."""
COMMIT_LOOK_S = 0.005
END_SECONDS_MAX = 60
_running: set[Lifetime] = set()
_log = logger(__name__)


class Lifetime:
    """Spark's query from its start to its end."""

    def __init__(self, gate: BatchGate, spark: SparkQuery, release: Callable[[], None]) -> None:
        self.gate, self.spark = gate, spark
        self.ended = threading.Event()
        """Set when Spark's query has ended and the checkpoint is free."""
        self._release = release
        self._finishing = threading.Lock()

    def begin(self) -> None:
        """Spark's query has started."""
        _running.add(self)
        threading.Thread(target=self._watch, name="headrace-end-of-query", daemon=True).start()

    def is_over(self) -> bool:
        """Whether Spark's query is to end and no batch of it runs any more; then the checkpoint is free."""
        if self.spark.is_active() or self.gate.running_in is not None:
            return False
        if not self.ended.is_set():
            self._await_end()
            self.finish()
        return True

    def stop(self) -> None:
        """Let the batch that runs come to its end, then stop."""
        self.gate.stopping.set()
        if self.gate.running_in == threading.get_ident():
            # The user's own function stops the query from inside a batch, which has to end first.
            threading.Thread(target=self.stop, name="headrace-stop", daemon=True).start()
            return
        self.gate.wait_for_batch()
        self._await_commit()
        self.stop_now()

    def stop_now(self) -> None:
        """Stop, and break off the batch that runs: a restart runs it again."""
        self.gate.stopping.set()
        try:
            self.spark.handle.stop()
        except GONE:
            # A session that is gone cannot cancel jobs, and a JVM that is gone has stopped everything.
            if self.spark.is_active():
                raise
            self._await_end()
        self.gate.wait_for_batch()
        self.finish()

    def _await_commit(self) -> None:
        """Until Spark has noted the last batch as done. It does so after the batch has come to its end; stopped before, it would run the
        batch once more after a restart, and a sink that is not idempotent would have its rows twice."""
        if self.gate.finished is None:
            return
        commit = self.gate.checkpoint.location / "commits" / str(self.gate.finished)
        while not commit.exists() and self.spark.is_active():
            time.sleep(COMMIT_LOOK_S)

    def wait(self, call: Callable[[], Any] | None = None, timeout: float | None = None) -> bool:
        """Until the query has ended, or a call into the JVM has returned; False after the timeout.

        Interrupted from the keyboard, the query is stopped as by ``stop``; interrupted once more, at once.
        """
        done, thrown = self.ended, list[BaseException]()
        if call is not None:
            done = threading.Event()
            threading.Thread(target=_note, args=(call, done, thrown), name="headrace-wait", daemon=True).start()
        with _own_interrupts():
            try:
                in_time = done.wait(timeout)
            except KeyboardInterrupt:
                self._stop_interrupted()
                raise
        if thrown:
            raise thrown[0]
        return in_time

    def _stop_interrupted(self) -> None:
        try:
            _in_thread(self.stop)
        except KeyboardInterrupt:
            _in_thread(self.stop_now)
            raise

    def _watch(self) -> None:
        # Why it ended is for those who ask; here also a JVM that is gone is just an end.
        with self._end_logged():
            while not self.spark.ends_within(LOOK_S):
                if self.spark.session_is_gone():
                    # Spark's query would look for new data for ever, and fail when there is some.
                    self.stop_now()
        self.gate.wait_for_batch()
        self.finish()
        # A query that is being stopped counts as ended before its thread has ended. Until then the thread may wait for an answer here.
        with self._end_logged():
            self.spark.await_end()
        hang_up(self.gate.connection)

    def _await_end(self) -> None:
        """Until Spark's own thread of the query has ended; it has been told to."""
        with self._end_logged():
            self.spark.ends_within(END_SECONDS_MAX)

    def _end_logged(self) -> contextlib.AbstractContextManager[None]:
        """Inside, a failure of the query, or a JVM that is gone, is logged and suppressed: ``exception()`` reports it to the user."""
        query = self.gate.checkpoint.location
        return suppressed(_log, "the query has ended", StreamingQueryException, *GONE, level=logging.INFO, query=query)

    def finish(self) -> None:
        """Free the checkpoint. Any thread may call it, any number of times, when no batch runs."""
        self.gate.stopping.set()
        with self._finishing:
            if not self.ended.is_set():
                self._release()
                _running.discard(self)
                self.ended.set()


def end_orphans() -> None:
    """End the queries of this process whose session was stopped under them: one may be in the way of a query that starts now."""
    for each in [life for life in list(_running) if life.spark.session_is_gone()]:
        each.stop_now()


def _note(call: Callable[[], Any], done: threading.Event, thrown: list[BaseException]) -> None:
    try:
        call()
    except BaseException as error:  # it is raised in the thread that waits
        thrown.append(error)
    finally:
        done.set()


def _in_thread(call: Callable[[], None]) -> None:
    """An interrupt ends the waiting, and not the call."""
    thread = threading.Thread(target=call, name="headrace-stop", daemon=True)
    thread.start()
    thread.join()


@contextlib.contextmanager
def _own_interrupts() -> Iterator[None]:
    """PySpark answers an interrupt from the keyboard by cancelling all jobs, so the batch that runs would fail. Here it is to end."""
    handler = signal.getsignal(signal.SIGINT)
    if not is_spark_interrupt_handler(handler) or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
