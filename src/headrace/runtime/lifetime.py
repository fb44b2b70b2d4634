"""The end of a query: it is stopped, fails, is interrupted, or its session is stopped. In each case its checkpoint is released.

    stop()        no batch begins -> the current batch ends -> Spark commits it -> Spark stops -> the checkpoint is released

Waiting is done in Python, on an event, and not in a call into the JVM. If such a call were interrupted, the next one would get its answer.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from pyspark.errors import PySparkException, StreamingQueryException

from headrace.errors import HeadraceError
from headrace.logs import logger, suppressed
from headrace.runtime.gate import BatchGate
from headrace.runtime.safety.checkpointer import Checkpointer
from headrace.runtime.spark_query import SparkQuery
from headrace.spark.gateway import GONE, is_spark_interrupt_handler
from headrace.spark.streaming import hang_up

LOOK_S = 1.0
"""How often to check whether the query's session still runs."""
COMMIT_LOOK_S = 0.005
END_SECONDS_MAX = 60
_DRAINED = "headrace_drained"
"""Marks a KeyboardInterrupt that has stopped a query."""
_running: set[QueryLifetime] = set()
_log = logger(__name__)


class QueryLifetime:
    """Spark's query from its start to its end."""

    def __init__(self, gate: BatchGate, spark: SparkQuery, release: Callable[[], None], checkpointer: Checkpointer | None = None) -> None:
        self.gate, self.spark, self.checkpointer = gate, spark, checkpointer
        self.ended = threading.Event()
        """Set when Spark's query has ended and the checkpoint is released."""
        self._release = release
        self._finishing = threading.Lock()

    def begin(self) -> None:
        """Begin to watch Spark's query, which has started."""
        _running.add(self)
        threading.Thread(target=self._watch, name="headrace-end-of-query", daemon=True).start()

    def is_over(self) -> bool:
        """True if Spark's query is no longer active and no batch runs. In that case this releases the checkpoint."""
        if self.spark.is_active() or self.gate.running_in is not None:
            return False
        if not self.ended.is_set():
            self._await_end()
            self.finish()
        return True

    def stop(self) -> None:
        """Stop the query after the current batch."""
        self.gate.stopping.set()
        if self.gate.running_in == threading.get_ident():
            # The user's own function calls stop() from inside the batch, which must end first.
            threading.Thread(target=self.stop, name="headrace-stop", daemon=True).start()
            return
        self.gate.wait_for_batch()
        self._await_commit()
        if self.checkpointer is not None:
            # So that a restart need not compute the last versions again.
            with suppressed(_log, "no last checkpoint was taken", HeadraceError, PySparkException, OSError, *GONE):
                self.checkpointer.take()
        self.stop_now()

    def stop_now(self) -> None:
        """Stop the query, and cancel the current batch. A restart runs it again."""
        self.gate.stopping.set()
        try:
            self.spark.handle.stop()
        except GONE as gone:
            # A stopped session cannot cancel jobs, and a JVM that has ended runs none.
            if self.spark.is_active():
                raise
            query = self.gate.checkpoint.location
            _log.info("Spark's query had ended before it was stopped: %s: %s", type(gone).__name__, gone, query=query)
            self._await_end()
        self.gate.wait_for_batch()
        self.finish()

    def _await_commit(self) -> None:
        """Wait until Spark has committed the last batch in its own log.

        Spark does so after the batch has ended. If it were stopped before, a restart would run the batch again, and a sink that is not
        idempotent would get its rows twice.
        """
        if self.gate.finished is None:
            return
        while not self.gate.checkpoint.spark_log.has_commit(self.gate.finished) and self.spark.is_active():
            time.sleep(COMMIT_LOOK_S)

    def wait(self, call: Callable[[], Any] | None = None, timeout: float | None = None) -> bool:
        """Wait until the query has ended, or until a call into the JVM has returned. Returns False after the timeout.

        The first Ctrl-C stops the query like ``stop``, and a second one like ``stop_now``.
        """
        done, thrown = self.ended, list[BaseException]()
        if call is not None:
            done = threading.Event()
            threading.Thread(target=_note, args=(call, done, thrown), name="headrace-wait", daemon=True).start()
        with _own_interrupts():
            try:
                in_time = done.wait(timeout)
            except KeyboardInterrupt as interrupt:
                self._stop_interrupted()
                setattr(interrupt, _DRAINED, True)
                raise
        if thrown:
            raise thrown[0]
        return in_time

    def _stop_interrupted(self) -> None:
        name = self.spark.name() or "the query"
        _say(f"\nCtrl-C: {name} stops after its current batch; a second Ctrl-C breaks the batch off")
        try:
            _in_thread(self.stop)
        except KeyboardInterrupt as interrupt:
            _in_thread(self.stop_now)
            setattr(interrupt, _DRAINED, True)
            _say(f"\n{name} has stopped in the middle of a batch; a restart runs that batch again")
            raise
        last, failed = self.gate.finished, self.gate.error
        if failed is not None:
            _say(f"{name} has failed meanwhile: {failed}")
        else:
            _say(f"{name} has stopped{'' if last is None else f' after batch {last}'}; a restart goes on from there")

    def _watch(self) -> None:
        # ``exception()`` reports why it ended. Here it is only logged, also if the JVM has ended.
        with self._end_logged():
            while not self.spark.ends_within(LOOK_S):
                if self.spark.session_is_gone():
                    # The session was stopped, but Spark's query would go on looking for data, and fail when there is some.
                    self.stop_now()
        self.gate.wait_for_batch()
        self.finish()
        # Spark reports a query as ended before its thread has ended. Until then the thread may wait for an answer from Python.
        with self._end_logged():
            self.spark.await_end()
        hang_up(self.gate.connection)

    def _await_end(self) -> None:
        """Wait until Spark's thread of the query, which is stopping, has ended."""
        with self._end_logged():
            self.spark.ends_within(END_SECONDS_MAX)

    def _end_logged(self) -> contextlib.AbstractContextManager[None]:
        """Inside, a failure of the query, or a JVM that is gone, is logged and suppressed: ``exception()`` reports it to the user."""
        query = self.gate.checkpoint.location
        return suppressed(_log, "the query has ended", StreamingQueryException, *GONE, level=logging.INFO, query=query)

    def finish(self) -> None:
        """Release the checkpoint. Any thread may call this, any number of times, while no batch runs."""
        self.gate.stopping.set()
        with self._finishing:
            if not self.ended.is_set():
                self._release()
                _running.discard(self)
                self.ended.set()


