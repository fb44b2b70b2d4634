"""A run over a sample of the streams: the query itself, in a checkpoint of its own that is removed, on the first rows of its sources.

It ends with the first of: enough results, enough rows, no more rows for a moment, or its share of the time. Sources of files give a file a
batch, from the oldest on, and Kafka a few rows, whatever the query's own options will be; nothing is told to the sources or written
anywhere else.
"""

from __future__ import annotations

import tempfile
import threading
import time
import uuid
from contextvars import copy_context
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from headrace.api.editor.checking import MODES, NewWriter, columns_of
from headrace.api.editor.texts import Result
from headrace.api.query import HeadraceQuery
from headrace.logs import logger, suppressed
from headrace.spark.hadoop import remove_folder
from headrace.spark.sql_text import with_small_batches

_log = logger(__name__)

SECONDS_MAX = 40.0
"""The time of all samples of a text. A result may be tried twice, so each run has half of its share."""
IDLE_S = 1.0
"""A sample ends if no further rows come for so long."""
RESULTS_MAX = 100
ROWS_MAX = 20_000
FILES, OFFSETS = 1, 1_000
CELL_CHARS_MAX = 300
CLEAN_UP_S = 5.0
"""A sample waits so long until its query has stopped; then it stops in the background."""
LOOK_S = 0.1
OPTIONS = {
    "headrace.ui": False,
    "headrace.history": False,
    "headrace.durable": False,
    "headrace.instances": 1,
    "headrace.instancesOf": "",
    "headrace.metricsPort": -1,
    "headrace.stateLocation": "",
    "headrace.readyExecutors": -1,
}
"""What holds for a sample, whatever the session says. None of them changes results."""


