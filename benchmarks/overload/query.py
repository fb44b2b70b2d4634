"""The query: two sinks of one stream. Both compute something costly of each row before they aggregate it."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from headrace.api.stream import Stream

SCHEMA = "k long, v long"
LIGHT, HEAVY = "light", "heavy"
ROUNDS = {LIGHT: 4, HEAVY: 12}
"""How often a row is hashed for each sink: what makes its rows cost what they do."""
WEIGHTS = {LIGHT: 1.0, HEAVY: 2.0}
MAX_LOSS = 0.95


def source(spark: SparkSession, folder: str) -> DataFrame:
    """The stream of files."""
    return spark.readStream.schema(SCHEMA).parquet(folder)


def digest(rounds: int) -> Column:
    """A number from 0 to 65,535 that takes so many rounds of SHA-256 to compute."""
    text = F.concat_ws("-", F.col("k").cast("string"), F.col("v").cast("string"))
    for _ in range(rounds):
        text = F.sha2(text, 256)
    return F.conv(F.substring(text, 1, 4), 16, 10).cast("long")


def aggregated(rows: DataFrame | Stream, branch: str) -> DataFrame | Stream:
    """Rows and the sum of their digests, by key: the same code for both engines."""
    # The filter keeps Spark from computing the digest twice, and drops nothing.
    digested = rows.select("k", digest(ROUNDS[branch]).alias("d")).filter("d >= 0")
    return digested.groupBy("k").agg(F.count("*").alias("rows"), F.sum("d").alias("digest"))  # type: ignore[union-attr]
