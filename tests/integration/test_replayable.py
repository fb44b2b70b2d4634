"""What a streaming DataFrame is told before it starts: sources, expressions and static inputs that may give other rows the next time."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, SimpleDataSourceStreamReader
from pyspark.sql.types import StructType

from headrace.spark.reread import nondeterministic_parts, static_inputs, unreplayable_sources
from tests.integration.test_reread import SCHEMA, files, parquet

pytestmark = pytest.mark.spark


def test_sources_that_cannot_give_rows_again(spark: SparkSession, tmp_path: Path) -> None:
    cleaned = files(spark, tmp_path / "a", CLEANSOURCE="delete")
    archived = files(spark, tmp_path / "b", cleanSource="Archive", sourceArchiveDir=str(tmp_path / "c"))
    socket = spark.readStream.format("socket").option("host", "127.0.0.1").option("port", 9).load()
    assert [why.split(" ", 1)[1] for why in unreplayable_sources(cleaned.union(archived))] == [
        "deletes files that were processed: option cleanSource is 'delete'",
        "archives files that were processed: option cleanSource is 'archive'",
    ]
    assert unreplayable_sources(socket) == ["the socket source discards rows that were processed"]
    rate = spark.readStream.format("rate").load()
    assert unreplayable_sources(rate.union(spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load())) == []
    assert unreplayable_sources(files(spark, tmp_path / "a", cleanSource="OFF")) == []


def test_a_python_source_whose_earlier_batches_spark_cannot_read(spark: SparkSession) -> None:
    class Simple(DataSource):
        @classmethod
        def name(cls) -> str:
            return "reread_simple"

        def schema(self) -> str:
            return "id long"

        def simpleStreamReader(self, schema: StructType) -> SimpleDataSourceStreamReader:
            raise NotImplementedError

    spark.dataSource.register(Simple)
    assert unreplayable_sources(spark.readStream.format("reread_simple").load()) == [
        "the Python data source 'reread_simple' has a simpleStreamReader, of which Spark can read only the last batch"
    ]


def test_expressions_that_may_differ(spark: SparkSession, tmp_path: Path) -> None:
    rows = files(spark, tmp_path / "in")
    twice = F.udf(lambda x: 2 * x, "long")
    fixed = [
        F.current_timestamp(),
        F.current_date(),
        F.localtimestamp(),
        F.unix_timestamp(),
        F.input_file_name(),
        twice("id"),
        F.col("_metadata"),
    ]
    assert (
        nondeterministic_parts(rows.withColumns({f"c{at}": column for at, column in enumerate(fixed)}).where("_metadata.file_size > 0"))
        == []
    )
    by_task = "depends on how Spark divides the rows into tasks"
    random = "is random: Spark takes a new seed for every batch, also if it was given one"
    clock = "reads the clock; use current_timestamp(), which is the time of the batch"
    expected = [
        (F.rand(5) + 1, "rand(5L)", random),
        (F.expr("upper(uuid())"), "uuid()", random),
        (F.monotonically_increasing_id(), "monotonically_increasing_id()", by_task),
        (F.spark_partition_id(), "SPARK_PARTITION_ID()", by_task),
        (F.expr("input_file_block_start()"), "input_file_block_start()", by_task),
        (F.expr("now()"), "now()", clock),
        (F.expr("current_time()"), "current_time(6)", clock),
        (twice.asNondeterministic()("id"), "<lambda>(id)", "is not deterministic"),
    ]
    for column, name, why in expected:
        assert nondeterministic_parts(rows.select("id", column.alias("x")).filter("id > 0")) == [f"{name} {why}"]
    spark.range(3).createOrReplaceTempView("reread_static")
    rows.createOrReplaceTempView("reread_stream")
    inside = spark.sql("select * from reread_stream where id > (select max(id) from reread_static where now() > current_timestamp())")
    assert nondeterministic_parts(inside) == [
        f"now() {clock}",
        "current_timestamp() reads the clock: in a subquery Spark does not use the time of the batch",
    ]
    assert nondeterministic_parts(rows.join(spark.range(9).sample(0.5), "id")) == [
        "sample(...) of a static DataFrame takes other rows after a restart, unless it has a seed"
    ]


def test_static_inputs_that_are_read_for_every_batch(spark: SparkSession, tmp_path: Path) -> None:
    parquet(tmp_path / "static", 0)
    rows, static = files(spark, tmp_path / "in"), spark.read.schema(SCHEMA).parquet(str(tmp_path / "static"))
    assert static_inputs(rows.join(spark.range(5), "id")) == []
    assert static_inputs(rows.join(static, "id").join(spark.range(5), "id")) == ["LogicalRelation with columns id, name, ts"]
    static.createOrReplaceTempView("reread_static")
    rows.createOrReplaceTempView("reread_stream")
    assert len(static_inputs(spark.sql("select * from reread_stream where id in (select id from reread_static)"))) == 1
