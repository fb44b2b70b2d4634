"""A run over a sample of the streams: the query itself, in a checkpoint of its own that is removed, on the first rows of its sources.

It ends with the first of: enough results, enough rows, no more rows for a moment, or the time limit. Sources of files give a file a batch,
from the oldest on, and Kafka a few rows, whatever the query's own options will be; nothing is told to the sources or written anywhere else.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from headrace.api.editor.checking import MODES, NewWriter, columns_of
from headrace.api.editor.texts import Result
from headrace.api.query import HeadraceQuery
from headrace.logs import logger
from headrace.spark.sql_text import with_small_batches

_log = logger(__name__)

SECONDS_MAX = 20.0
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


def sample(rows: Result, said: list[str], mode: str, new_writer: NewWriter, ended: threading.Event) -> dict[str, Any]:
    """Run a query on a sample, and return its first results. In append mode, results so far are shown if none is final.

    ``said`` is what the sources give, in words.
    """
    first = _run(rows, said, mode, new_writer, ended)
    note = ""
    if mode == "append" and first.rows_in and not first.collected.rows and not ended.is_set():
        again = _provisional(rows, said, new_writer, ended)
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


def _provisional(rows: Result, said: list[str], new_writer: NewWriter, ended: threading.Event) -> Sampled | None:
    try:
        return _run(rows, said, MODES[1], new_writer, ended)
    except Exception:
        # Not every query has an update mode: then there is nothing to show before results are final.
        return None


def _run(rows: Result, said: list[str], mode: str, new_writer: NewWriter, ended: threading.Event) -> Sampled:
    collected, place, began_s = Collected(mode), tempfile.mkdtemp(prefix="headrace-sample-"), time.monotonic()
    query = None
    try:
        writer = new_writer(rows).outputMode(mode).foreachBatch(collected.take).options(**OPTIONS)
        query = writer.queryName(None).option("checkpointLocation", f"{place}/checkpoint").start()
        why = _wait(query, collected, ended)
        failed = query.exception()
        if failed is not None:
            raise failed
        read = _rows_read(query)
        return Sampled(collected, sum(read), sum(1 for each in read if each), time.monotonic() - began_s, why, list(dict.fromkeys(said)))
    finally:
        # In a thread of its own: this one may be broken off at any moment, and a batch may need long to end.
        cleaning = threading.Thread(target=_clean_up, args=(query, place), name="headrace-editor-clean-up")
        cleaning.start()
        cleaning.join(CLEAN_UP_S)


def _clean_up(query: HeadraceQuery | None, place: str) -> None:
    """Stop a sample's query, with the batch that runs, and remove its checkpoint."""
    try:
        if query is not None:
            query._engine.lifetime.stop_now()
    except Exception:
        _log.warning("the query of a sample did not stop well", exc_info=True)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _wait(query: HeadraceQuery, collected: Collected, ended: threading.Event) -> str:
    """Wait until the sample is large enough, and say why it is."""
    until_s = time.monotonic() + SECONDS_MAX
    rows, changed_s = 0, time.monotonic()
    while time.monotonic() < until_s:
        if ended.wait(LOOK_S):
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
    return f"{SECONDS_MAX:g} s were over"


def _rows_read(query: HeadraceQuery) -> list[int]:
    """By batch: the rows that its sources gave, as far as Spark has told already."""
    return [sum(int(source["numInputRows"]) for source in each.get("sources", [])) for each in query.recentProgress]


def _in_words(found: Sampled) -> str:
    """What the sample was."""
    batches = f"{found.batches} batch{'' if found.batches == 1 else 'es'}"
    read = f"{found.rows_in:,} row{'' if found.rows_in == 1 else 's'} in {batches}, {found.seconds:.1f} s; it ended because {found.ended}"
    return f"{read}. Sources: {'; '.join(found.sources)}."
