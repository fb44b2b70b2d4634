"""The most visited language editions of Wikipedia in every 30 seconds: map, reduce, and a sink that ranks (SEEP 6.1).

    lines -> map: keep the language only -> reduce: views by window and language -> sink: the k largest of a window

The same code runs on Headrace and on plain Spark: `lines` is a stream of either.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.top_k.outcome import Ranking

EPOCH_MS = 1_699_999_200_000
"""The time at which streams begin: a full hour, so that windows begin with them."""


def read(spark: SparkSession, folder: str, files: int) -> DataFrame:
    """Lines with the time of their file; a batch has at most this many files."""
    raw = spark.readStream.option("maxFilesPerTrigger", files).text(folder)
    return raw.selectExpr("value", f"timestamp_millis({EPOCH_MS} + bigint(substring_index(_metadata.file_name, '-', -1))) AS time")


def views(lines: Any, window_s: int) -> Any:
    """Views of each language edition in each window."""
    mapped = lines.select("time", F.substring_index(F.substring_index("value", " ", 1), ".", 1).alias("language"))
    windows = F.window("time", f"{window_s} seconds")
    return mapped.withWatermark("time", "1 second").groupBy(windows, "language").agg(F.count("*").alias("views"))


def ranked(rows: Iterable[tuple[int, str, int]]) -> dict[int, Ranking]:
    """By window: its languages, most visited first; equally visited ones by name.

    >>> ranked([(0, "de", 5), (0, "en", 9), (0, "ja", 5), (30, "en", 2)])
    {0: [('en', 9), ('de', 5), ('ja', 5)], 30: [('en', 2)]}
    """
    found: dict[int, Ranking] = {}
    for start, language, count in rows:
        found.setdefault(start, []).append((language, count))
    return {start: sorted(each, key=lambda row: (-row[1], row[0])) for start, each in found.items()}


def sink(rankings: dict[int, Ranking], on_window: Callable[[int, Ranking], None]) -> Callable[[DataFrame, int], None]:
    """Collects the counts of all instances and ranks them, like SEEP's sink. The batch that closes a window has all its counts."""

    def deliver(rows: DataFrame, _batch: int) -> None:
        columns = rows.select((F.unix_millis("window.start") - EPOCH_MS).alias("start"), "language", "views").toArrow().to_pydict()
        for start, ranking in ranked(zip(columns["start"], columns["language"], columns["views"], strict=True)).items():
            # A window that comes twice is a mistake; the second must not replace the first.
            rankings[start] = rankings.get(start, []) + ranking
            on_window(start, ranking)

    return deliver
