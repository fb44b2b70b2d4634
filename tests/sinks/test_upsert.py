"""``hr.upsert`` into a real PostgreSQL: merged by keys, each version once, also after crashes and from a driver that was replaced."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import headrace as hr
from headrace.errors import BatchFailedError, QueryError, SinkError
from headrace.ids import Version
from headrace.runtime.failpoints import break_off
from headrace.testing import assert_same_rows

pytestmark = [pytest.mark.spark, pytest.mark.extra, pytest.mark.slow]
FILES = 4
SCHEMA = "src string, seconds long"


@pytest.fixture
def source(spark: SparkSession, tmp_path: Path) -> str:
    for number in range(FILES):
        rows = spark.range(100).select(
            F.concat(F.lit("u"), F.col("id") % (10 + number)).alias("src"), (F.col("id") * (number + 1)).alias("seconds")
        )
        rows.coalesce(1).write.parquet(str(tmp_path / "in" / str(number)))
    return str(tmp_path / "in" / "*")


def totals(calls: Any) -> Any:
    return calls.groupBy("src").agg(F.sum("seconds").alias("total"), F.count("*").alias("n"))


def stream(spark: SparkSession, source: str) -> hr.Stream:
    return hr.stream(spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(source))


def rows_of(address: str, query: str) -> list[Any]:
    with psycopg.connect(address) as connection:
        return connection.execute(query).fetchall()


def run(stream: Any, sink: Any, checkpoint: Path, mode: str = "update") -> None:
    writer = stream.writeStream.outputMode(mode).foreachBatch(sink).option("checkpointLocation", str(checkpoint))
    writer.trigger(availableNow=True).start().awaitTermination()


def test_results_are_merged_once_whatever_breaks_off(spark: SparkSession, postgres: str, source: str, tmp_path: Path) -> None:
    # A trigger of the database counts how often rows were written.
    with psycopg.connect(postgres) as connection:
        connection.execute("CREATE SCHEMA shop")
        connection.execute("CREATE TABLE shop.totals (src text PRIMARY KEY, total bigint, n bigint, times int DEFAULT 0)")
        connection.execute(
            "CREATE FUNCTION once_more() RETURNS trigger AS $$ BEGIN NEW.times = OLD.times + 1; RETURN NEW; END $$ LANGUAGE plpgsql"
        )
        connection.execute("CREATE TRIGGER again BEFORE UPDATE ON shop.totals FOR EACH ROW EXECUTE FUNCTION once_more()")
    for version, point in enumerate(["manifest-after", "deliver-after", "batch-begin"]):
        with break_off(point, Version(version)), pytest.raises(BatchFailedError):
            run(totals(stream(spark, source)), hr.upsert(postgres, "shop.totals", "src"), tmp_path / "checkpoint")
    run(totals(stream(spark, source)), hr.upsert(postgres, "shop.totals", "src"), tmp_path / "checkpoint")
    wanted = totals(spark.read.schema(SCHEMA).parquet(source))
    assert_same_rows(rows_of(postgres, "SELECT src, total, n FROM shop.totals"), wanted.collect(), columns=wanted.columns)
    # u0 to u9 are in all files: inserted by version 0, updated by each later one, and version 1 was delivered twice.
    assert rows_of(postgres, "SELECT DISTINCT times FROM shop.totals WHERE length(src) = 2") == [(FILES - 1,)]


def test_a_new_query_begins_anew_on_the_same_table(spark: SparkSession, postgres: str, source: str, tmp_path: Path) -> None:
    for name in ("first", "second"):
        rows = totals(stream(spark, source)).filter(f"'{name}' = 'first' or src = 'u1'")
        run(rows, hr.upsert(postgres, "anew", ["src"]), tmp_path / name)
    wanted = totals(spark.read.schema(SCHEMA).parquet(source))
    assert_same_rows(rows_of(postgres, "SELECT * FROM anew"), wanted.collect(), columns=wanted.columns)


def test_complete_mode_replaces_the_table(spark: SparkSession, postgres: str, source: str, tmp_path: Path) -> None:
    # The order of callers changes from batch to batch, and those that are no longer among the first must go.
    query = totals(hr.stream(spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(source)))
    first = query.filter("total % 3 = 0")
    run(first, hr.upsert(postgres, "complete", "src"), tmp_path / "checkpoint", "complete")
    wanted = totals(spark.read.schema(SCHEMA).parquet(source)).filter("total % 3 = 0")
    assert_same_rows(rows_of(postgres, "SELECT * FROM complete"), wanted.collect(), columns=wanted.columns)


def test_columns_of_many_types(spark: SparkSession, postgres: str, source: str, tmp_path: Path) -> None:
    rows = stream(spark, source).filter("src = 'u1' and seconds = 1").select(
        "src",
        F.lit(True).alias("yes"),
        F.lit(2.5).alias("double"),
        F.lit("1.50").cast("decimal(10,2)").alias("price"),
        F.lit("2026-01-01 10:00:00").cast("timestamp").alias("at"),
        F.lit("2026-01-01").cast("date").alias("day"),
        F.lit(b"\x00\x01").alias("bytes"),
        F.lit(None).cast("string").alias('nothing "quoted"'),
    )
    run(rows, hr.upsert(postgres, "kinds", "src"), tmp_path / "checkpoint", "append")
    at = datetime(2026, 1, 1, 10, tzinfo=UTC)
    assert rows_of(postgres, "SELECT * FROM kinds") == [("u1", True, 2.5, Decimal("1.50"), at, at.date(), b"\x00\x01", None)]


def test_mistakes_say_what_to_do(spark: SparkSession, postgres: str, source: str, tmp_path: Path) -> None:
    query = totals(stream(spark, source))
    with pytest.raises(QueryError, match="columns that identify a row"):
        hr.upsert(postgres, "t", [])
    with psycopg.connect(postgres) as connection:
        connection.execute("CREATE TABLE no_key (src text, total bigint, n bigint)")
    secret = f"{postgres} password=very-secret"
    for table, keys, message in [
        ("no_key", "src", r"needs a primary key or unique index"),
        ("x", "nobody", r"keys among the columns src, total, n; found nobody"),
        ("y", "n", r"may have each key once"),
    ]:
        with pytest.raises(SinkError, match=message) as raised:
            run(query, hr.upsert(secret, table, keys), tmp_path / table)
        assert "very-secret" not in str(raised.value)
    with pytest.raises(SinkError, match=r"wanted a name under which versions are noted.*name='...'"):
        hr.upsert(postgres, "z", "id")(spark.range(1), 0)
    hr.upsert(postgres, "named", "id", name="mine")(spark.range(3), 0)
    hr.upsert(postgres, "named", "id", name="mine")(spark.range(9), 0)
    assert len(rows_of(postgres, "SELECT * FROM named")) == 3, "version 0 is there"
    with pytest.raises(SinkError, match="keys that are not null"):
        hr.upsert(postgres, "nulls", "k", name="n")(spark.sql("SELECT CAST(NULL AS INT) AS k"), 0)
