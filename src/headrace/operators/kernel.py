"""What the engine asks of a stateful operator, and what the operator may ask of the engine.

An operator is pure: rows and the state of one instance in, changed state and results out. It is pickled into the instance task, so it
holds plain data only.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol, cast, runtime_checkable

import pyarrow as pa

from headrace.ids import SLOTS
from headrace.state.layout import Combine, Indices, Layout, hashes
from headrace.state.merge import merge_rows, without_expired
from headrace.state.run import Run, RunReader, RunRef, row_range
from headrace.state.slots import SlotRange, SlotRanges, restrict

SCAN_ROWS = 500_000
"""About how many state rows a scan brings into memory at a time."""


class OutputMode(StrEnum):
    APPEND = "append"
    UPDATE = "update"
    COMPLETE = "complete"


@dataclass(frozen=True)
class View:
    """The state of one instance: its runs, newest first, clipped to its slots."""

    reader: RunReader
    refs: list[RunRef]
    ranges: SlotRanges

    def runs(self, sub_min: int | None = None) -> list[Run]:
        """Open runs, newest first; those with nothing at or above ``sub_min`` are left out."""
        newest_first = sorted(self.refs, key=lambda ref: -ref.seq)
        return [self.reader.open(ref) for ref in newest_first if sub_min is None or ref.sub_max is None or ref.sub_max >= sub_min]

    def slices(self, sub_min: int | None = None) -> Iterator[list[pa.RecordBatch]]:
        """The runs' rows, newest run first, not merged; piece by piece in hash order."""
        runs = self.runs(sub_min)
        for lo, hi in _cut(self.ranges, max(1, sum(run.rows.num_rows for run in runs) // SCAN_ROWS)):
            yield [run.slice(lo, hi).rows for run in runs if restrict(run.ref, lo, hi) is not None]

    def scan(
        self, layout: Layout, combine: Combine, *, newer: pa.RecordBatch | None = None, sub_min: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The merged state in hash order, piece by piece; ``newer`` are rows of this batch, not yet in a run."""
        runs = self.runs(sub_min)
        total = sum(run.rows.num_rows for run in runs) + (newer.num_rows if newer is not None else 0)
        pieces = max(1, total // SCAN_ROWS)
        for lo, hi in _cut(self.ranges, pieces):
            parts = [] if newer is None else [_slice_rows(newer, lo, hi)]
            parts += [run.slice(lo, hi).rows for run in runs if restrict(run.ref, lo, hi) is not None]
            rows = without_expired(merge_rows(parts, layout, combine), sub_min)
            if rows.num_rows:
                yield rows


@dataclass(frozen=True)
class Moment:
    """Where in event time a batch stands."""

    mode: OutputMode
    watermark_ms: int
    """Rows are late against this: the watermark of the version before."""
    now_ms: int = 0
    """When the batch began, by the clock; the same in every attempt."""

    @property
    def watermark_us(self) -> int:
        return self.watermark_ms * 1000


@dataclass
class Applied:
    """What a batch did to an instance."""

    changed: dict[str, pa.RecordBatch] = field(default_factory=dict)
    """Per store: sorted rows for a new run."""
    emitted: list[pa.RecordBatch] = field(default_factory=list)
    computed: Iterable[pa.RecordBatch] = ()
    """Further results, each computed when it is asked for: all together they may be many times larger than rows and state."""
    emits_changed: bool = False
    """The changed rows of the main store are themselves the output; nothing else is."""
    keys: int = 0
    keys_new: int | None = None
    """Keys that had no state before; None where that is not looked up."""
    rows: int = 0
    rows_late: int = 0

    def results(self) -> Iterator[pa.RecordBatch]:
        """What the operator gives, piece by piece; to be gone through once."""
        return (rows for rows in itertools.chain(self.emitted, self.computed) if rows.num_rows)


class Store(Protocol):
    """A part of an operator's state with a layout of its own."""

    @property
    def layout(self) -> Layout: ...

    def combine(self, columns: list[pa.Array], starts: Indices) -> list[pa.Array]: ...

    def is_due(self, ref: RunRef, after_ms: int, until_ms: int) -> bool:
        """Whether a run may hold rows of results that fall due between the two watermarks."""
        ...

    def live_from(self, watermark_ms: int) -> int | None:
        """Sub-keys below this are gone at that watermark; None: nothing ever expires."""
        ...


@runtime_checkable
class Expiring(Protocol):
    """A store whose rows expire by another rule than that of sub-keys. Older rows of a key must expire no later than newer ones."""

    def unexpired(self, rows: pa.RecordBatch, watermark_ms: int, now_ms: int) -> pa.RecordBatch: ...


Refs = dict[str, tuple[RunRef, ...]]
"""Runs by the names of stores."""
Views = dict[str, View]
"""An instance's state by the names of its stores."""

MAIN = ""
"""The store of an operator that has only one is the operator itself, and needs no name."""


def store_id(op: str, store: str) -> str:
    """What a manifest calls a store: an operator's only one has the operator's name."""
    return op if store == MAIN else f"{op}.{store}"


class Operator(Protocol):
    """A stateful operator's kernel."""

    @property
    def stores(self) -> dict[str, Store]: ...

    @property
    def input_schema(self) -> pa.Schema:
        """The columns that the kernel is given."""
        ...

    @property
    def output_schema(self) -> pa.Schema: ...

    def emits_at_once(self, mode: OutputMode) -> bool:
        """Whether rows may give results before the watermark moves."""
        ...

    def apply(self, rows: pa.RecordBatch, views: Views, moment: Moment) -> Applied: ...

    def close(self, views: Views, moment: Moment, until_ms: int) -> Applied:
        """What falls due when the watermark goes from ``moment.watermark_ms`` to ``until_ms``."""
        ...

    @property
    def runs_user_code(self) -> bool:
        """Whether the kernel calls functions of the user, which must never run in the driver."""
        ...

    def close_rows_max(self, due: Refs, moment: Moment, until_ms: int) -> int:
        """The most rows that ``close`` gives, or has in memory at once, if these runs (by store) are all that may fall due."""
        ...


class ClosesRowByRow:
    """For operators whose ``close`` gives at most one row for each row of state, and that call no user's code."""

    @property
    def runs_user_code(self) -> bool:
        return False

    def close_rows_max(self, due: Refs, moment: Moment, until_ms: int) -> int:
        return sum(ref.rows for refs in due.values() for ref in refs)


class OneStore(ClosesRowByRow):
    """For operators that are their own and only store."""

    @property
    def stores(self) -> dict[str, Store]:
        return {MAIN: cast(Store, self)}


def _cut(ranges: SlotRanges, pieces: int) -> Iterator[SlotRange]:
    width = max(1, SLOTS // pieces)
    for lo, hi in ranges:
        for at in range(math.ceil((hi - lo) / width)):
            yield lo + at * width, min(lo + (at + 1) * width, hi)


def _slice_rows(rows: pa.RecordBatch, lo: float, hi: float) -> pa.RecordBatch:
    begin, end = row_range(hashes(rows), lo, hi)
    return rows.slice(begin, end - begin)
