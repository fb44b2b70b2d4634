"""Data sources written in Python as sinks: their stream writers get each batch once, with its number."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamWriter, WriterCommitMessage

import headrace as hr

pytestmark = pytest.mark.spark
# Workers need not be able to import the tests.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


@dataclass
class Part(WriterCommitMessage):
    """What a task has written."""

    lines: list[str]


class Journal(DataSource):
    """Writes a file for each batch when it is committed. It has no writer for batches outside of streams."""

    @classmethod
    def name(cls) -> str:
        return "journal"

    def schema(self) -> str:
        return "name string, n long"

    def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamWriter:
        return JournalWriter(self.options["path"], schema.names, overwrite)


class JournalWriter(DataSourceStreamWriter):
    def __init__(self, path: str, names: list[str], overwrite: bool) -> None:
        self.path, self.names, self.overwrite = path, names, overwrite

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return Part([json.dumps(dict(zip(self.names, row, strict=True))) for row in iterator])

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        lines = sorted(line for part in messages if isinstance(part, Part) for line in part.lines)
        Path(self.path, f"{batchId}-{self.overwrite}").write_text("\n".join(lines))


def written(spark: SparkSession, root: Path, mode: str) -> dict[str, str]:
    """What the journal has after two starts of the query, with a file of rows before each."""
    for name in ("in", "out"):
        (root / name).mkdir(parents=True)
    for rows in ([("ada", 5), ("bob", 7)], [("ada", 1), ("cy", 2)]):
        spark.createDataFrame(rows, "name string, n long").coalesce(1).write.mode("append").parquet(str(root / "in"))
        stream: DataFrame = spark.readStream.schema("name string, n long").parquet(str(root / "in"))
        frame = stream.groupBy("name").sum("n") if mode == "complete" else stream.dropDuplicates(["name"])
        writer = frame.writeStream.format("journal").outputMode(mode).option("checkpointLocation", str(root / "c"))
        writer.trigger(availableNow=True).start(str(root / "out")).awaitTermination()
    return {file.name: file.read_text() for file in (root / "out").iterdir() if not file.name.startswith(".")}


@pytest.mark.parametrize("mode", ["append", pytest.param("complete", marks=pytest.mark.extra)])
def test_a_stream_writer_gets_what_it_gets_from_spark(spark: SparkSession, tmp_path: Path, mode: str) -> None:
    spark.dataSource.register(Journal)
    wanted = written(spark, tmp_path / "spark", mode)
    hr.enable(spark)
    try:
        found = written(spark, tmp_path / "ours", mode)
    finally:
        hr.disable(spark)
    assert len(wanted) == 2
    assert found == wanted
