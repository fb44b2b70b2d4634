"""Writes the state of a checkpoint to Parquet, so that any tool can read it. Needs no Spark, and the query may be running."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.errors import StorageError
from headrace.ids import StoreId, Version
from headrace.runtime.checkpoint import Checkpoint
from headrace.runtime.inspection import pinned, state_rows, state_schema
from headrace.state.disk import disk_errors
from headrace.state.manifest import Manifest

ABOUT = "_export.json"
"""The file that says what was exported."""


@dataclass(frozen=True)
class Exported:
    """A store that was written."""

    store: StoreId
    folder: Path
    rows: int


def export(checkpoint: Checkpoint, folder: Path, version: Version | None = None) -> tuple[Version, list[Exported]]:
    """Write the merged rows of all stores of a version, by default the newest: a folder for each store, with the user's columns."""
    with disk_errors(folder, "a new or empty folder for the exported state"):
        if folder.exists() and any(folder.iterdir()):
            raise StorageError(path=str(folder), wanted="a new or empty folder", found="files", hint="name another folder")
        with pinned(checkpoint, version) as manifest:
            done = [_written(checkpoint, manifest, store, folder / str(store)) for store in manifest.stores]
            about = {
                "checkpoint": checkpoint.location,
                "version": manifest.version,
                "watermark_ms": manifest.watermark_ms if manifest.watermark_nodes_ms else None,
                "offsets": manifest.offsets,
                "stores": {str(each.store): {"rows": each.rows} for each in done},
            }
            (folder / ABOUT).write_text(json.dumps(about, indent=2))
            return manifest.version, done


def _written(checkpoint: Checkpoint, manifest: Manifest, store: StoreId, folder: Path) -> Exported:
    folder.mkdir(parents=True)
    schema = state_schema(checkpoint, store)
    rows = 0
    with pq.ParquetWriter(folder / "state.parquet", schema) as writer:
        for part in _renamed(state_rows(checkpoint, manifest, store), schema):
            writer.write_batch(part)
            rows += part.num_rows
    return Exported(store, folder, rows)


def _renamed(parts: Iterator[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    return (pa.RecordBatch.from_arrays(part.columns, schema=schema) for part in parts)
