"""What the query must have given and must still hold, from anybody but Headrace.

Spark's *batch* engine computes all results over all files, once a seed: aggregates, windows, sessions, distinct rows and joins. No row's
fate depends on the batches (see ``data``), so what is due after some of the files are the results whose time the watermark has passed, or
whose last row has come. The processor's results, and all that is still open, are computed in plain Python.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.chaos.data import DELAY_US, SECOND, Row, write_file
from tests.chaos.query import ADVANCE_S, BUCKET_S, GAP_S, SIZES_S, WINDOW_S, WITHIN_S

Rows = Counter[tuple[Any, ...]]
"""Rows with how often each is there: a lost row and a doubled one both show."""


@dataclass(frozen=True)
class Result:
    """A row that must come out, and when."""

    row: tuple[Any, ...]
    due_us: int = 0
    """Once the watermark has reached this."""
    file: int = 0
    """Once this file was read."""


@dataclass
class Reference:
    """All results of one input, and its rows."""

    files: list[list[Row]]
    results: dict[str, list[Result]] = field(default_factory=dict)
    totals: dict[str | None, dict[int, tuple[int, int | None, int | None, int | None]]] = field(default_factory=dict)
    """By key and file: count, sum, least and greatest of that file's values."""

    def watermark_us(self, fed: int) -> int:
        """By Spark's rule: the greatest time seen, in whole milliseconds, minus the delay."""
        seen = max((row.ts for rows in self.files[:fed] for row in rows), default=0)
        return max(0, seen // 1000 * 1000 - DELAY_US)

    def in_time(self, fed: int) -> list[Row]:
        return [row for rows in self.files[:fed] for row in rows if not row.late]

    def output(self, sink: str, fed: int) -> Rows:
        """What a sink must hold after so many files."""
        if sink == "totals":
            return Counter((key, *_summed([part for file, part in parts.items() if file < fed])) for key, parts in self._known(fed).items())
        reached = self.watermark_us(fed)
        return Counter(r.row for r in self.results[sink] if r.due_us <= reached and r.file < fed)

    def _known(self, fed: int) -> dict[str | None, dict[int, Any]]:
        return {key: parts for key, parts in self.totals.items() if min(parts) < fed}

    def state(self, fed: int) -> dict[str, Rows]:
        """What must still be open after so many files, by store."""
        reached, rows = self.watermark_us(fed), self.in_time(fed)
        panes = [row for row in rows if row.ts // (ADVANCE_S * SECOND) * ADVANCE_S * SECOND + WINDOW_S * SECOND > reached]
        sizes = [r.row for r in self.results.get("windows", ()) if r.due_us <= reached and _sizes_end(r.row[2]) > reached]
        waiting = [row for row in rows if row.k is not None and row.ts + WITHIN_S * SECOND > reached]
        begins = Counter((row.k, row.ts // (BUCKET_S * SECOND) * BUCKET_S) for row in rows)
        unfinished = {key: n for key, n in begins.items() if (key[1] + BUCKET_S) * SECOND > reached}
        return {
            "totals": self.output("totals", fed),
            "windows": _per_key(panes),
            "sizes": Counter({(sum(1 for _ in sizes), sum(row[3] for row in sizes)): 1}) if sizes else Counter(),
            "sessions": _per_key(_in_open_sessions(rows, reached)),
            "distinct": Counter({(row.id, row.ts) for row in rows if row.ts > reached}),
            "pairs.left": Counter((row.k, row.ts, row.id) for row in waiting if row.side == "l"),
            "pairs.right": Counter((row.k, row.ts, row.id) for row in waiting if row.side == "r"),
            "buckets": Counter(Counter(row.k for row in rows).items()),
            "buckets.counts": Counter((*key, n) for key, n in unfinished.items()),
            "buckets.timers": Counter((key, (begin + BUCKET_S) * SECOND) for key, begin in unfinished),
        }


def _summed(parts: list[tuple[int, int | None, int | None, int | None]]) -> tuple[Any, ...]:
    def of(at: int, how: Any) -> Any:
        values = [part[at] for part in parts if part[at] is not None]
        return how(values) if values else None

    return of(0, sum), of(1, sum), of(2, min), of(3, max)


def _per_key(rows: list[Row]) -> Rows:
    """Count of rows and sum of values by key: what all parts of a key's state add up to, however it is cut."""
    found: dict[str | None, tuple[int, int]] = {}
    for row in rows:
        n, s = found.get(row.k, (0, 0))
        found[row.k] = n + 1, s + (row.v or 0)
    return Counter((key, *both) for key, both in found.items())


def _in_open_sessions(rows: list[Row], reached: int) -> list[Row]:
    """Rows of sessions that end after the watermark."""
    by_key: dict[str | None, list[Row]] = {}
    for row in rows:
        by_key.setdefault(row.k, []).append(row)
    found = []
    for each in by_key.values():
        session: list[Row] = []
        for row in [*sorted(each, key=lambda row: row.ts), None]:
            if session and (row is None or row.ts > session[-1].ts + GAP_S * SECOND):
                found += session if session[-1].ts + GAP_S * SECOND > reached else []
                session = []
            session += [] if row is None else [row]
    return found


def _sizes_end(end_us: int) -> int:
    return ((end_us - 1) // (SIZES_S * SECOND) + 1) * SIZES_S * SECOND


def compute(spark: SparkSession, files: list[list[Row]], folder: Path, query: str) -> Reference:
    """Spark's batch answer over all files."""
    for at, rows in enumerate(files):
        write_file(folder, at, rows)
    everything = spark.read.parquet(str(folder)).cache()
    rows = everything.filter("not late")
    found = Reference(files)
    parts = everything.groupBy("k", "file").agg(F.count("*"), F.sum("v"), F.min("v"), F.max("v"))
    for k, file, *values in parts.collect():
        found.totals.setdefault(k, {})[file] = tuple(values)
    found.results = _windows(rows) if query == "windows" else _sessions(rows) | {"buckets": _buckets(files)}
    everything.unpersist()
    return found


def _windows(rows: DataFrame) -> dict[str, list[Result]]:
    us = F.unix_micros
    window = F.window("ts", f"{WINDOW_S} seconds", f"{ADVANCE_S} seconds")
    windows = rows.groupBy("k", window).agg(F.count("*").alias("n"), F.sum("v").alias("s"), F.avg("v").alias("a"))
    ended = windows.select("k", us("window.start"), us("window.end").alias("end"), "n", "s", "a")
    minutes = F.window(F.timestamp_micros(F.col("end") - 1), f"{SIZES_S} seconds")
    sizes = ended.groupBy(minutes.alias("w")).agg(F.count("*").alias("n"), F.sum("n").alias("s"))
    sizes = sizes.select(us("w.start"), us("w.end").alias("end"), "n", "s")
    left = rows.filter("side = 'l'").select("k", "id", "ts", "file")
    right = rows.filter("side = 'r'").select("k", "id", "ts", "file").toDF("k2", "id2", "ts2", "file2")
    near = (F.col("k") == F.col("k2")) & (F.abs(us("ts") - us("ts2")) <= WITHIN_S * SECOND)
    pairs = left.join(right, near, "left").select("k", "id", "id2", us("ts"), F.greatest("file", F.coalesce("file2", "file")))
    return {
        "windows": [Result(tuple(row), due_us=row.end) for row in ended.collect()],
        "sizes": [Result(tuple(row), due_us=row.end) for row in sizes.collect()],
        "pairs": [
            # A row without a partner waits until none can come; one without a key has nothing to wait for.
            Result((k, id_, partner), ts + WITHIN_S * SECOND if partner is None and k is not None else 0, file)
            for k, id_, partner, ts, file in pairs.collect()
        ],
    }


def _sessions(rows: DataFrame) -> dict[str, list[Result]]:
    us = F.unix_micros
    sessions = rows.groupBy("k", F.session_window("ts", f"{GAP_S} seconds").alias("w")).agg(F.count("*").alias("n"), F.sum("v").alias("s"))
    sessions = sessions.select("k", us("w.start"), us("w.end").alias("end"), "n", "s")
    distinct = rows.groupBy("id", "ts", "k", "note").agg(F.min("file").alias("file")).select("id", us("ts"), "k", "note", "file")
    return {
        "sessions": [Result(tuple(row), due_us=row.end) for row in sessions.collect()],
        "distinct": [Result(tuple(row)[:-1], file=row.file) for row in distinct.collect()],
    }


def _buckets(files: list[list[Row]]) -> list[Result]:
    counts = Counter((row.k, row.ts // (BUCKET_S * SECOND) * BUCKET_S) for rows in files for row in rows if not row.late)
    return [Result((k, begin, n), due_us=(begin + BUCKET_S) * SECOND) for (k, begin), n in counts.items()]
