"""Staged output: tasks write the results of a version to files. After the commit, Spark reads them for the sinks."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from headrace.runtime.border import spark_batches
from headrace.spark.worker import freeze_modules
from headrace.state.blocks import open_batches, write_batches
from headrace.state.manifest import StagedFile

LOCAL_ROWS = 20_000
LOCAL_BYTES = 1 << 23
"""The driver itself reads files with no more rows and bytes than this, because starting Python tasks would take longer."""

STAGED_ROWS = 1 << 18
STAGED_BYTES = 1 << 26
"""Results are collected up to this many rows or bytes and written as one piece, because few large pieces are quicker to read."""


def write_staged(path: Path, schema: pa.Schema, results: Iterable[pa.RecordBatch], *, sync: bool) -> tuple[int, int, int]:
    """Write results while they are computed. Returns their number, and the file's length and checksum. No results give no file."""
    rows = 0

    def pieces() -> Iterator[pa.RecordBatch]:
        nonlocal rows
        for piece in _collected(results):
            rows += piece.num_rows
            yield piece

    found = pieces()
    first = next(found, None)
    if first is None:
        return 0, 0, 0
    length, crc = write_batches(path, schema, itertools.chain([first], found), sync=sync)
    return rows, length, crc


def _collected(results: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Join successive small results into larger pieces."""
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for part in results:
        waiting.append(part)
        rows, size = rows + part.num_rows, size + part.nbytes
        if rows >= STAGED_ROWS or size >= STAGED_BYTES:
            yield pa.concat_batches(waiting)
            waiting, rows, size = [], 0, 0
    if waiting:
        yield pa.concat_batches(waiting)


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
                yield from self.read(self.files[at])

    def read(self, file: StagedFile) -> Iterator[pa.RecordBatch]:
        """The rows of a file, in Spark's types and in pieces that Spark takes."""
        for rows in open_batches(Path(self.directory) / file.folder / file.file, file.bytes, file.crc):
            yield from spark_batches(rows.select(list(self.columns)).replace_schema_metadata(None))


def staged_frame(session: SparkSession, directory: Path, files: tuple[StagedFile, ...], schema: StructType) -> DataFrame | None:
    """The staged rows as a DataFrame in the kernel's columns; None if there are none."""
    files = tuple(f for f in files if f.rows)
    if not files:
        return None
    reader = StagedReader(str(directory), files, tuple(schema.names))
    if sum(f.rows for f in files) <= LOCAL_ROWS and sum(f.bytes for f in files) <= LOCAL_BYTES:
        # A single partition, so that a small batch gives a file sink one small file.
        read = [piece for file in files for piece in reader.read(file)]
        return session.createDataFrame(pa.Table.from_batches(read), schema).coalesce(1)
    return session.range(0, len(files), 1, len(files)).mapInArrow(reader, schema)


def check_staged(directory: Path, files: tuple[StagedFile, ...]) -> None:
    """Raise an error that names the first damaged or missing file. Called after a delivery has failed, to find the reason."""
    for file in files:
        open_batches(directory / file.folder / file.file, file.bytes, file.crc)
