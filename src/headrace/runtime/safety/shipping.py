"""Ships state from the executors that have it to the durable store, by Spark tasks on those executors.

A *parcel* is what one executor ships at once: runs as they are, or the delta of a unit, for which the task merges the unit's new runs into
one. Every run is checked block by block before it is shipped, and appears in the durable store whole or not at all. So shipping twice does
no harm.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from headrace.compile.homes import anchor
from headrace.control.availability.units import UnitId
from headrace.errors import CorruptStateError
from headrace.ids import SLOTS
from headrace.logs import logger, suppressed
from headrace.operators.store import Store
from headrace.runtime.lending import Files
from headrace.spark.executors import Executor
from headrace.state.blocks import Blocks
from headrace.state.delta import merged_delta
from headrace.state.durable import DurableStore
from headrace.state.layout import hashes
from headrace.state.run import RunReader, RunRef, row_range, write_run
from headrace.state.slots import SlotRanges
from headrace.state.working import Working

ROUND_BYTES = 16_000_000
"""About the most that an executor ships in one job, so that the tasks of a batch do not wait long for its cores."""
_SHIPPED = pa.schema([("name", pa.string()), ("refs", pa.string()), ("bytes", pa.int64())])
_SHIPPED_SPARK = "name string, refs string, bytes long"
_log = logger(__name__)


@dataclass(frozen=True)
class Delta:
    """How the new runs of a unit become one."""

    file: str
    """The name of the merged run, to which each attempt adds a mark of its own."""
    store: Store
    ranges: SlotRanges
    """The slots of the unit."""
    expired_below: int | None = None


@dataclass(frozen=True)
class Parcel:
    """What one executor ships at once."""

    unit: UnitId
    refs: tuple[RunRef, ...]
    delta: Delta | None = None
    """Set if the runs are merged; otherwise they are shipped as they are."""

    @property
    def name(self) -> str:
        """The run that is to arrive. Parcels of the same name are the same."""
        return self.refs[0].file if self.delta is None else self.delta.file

    @property
    def bytes(self) -> int:
        return sum({ref.file: ref.bytes for ref in self.refs}.values())


@dataclass
class Shipped:
    """What has arrived in the durable store."""

    refs: dict[str, tuple[RunRef, ...]] = field(default_factory=dict)
    """By name of a parcel that has arrived: references to its runs."""
    bytes: int = 0
    """Bytes that were written. Runs that were there already do not count."""

    def add(self, name: str, refs: Iterable[RunRef], length: int) -> None:
        self.refs[name] = tuple(refs)
        self.bytes += length


@dataclass(frozen=True)
class Ship:
    """Runs in a task on an executor that has runs: ships its parcels. Yields what is in the durable store now."""

    files: Files
    loads: tuple[tuple[Parcel, ...], ...]
    """Per executor."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for at in batch.column(0).to_pylist():
                for name, refs, length in self.ship(self.loads[at] if at < len(self.loads) else ()):
                    text = json.dumps([ref.to_json() for ref in refs])
                    yield pa.RecordBatch.from_arrays([pa.array([name]), pa.array([text]), pa.array([length])], schema=_SHIPPED)

    def ship(self, parcels: Sequence[Parcel]) -> Iterator[tuple[str, tuple[RunRef, ...], int]]:
        """Ship these parcels. Yields the name of each one that has arrived, its references, and the bytes written."""
        here, store = self.files.here(), self.files.runs
        for parcel in parcels:
            # A damaged or missing run is not shipped. The batch that needs it repairs it.
            with suppressed(_log, f"{parcel.unit} cannot be shipped", CorruptStateError):
                if parcel.delta is None:
                    refs, length = parcel.refs, sum(_put(here.path(ref.file), ref, store) for ref in _files(parcel.refs))
                else:
                    refs, length = self._merged(parcel, parcel.delta, here, store)
                yield parcel.name, refs, length

    def _merged(self, parcel: Parcel, delta: Delta, here: Working, store: DurableStore) -> tuple[tuple[RunRef, ...], int]:
        reader = RunReader(self.files.runs, delta.store.layout, here)
        rows = merged_delta(parcel.refs, delta.ranges, delta.store.layout, reader, delta.store.combine, delta.expired_below)
        if not rows.num_rows:
            return (), 0
        file = f"{delta.file}-{uuid.uuid4().hex[:8]}.arrow"
        local = here.make_folder() / f".{file}.tmp"
        seq = max(ref.seq for ref in parcel.refs)
        try:
            ref = write_run(local.parent, local.name, rows, delta.store.layout, seq=seq, lo=0, hi=SLOTS, sync=False)
            ref = replace(ref, file=file)
            length = _put(local, ref, store)
        finally:
            local.unlink(missing_ok=True)
        counts = ((lo, hi, row_range(hashes(rows), lo, hi)) for lo, hi in delta.ranges)
        return tuple(replace(ref, lo=lo, hi=hi, rows=end - begin) for lo, hi, (begin, end) in counts if end > begin), length


def _files(refs: Sequence[RunRef]) -> list[RunRef]:
    """One reference per file."""
    return list({ref.file: ref for ref in refs}.values())


def _put(source: Path, ref: RunRef, store: DurableStore) -> int:
    """Put a run into the durable store; returns the bytes written, 0 if it was there already."""
    if store.size(ref.file) == ref.bytes:
        return 0
    blocks = Blocks(source, ref.bytes, ref.crc)
    blocks.need(0, blocks.data_bytes)
    store.put(ref.file, memoryview(blocks.mapped))
    return ref.bytes


def ship(session: SparkSession, files: Files, loads: Mapping[Executor, Sequence[Parcel]], shipped: Shipped) -> None:
    """Let executors ship parcels, one round. Adds what is in the durable store now to ``shipped``."""
    there = anchor(session, [each.location for each in loads])
    arrived = there.mapInArrow(Ship(files, tuple(tuple(each) for each in loads.values())), _SHIPPED_SPARK)
    for name, refs, length in arrived.collect():
        shipped.add(name, [RunRef.from_json(ref) for ref in json.loads(refs)], length)


def rounds(loads: Mapping[Executor, Sequence[Parcel]], bytes_max: int = ROUND_BYTES) -> Iterator[dict[Executor, list[Parcel]]]:
    """Divide what executors ship into rounds of bounded size. Each executor ships its parcels in the order that is given."""
    waiting = {executor: list(parcels) for executor, parcels in loads.items() if parcels}
    while waiting:
        now: dict[Executor, list[Parcel]] = {}
        for executor, parcels in waiting.items():
            taken, size = 0, 0
            while taken < len(parcels) and (taken == 0 or size + parcels[taken].bytes <= bytes_max):
                size, taken = size + parcels[taken].bytes, taken + 1
            now[executor], waiting[executor] = parcels[:taken], parcels[taken:]
        yield now
        waiting = {executor: parcels for executor, parcels in waiting.items() if parcels}