@dataclass
class Collected:
    """The first results that a sample has given."""

    mode: str
    rows: list[list[str | None]] = field(default_factory=list)
    batches: list[int] = field(default_factory=list)
    """By row: the number of the batch that it came with."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, batch: DataFrame, number: int) -> None:
        """Keep rows of a batch of results."""
        found = [[shown(value) for value in row] for row in batch.limit(RESULTS_MAX).collect()]
        with self._lock:
            if self.mode == "complete":
                # Each batch has all results so far.
                self.rows, self.batches = [], []
            found = found[: RESULTS_MAX - len(self.rows)]
            self.rows += found
            self.batches += [number] * len(found)


def shown(value: Any) -> str | None:
    """A value as text for a table."""
    if value is None:
        return None
    if hasattr(value, "asDict"):
        inner = ", ".join(f"{name}: {shown(each)}" for name, each in value.asDict().items())
        text = "{" + inner + "}"
    elif isinstance(value, list):
        text = "[" + ", ".join(str(shown(each)) for each in value) + "]"
    elif isinstance(value, bytes | bytearray):
        text = "0x" + bytes(value).hex()
    else:
        text = str(value)
    return text if len(text) <= CELL_CHARS_MAX else text[: CELL_CHARS_MAX - 1] + "…"


@dataclass
class Sampled:
    """How a sample went."""

    collected: Collected
    rows_in: int
    batches: int
    seconds: float
    ended: str
    sources: list[str]


def small(frame: DataFrame, session: SparkSession) -> tuple[DataFrame, list[str]]:
    """A stream as a sample reads it, in a session for samples, and what its sources then give."""
    return with_small_batches(frame, FILES, OFFSETS, session)


@dataclass(frozen=True)
class Sampling:
    """How the results of a text are tried."""

    new_writer: NewWriter
    ended: threading.Event
    """Set when nobody waits for the sample any more."""
    seconds_max: float
    """The longest time of one run."""

    def sample(self, rows: Result, said: list[str], mode: str) -> dict[str, Any]:
        """Run a query on a sample, and return its first results. In append mode, results so far are shown if none is final.

        ``said`` is what the sources give, in words.
        """
        first = self._run(rows, said, mode)
        note = ""
        if mode == "append" and first.rows_in and not first.collected.rows and not self.ended.is_set():
            again = self._provisional(rows, said)
            if again is not None and again.collected.rows:
                first = again
                note = "No result was final yet after these rows, so these are the values so far (output mode update)."
        found = first.collected
        return {
            "columns": columns_of(rows.schema),
            "rows": found.rows,
            "batches": found.batches,
            "mode": found.mode,
            "sample": _in_words(first),
            "note": note,
            "rowsIn": first.rows_in,
        }

    def _provisional(self, rows: Result, said: list[str]) -> Sampled | None:
        try:
            return self._run(rows, said, MODES[1])
        except Exception:
            # Not every query has an update mode: then there is nothing to show before results are final.
            return None

    def _run(self, rows: Result, said: list[str], mode: str) -> Sampled:
        collected, began_s = Collected(mode), time.monotonic()
        writer = self.new_writer(rows).outputMode(mode).foreachBatch(collected.take).options(**OPTIONS).queryName(None)
        started = _Started(rows.session, writer)
        try:
            query = started.query()
            why = self._wait(query, collected)
            failed = query.exception()
            if failed is not None:
                raise failed
            read, seconds = _rows_read(query), time.monotonic() - began_s
            return Sampled(collected, sum(read), sum(1 for each in read if each), seconds, why, list(dict.fromkeys(said)))
        finally:
            started.clean_up()

    def _wait(self, query: HeadraceQuery, collected: Collected) -> str:
        """Wait until the sample is large enough, and say why it is."""
        until_s = time.monotonic() + self.seconds_max
        rows, changed_s = 0, time.monotonic()
        while time.monotonic() < until_s:
            if self.ended.wait(LOOK_S):
                return "it was cancelled"
            if not query.isActive:
                return "its sources ended"
            if len(collected.rows) >= RESULTS_MAX and collected.mode != "complete":
                return f"it had {RESULTS_MAX} results"
            now = sum(_rows_read(query))
            if now > rows:
                rows, changed_s = now, time.monotonic()
            if rows >= ROWS_MAX:
                return f"it had read {ROWS_MAX:,} rows"
            if rows and not query.status["isDataAvailable"] and time.monotonic() - changed_s > IDLE_S:
                return "there were no more rows"
        return f"{self.seconds_max:g} s were over"


class _Started:
    """A sample's query and its checkpoint. It starts, and is removed, in threads of its own: the thread of the sample may be broken off at
    any moment, also while the query starts, and then nobody else would know of the query."""

    def __init__(self, session: SparkSession, writer: Any) -> None:
        self._session, self._writer = session, writer
        base = session.conf.get("spark.sql.streaming.checkpointLocation", None)
        self._place = f"{base}/headrace-sample-{uuid.uuid4()}" if base else tempfile.mkdtemp(prefix="headrace-sample-")
        self._query: HeadraceQuery | None = None
        self._failed: BaseException | None = None
        context = copy_context()
        self._starting = threading.Thread(target=context.run, args=(self._start,), name="headrace-editor-start", daemon=True)
        self._starting.start()

    def _start(self) -> None:
        try:
            self._query = self._writer.option("checkpointLocation", f"{self._place}/checkpoint").start()
        except BaseException as failed:
            self._failed = failed

    def query(self) -> HeadraceQuery:
        """The query, as soon as it has started. Raises what its start raised."""
        self._starting.join()
        if self._failed is not None:
            raise self._failed
        assert self._query is not None
        return self._query

    def clean_up(self) -> None:
        """Stop the query, with the batch that runs, and remove its checkpoint; after some time in the background."""
        cleaning = threading.Thread(target=self._clean_up, name="headrace-editor-clean-up", daemon=True)
        cleaning.start()
        cleaning.join(CLEAN_UP_S)

    def _clean_up(self) -> None:
        self._starting.join()
        try:
            if self._query is not None:
                self._query._engine.lifetime.stop_now()
        except Exception:
            _log.warning("the query of a sample did not stop well", exc_info=True)
        finally:
            with suppressed(_log, f"the checkpoint of a sample was not removed: {self._place}", Exception):
                remove_folder(self._session, self._place)


def _rows_read(query: HeadraceQuery) -> list[int]:
    """By batch: the rows that its sources gave, as far as Spark has told already."""
    return [sum(int(source["numInputRows"]) for source in each.get("sources", [])) for each in query.recentProgress]


def _in_words(found: Sampled) -> str:
    """What the sample was."""
    batches = f"{found.batches} batch{'' if found.batches == 1 else 'es'}"
    read = f"{found.rows_in:,} row{'' if found.rows_in == 1 else 's'} in {batches}, {found.seconds:.1f} s; it ended because {found.ended}"
    return f"{read}. Sources: {'; '.join(found.sources)}."
