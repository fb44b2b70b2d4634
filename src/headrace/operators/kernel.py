"""The contract between the engine and a stateful operator.

An operator's kernel is pure: it gets rows and the state of one instance, and returns changed state and results. It is pickled into the
instance task, so it holds plain data only. The engine learns everything it needs from the methods of `Operator`; it never asks which
class an operator is.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import pyarrow as pa

from headrace.control.handover import Facts
from headrace.errors import require
from headrace.ids import SLOTS
from headrace.operators.description import ColumnNames, Json, describe_store
from headrace.operators.store import Store
from headrace.state.layout import hashes
from headrace.state.merge import merge_rows, without_expired
from headrace.state.recreation import Part
from headrace.state.run import Run, RunReader, RunRef, row_range
from headrace.state.slots import SlotRange, SlotRanges, restrict

SCAN_ROWS = 500_000
"""A scan brings about this many state rows into memory at a time."""
ROWS = "n"
"""Input column of rows that were combined before the shuffle: how many rows of the source each one stands for."""


class OutputMode(StrEnum):
    """Spark's output modes."""

    APPEND = "append"
    UPDATE = "update"
    COMPLETE = "complete"


@dataclass(frozen=True)
class View:
    """The state of one instance in one store: its runs, clipped to the instance's slots."""

    reader: RunReader
    refs: list[RunRef]
    ranges: SlotRanges

    def runs(self, sub_min: int | None = None) -> list[Run]:
        """Open the runs, newest first. Runs without rows at or above the sub-key `sub_min` are left out."""
        newest_first = sorted(self.refs, key=lambda ref: -ref.seq)
        return [self.reader.open(ref) for ref in newest_first if sub_min is None or ref.sub_max is None or ref.sub_max >= sub_min]

    def slices(self, sub_min: int | None = None) -> Iterator[list[pa.RecordBatch]]:
        """The rows in hash order, a range of slots at a time: for each range one batch per run, newest run first, not merged."""
        runs = self.runs(sub_min)
        for lo, hi in _cut(self.ranges, max(1, sum(run.rows.num_rows for run in runs) // SCAN_ROWS)):
            yield [run.slice(lo, hi).rows for run in runs if restrict(run.ref, lo, hi) is not None]

    def scan(self, store: Store, *, newer: pa.RecordBatch | None = None, sub_min: int | None = None) -> Iterator[pa.RecordBatch]:
        """The merged state in hash order, a range of slots at a time. `newer` are rows of this batch that are not in a run yet."""
        runs = self.runs(sub_min)
        total = sum(run.rows.num_rows for run in runs) + (newer.num_rows if newer is not None else 0)
        pieces = max(1, total // SCAN_ROWS)
        for lo, hi in _cut(self.ranges, pieces):
            parts = [] if newer is None else [_slice_rows(newer, lo, hi)]
            parts += [run.slice(lo, hi).rows for run in runs if restrict(run.ref, lo, hi) is not None]
            rows = without_expired(merge_rows(parts, store.layout, store.combine), sub_min)
            if rows.num_rows:
                yield rows


@dataclass(frozen=True)
class Moment:
    """The time of a batch, and the output mode."""

    mode: OutputMode
    watermark_ms: int
    """The watermark of the version before. Rows are late if it has passed them."""
    now_ms: int = 0
    """When the batch began, by the clock. It is the same in every attempt."""
    due_ms: int | None = None
    """The watermark by which timers fire after the batch's rows. None: that of the version before."""
    closes_next: bool = False
    """True if ``close`` follows in the same task. Then it alone fires timers of event time: once, as Spark's batch without rows."""

    @property
    def watermark_us(self) -> int:
        return self.watermark_ms * 1000

    @property
    def fires_ms(self) -> int:
        """The watermark by which timers fire after the batch's rows."""
        return self.watermark_ms if self.due_ms is None else self.due_ms


@dataclass
class Applied:
    """What a batch did to an instance."""

    changed: dict[str, pa.RecordBatch] = field(default_factory=dict)
    """Per store: the sorted rows of a new run."""
    emitted: list[pa.RecordBatch] = field(default_factory=list)
    """Results."""
    computed: Iterable[pa.RecordBatch] = ()
    """Further results, computed one by one: together they may be many times larger than rows and state."""
    emits_changed: bool = False
    """True if the changed rows of the main store are the results, and there are no others."""
    keys: int = 0
    """How many keys the batch touched."""
    keys_new: int | None = None
    """How many of these had no state before; None if the operator does not look that up."""
    rows: int = 0
    """How many rows of the source came in."""
    rows_late: int = 0
    """How many of these were dropped because they were late."""

    def results(self) -> Iterator[pa.RecordBatch]:
        """All results, one batch at a time. Can be iterated once."""
        return (rows for rows in itertools.chain(self.emitted, self.computed) if rows.num_rows)


Refs = dict[str, tuple[RunRef, ...]]
"""References to runs, by store."""
Views = dict[str, View]
"""An instance's state, by store."""

MAIN = ""
"""The name of an operator's only store, and of the main one among several."""


class Operator(ABC):
    """A stateful operator's kernel.

    The defaults suit an operator that gives results only with its rows: it has no windows, and the watermark makes nothing fall due.
    """

    @property
    @abstractmethod
    def stores(self) -> dict[str, Store]:
        """The parts of its state, by name."""

    @property
    @abstractmethod
    def input_schema(self) -> pa.Schema:
        """The columns of the rows that `apply` gets."""

    @property
    @abstractmethod
    def output_schema(self) -> pa.Schema:
        """The columns of its results."""

    @abstractmethod
    def apply(self, rows: pa.RecordBatch, views: Views, moment: Moment) -> Applied:
        """Process the rows of a batch."""

    def close(self, views: Views, moment: Moment, until_ms: int) -> Applied:
        """Process what falls due while the watermark moves from `moment.watermark_ms` to `until_ms`."""
        return Applied()

    def emits_at_once(self, mode: OutputMode) -> bool:
        """True if `apply` may give results; False if results only come from `close`."""
        return True

    @property
    def runs_user_code(self) -> bool:
        """True if the kernel calls functions of the user. These must never run in the driver."""
        return False

    def close_rows_max(self, due: Refs, moment: Moment, until_ms: int) -> int:
        """The most rows that `close` gives, or holds in memory, if only the runs `due` hold rows that fall due."""
        return sum(ref.rows for refs in due.values() for ref in refs)

    def handover(self, mode: OutputMode) -> Facts:
        """What the choice of a hand-over protocol depends on."""
        return Facts(None, self.emits_at_once(mode))

    def looks_back_us(self, mode: OutputMode) -> int | None:
        """How much older than a result its rows can be, in event time; None if there is no bound.

        If there is one, the sub-keys of all stores are event times or panes, and the lifetimes of stores end with the watermark.
        """
        return None

    def bounded(self, part: Part) -> Operator:
        """The kernel for one task. In a window recreation each side computes only some of the windows."""
        require(part.starts_us == (None, None), "only windows are recreated")
        return self

    def describe(self, names: Mapping[str, ColumnNames]) -> dict[str, Json]:
        """Each store as JSON, for reading the state without the program that wrote it. `names` are the user's names, by store."""
        return {name: describe_store(store, names[name]) for name, store in self.stores.items()}


class OneStore(Operator):
    """Base of operators with a single store."""

    @property
    @abstractmethod
    def store(self) -> Store: ...

    @property
    def stores(self) -> dict[str, Store]:
        return {MAIN: self.store}


def _cut(ranges: SlotRanges, pieces: int) -> Iterator[SlotRange]:
    width = max(1, SLOTS // pieces)
    for lo, hi in ranges:
        for at in range(math.ceil((hi - lo) / width)):
            yield lo + at * width, min(lo + (at + 1) * width, hi)


def _slice_rows(rows: pa.RecordBatch, lo: float, hi: float) -> pa.RecordBatch:
    begin, end = row_range(hashes(rows), lo, hi)
    return rows.slice(begin, end - begin)
