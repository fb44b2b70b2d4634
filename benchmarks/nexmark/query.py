"""The program: tables, a query over them, and a writer. It is plain PySpark; the session decides which engine runs it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from benchmarks.nexmark.frames import FRAMES
from benchmarks.nexmark.queries import QUERIES, UPDATE
from benchmarks.nexmark.sql import SQL
from benchmarks.nexmark.tables import streams


def program(spark: SparkSession, params: dict[str, Any]) -> DataFrame:
    """The query ``params["query"]``, in SQL or as a DataFrame."""
    tables = streams(spark, params)
    name = params["query"]
    if params["form"] == "sql" and name in SQL:
        tables.register()
        return spark.sql(SQL[name])
    return FRAMES[name](tables)


def write(writer: Any, params: dict[str, Any], folder: Path) -> Any:
    """Results go to Parquet files. In update mode each batch has its folder."""
    query, output = QUERIES[params["query"]], folder / "output"
    if query.mode == UPDATE:

        def write_batch(rows: DataFrame, batch: int) -> None:
            rows.write.mode("overwrite").parquet(f"{output}/batch={batch}")

        return writer.outputMode("update").foreachBatch(write_batch)
    return writer.outputMode("append").format("parquet").partitionBy(*query.partition_by).option("path", str(output))
