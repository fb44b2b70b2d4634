"""Staged output: tasks write the results of a version to files. After the commit, Spark reads them for the sinks."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from headrace.runtime.border import spark_batches
from headrace.runtime.whereabouts import working_folder
from headrace.spark.worker import freeze_modules
from headrace.state.blocks import open_batches, write_batches
from headrace.state.durable import DurableStore, at_once
from headrace.state.manifest import StagedFile
from headrace.state.working import Working, at_hand

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

    store: DurableStore
    files: tuple[StagedFile, ...]
    columns: tuple[str, ...]
    working: str | None = None
    """The folder of working copies. The process that wrote a file has it there."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        freeze_modules()
        for batch in batches:
            for at in batch.column(0).to_pylist():
                yield from self.read(self.files[at])

    def read(self, file: StagedFile) -> Iterator[pa.RecordBatch]:
        """The rows of a file, in Spark's types and in pieces that Spark takes."""
        working = None if self.working is None else Working(working_folder(self.working))
        key = f"{file.folder}/{file.file}"
        with at_hand(self.store, key, file.bytes, working) as path:
            for rows in open_batches(path, file.bytes, file.crc, self.store.where(key)):
                yield from spark_batches(rows.select(list(self.columns)).replace_schema_metadata(None))


def staged_frame(
    session: SparkSession, store: DurableStore, files: tuple[StagedFile, ...], schema: StructType, working: str | None = None
) -> DataFrame | None:
    """The staged rows as a DataFrame in the kernel's columns; None if there are none."""
    files = tuple(f for f in files if f.rows)
    if not files:
        return None
    reader = StagedReader(store, files, tuple(schema.names), working)
    if sum(f.rows for f in files) <= LOCAL_ROWS and sum(f.bytes for f in files) <= LOCAL_BYTES:
        # A single partition, so that a small batch gives a file sink one small file.
        pieces: dict[int, list[pa.RecordBatch]] = {}
        at_once(store, [partial(_read, reader, at, pieces) for at in range(len(files))])
        read = [piece for at in range(len(files)) for piece in pieces[at]]
        return session.createDataFrame(pa.Table.from_batches(read), schema).coalesce(1)
    return session.range(0, len(files), 1, len(files)).mapInArrow(reader, schema)


def _read(reader: StagedReader, at: int, pieces: dict[int, list[pa.RecordBatch]]) -> None:
    pieces[at] = list(reader.read(reader.files[at]))


def check_staged(store: DurableStore, files: tuple[StagedFile, ...]) -> None:
    """Raise an error that names the first damaged or missing file. Called after a delivery has failed, to find the reason."""
    for file in files:
        key = f"{file.folder}/{file.file}"
        with at_hand(store, key, file.bytes) as path:
            open_batches(path, file.bytes, file.crc, store.where(key))
