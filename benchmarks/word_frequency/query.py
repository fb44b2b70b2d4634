"""Counts words, running or over a time window. The same code runs on both engines.

SEEP's query (section 6.2) has two operators, a word splitter and a word counter, and a window of 30 s. Floe's (section VIII) counts
overall, and over the last 15 minutes, hour and twelve hours. Neither says how often windows advance. Here SEEP's windows tumble, and Floe's
slide by a sixtieth of their size. Counts of a sliding window are emitted once, when it closes; all others whenever they change.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.word_frequency import source
from benchmarks.word_frequency.windows import DELAY_S, Window


@dataclass(frozen=True)
class Offer:
    """How fragments are offered; see ``source.Reader``."""

    pool: Path
    head: int
    gun: Path
    rate: float = 0.0
    rows: int = 0
    density: float = 1.0
    span_s: float = 0.0
    limit: int = 2**62


def read(spark: SparkSession, offer: Offer) -> DataFrame:
    # Pickled by value: Spark's Python workers need not be able to import this folder.
    cloudpickle.register_pickle_by_value(source)
    spark.dataSource.register(source.Fragments)
    options = {name: str(value) for name, value in vars(offer).items()}
    return spark.readStream.format("fragments").options(**options, parts=str(spark.sparkContext.defaultParallelism)).load()


def counts(fragments: Any, window: Window) -> Any:
    """The query. ``fragments`` is a Headrace stream or a streaming DataFrame."""
    if window.size_s is None:
        return _words(fragments).groupBy("word").agg(F.count("*").alias("count"))
    over = F.window("at", f"{window.size_s} seconds", f"{window.advance_s} seconds")
    # Times are computed per fragment, not per word, which helps both engines.
    return _words(fragments.withWatermark("at", f"{DELAY_S} seconds")).groupBy("word", over).agg(F.count("*").alias("count"))


def _words(fragments: Any) -> Any:
    return fragments.select("at", F.explode(F.split("text", " ")).alias("word")).filter(F.col("word") != "")


def results(counted: DataFrame) -> DataFrame:
    """The columns that a batch delivers: word, start of the window in seconds if there is one, and count."""
    start = F.unix_seconds("window.start") if "window" in counted.columns else F.lit(0)
    return counted.select("word", start.cast("long").alias("start"), "count")
