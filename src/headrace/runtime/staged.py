"""Reading staged output back into Spark, to hand it to a sink."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from headrace.runtime.border import spark_batches
from headrace.runtime.worker import freeze_modules
from headrace.state.blocks import open_arrow
from headrace.state.manifest import StagedFile

LOCAL_ROWS = 20_000
LOCAL_BYTES = 1 << 23
"""Up to so many rows, in files of so many bytes, the driver reads itself: starting Python tasks for them would take longer."""


@dataclass(frozen=True)
class StagedReader:
    """Reads staged files in Spark tasks, one per partition."""

    directory: str
    files: tuple[StagedFile, ...]
    columns: tuple[str, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        freeze_modules()
        for batch in batches:
            for at in batch.column(0).to_pylist():
                yield from spark_batches(self.read(self.files[at]))

    def read(self, file: StagedFile) -> pa.RecordBatch:
        rows = open_arrow(Path(self.directory) / file.folder / file.file, file.bytes, file.crc)
        return rows.select(list(self.columns)).replace_schema_metadata(None)


def staged_frame(session: SparkSession, directory: Path, files: tuple[StagedFile, ...], schema: StructType) -> DataFrame | None:
    """The staged rows as a DataFrame in the kernel's columns; None if there are none."""
    files = tuple(f for f in files if f.rows)
    if not files:
        return None
    reader = StagedReader(str(directory), files, tuple(schema.names))
    if sum(f.rows for f in files) <= LOCAL_ROWS and sum(f.bytes for f in files) <= LOCAL_BYTES:
        # One task, so that a small batch is one small file.
        read = [piece for file in files for piece in spark_batches(reader.read(file))]
        return session.createDataFrame(pa.Table.from_batches(read), schema).coalesce(1)
    return session.range(0, len(files), 1, len(files)).mapInArrow(reader, schema)


def check_staged(directory: Path, files: tuple[StagedFile, ...]) -> None:
    """Raise an error that names the first file that is damaged or gone; for when a delivery has failed and the reason is wanted."""
    for file in files:
        open_arrow(directory / file.folder / file.file, file.bytes, file.crc)