def is_drained(interrupt: KeyboardInterrupt) -> bool:
    """True for the Ctrl-C that has stopped a query. What happened was printed then."""
    return hasattr(interrupt, _DRAINED)


def end_orphans() -> None:
    """End the queries of this process whose session was stopped. One of them may hold the checkpoint of a query that starts now."""
    for each in [life for life in list(_running) if life.spark.session_is_gone()]:
        each.stop_now()


def _say(line: str) -> None:
    """Tell the user who has pressed Ctrl-C what happens."""
    with suppressed(_log, "nobody reads what is printed", OSError, ValueError, level=logging.DEBUG):
        print(line, file=sys.stderr, flush=True)


def _note(call: Callable[[], Any], done: threading.Event, thrown: list[BaseException]) -> None:
    try:
        call()
    except BaseException as error:  # It is raised again in the thread that waits.
        thrown.append(error)
    finally:
        done.set()


def _in_thread(call: Callable[[], None]) -> None:
    """Run a call in a thread and wait for it. An interrupt ends only the wait, not the call."""
    thread = threading.Thread(target=call, name="headrace-stop", daemon=True)
    thread.start()
    thread.join()


@contextlib.contextmanager
def _own_interrupts() -> Iterator[None]:
    """Inside, Ctrl-C raises KeyboardInterrupt only. PySpark's handler would cancel all jobs, and the current batch would fail."""
    handler = signal.getsignal(signal.SIGINT)
    if not is_spark_interrupt_handler(handler) or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
