"""Ships runs from the executors that have them to the durable store, by Spark tasks on those executors.

Each task checks a run block by block, writes it under a temporary name, syncs it and renames it. So a run in the durable store is complete
and intact, and shipping it twice does no harm.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from headrace.compile.homes import anchor
from headrace.errors import CorruptStateError
from headrace.logs import logger, suppressed
from headrace.runtime.lending import Files
from headrace.spark.executors import Executor
from headrace.state.blocks import Blocks
from headrace.state.disk import disk_errors, removed_on_failure
from headrace.state.run import RunRef

ROUND_BYTES = 64_000_000
"""About the most that an executor ships in one job, so that the tasks of a batch do not wait long for its cores."""
_SHIPPED = pa.schema([("file", pa.string())])
_SHIPPED_SPARK = "file string"
_log = logger(__name__)


@dataclass(frozen=True)
class Ship:
    """Runs in a task on an executor that has runs: copies them to the durable store. Yields the names of those that are there now."""

    files: Files
    loads: tuple[tuple[RunRef, ...], ...]
    """Per executor."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for at in batch.column(0).to_pylist():
                names = self.ship(self.loads[at] if at < len(self.loads) else ())
                yield pa.RecordBatch.from_arrays([pa.array(names, pa.string())], schema=_SHIPPED)

    def ship(self, refs: Sequence[RunRef]) -> list[str]:
        """Ship these runs. Returns the names of those that are in the durable store now."""
        here, shipped = self.files.here(), []
        for ref in refs:
            # A damaged or missing run is not shipped. The batch that needs it repairs it.
            with suppressed(_log, f"{ref.file} cannot be shipped", CorruptStateError):
                target = Path(self.files.runs) / ref.file
                if not target.exists():
                    _copy(here.path(ref.file), target, ref)
                shipped.append(ref.file)
        return shipped


def _copy(source: Path, target: Path, ref: RunRef) -> None:
    blocks = Blocks(source, ref.bytes, ref.crc)
    blocks.need(0, blocks.data_bytes)
    temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}.tmp")
    with disk_errors(target, "to ship state to the durable store"), removed_on_failure(temporary):
        with open(temporary, "wb") as file:
            file.write(memoryview(blocks.mapped))
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(target)


def ship(session: SparkSession, files: Files, loads: Mapping[Executor, Sequence[RunRef]]) -> set[str]:
    """Let executors ship runs, one round. Returns the names of those that are in the durable store now."""
    there = anchor(session, [each.location for each in loads])
    shipped = there.mapInArrow(Ship(files, tuple(tuple(each) for each in loads.values())), _SHIPPED_SPARK)
    return {row[0] for row in shipped.collect()}


def rounds(loads: Mapping[Executor, Sequence[RunRef]]) -> Iterator[dict[Executor, list[RunRef]]]:
    """Divide what executors ship into rounds of bounded size. The largest runs of an executor go first."""
    waiting = {executor: sorted(refs, key=lambda ref: -ref.bytes) for executor, refs in loads.items() if refs}
    while waiting:
        now: dict[Executor, list[RunRef]] = {}
        for executor, refs in waiting.items():
            taken, size = 0, 0
            while taken < len(refs) and (taken == 0 or size + refs[taken].bytes <= ROUND_BYTES):
                size, taken = size + refs[taken].bytes, taken + 1
            now[executor], waiting[executor] = refs[:taken], refs[taken:]
        yield now
        waiting = {executor: refs for executor, refs in waiting.items() if refs}
