"""Lending: sends blocks of state from the disk of one executor to that of another, through a Spark shuffle.

    old homes     each reads the blocks that contain the moving slots      | to | file | first block | data |
    shuffle       Spark sends them to the borrowers
    new homes     each checks the blocks and adds them to its working copies; missing blocks are fetched from the durable tier

So the durable tier is read only for blocks whose lender is gone. Headrace needs no server for this. Runs that the durable tier does not
have, and copies for peers (``runtime/safety/replicas.py``), are lent as whole files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from headrace.compile.homes import INSTANCE, PARTITIONS_MIN, anchor, at_home
from headrace.errors import CorruptStateError
from headrace.ids import SLOTS, Version
from headrace.logs import logger, set_level, suppressed
from headrace.runtime.fencing import version_of
from headrace.runtime.whereabouts import working_folder
from headrace.spark.executors import Executor
from headrace.state.durable import DurableStore
from headrace.state.layout import Layout
from headrace.state.run import TABLE, RunReader, RunRef
from headrace.state.slots import SlotRanges, clip
from headrace.state.working import Working

ROUND_BYTES = 64_000_000
"""About the most that a borrower gets in one job, because a task holds all of it in memory."""

_log = logger(__name__)

_RUN = [("file", pa.string()), ("bytes", pa.int64()), ("crc", pa.int64())]
_LENT = pa.schema([(INSTANCE, pa.int32()), *_RUN, ("first", pa.int32()), ("data", pa.binary())])
_LENT_SPARK = f"{INSTANCE} int, file string, bytes long, crc long, first int, data binary"
_FETCHED = pa.schema([("fetched", pa.int64()), ("lent", pa.int64()), ("to", pa.int32()), ("lacking", pa.list_(pa.string()))])
_FETCHED_SPARK = "fetched long, lent long, to int, lacking array<string>"


@dataclass(frozen=True)
class Share:
    """An instance's part of one store: the layout, and the references to runs that contain its slots."""

    layout: Layout
    refs: tuple[RunRef, ...]


@dataclass(frozen=True)
class Loan:
    """A part of a run that one executor has and another needs. ``to`` is the borrower's position in the list of those that want state."""

    layout: Layout
    ref: RunRef
    to: int
    whole: bool = False
    """True if all of the file is lent, because the durable store does not have it."""

    @property
    def bytes(self) -> float:
        """The bytes of the part, if the rows of its file are spread evenly over the slots."""
        return self.ref.bytes if self.whole else self.ref.bytes * (self.ref.hi - self.ref.lo) / SLOTS


@dataclass(frozen=True)
class Fetched:
    """Bytes of state that executors did not have: from the durable tier, and lent by other executors."""

    durable: int = 0
    lent: int = 0
    lacking: frozenset[tuple[int, str]] = frozenset()
    """What could not be brought: the position of the executor among those that want state, and the run."""

    @property
    def bytes(self) -> int:
        return self.durable + self.lent


@dataclass(frozen=True)
class Files:
    """Where runs are durable, and the folder of an executor's working copies."""

    runs: DurableStore
    working: str
    log_level: str = ""

    def here(self) -> Working:
        """The working copies of the executor on which this is called."""
        set_level(self.log_level)
        return Working(working_folder(self.working))


@dataclass(frozen=True)
class Sweep:
    """Which working copies an executor may remove: those of versions well before this one that nobody needs."""

    needed: frozenset[str]
    version: Version

    def is_stale(self, file: str) -> bool:
        return file not in self.needed and version_of(file) < self.version - 1


def loans(wanted: Iterable[tuple[Executor, Iterable[Share]]], holders: Iterable[tuple[Executor, SlotRanges]]) -> dict[Executor, list[Loan]]:
    """By lender: what it lends to the executors that want state. ``holders`` have the state of these slots now."""
    found: dict[Executor, list[Loan]] = {}
    holders = list(holders)
    for to, (borrower, shares) in enumerate(wanted):
        for share in shares:
            for lender, slots in holders:
                if lender.id != borrower.id:
                    found.setdefault(lender, []).extend(Loan(share.layout, ref, to) for ref in clip(share.refs, slots))
    return {lender: each for lender, each in found.items() if each}


def rounds(of: Mapping[Executor, list[Loan]]) -> Iterator[dict[Executor, tuple[Loan, ...]]]:
    """Divide loans into rounds, each small enough for the memory of the borrowers."""
    now: dict[Executor, list[Loan]] = {}
    taken: dict[int, float] = {}
    for lender, each in of.items():
        for loan in each:
            size = loan.bytes
            if taken.get(loan.to, 0.0) and taken[loan.to] + size > ROUND_BYTES:
                yield {lender: tuple(each) for lender, each in now.items()}
                now, taken = {}, {}
            now.setdefault(lender, []).append(loan)
            taken[loan.to] = taken.get(loan.to, 0.0) + size
    yield {lender: tuple(each) for lender, each in now.items()}


def have_ready(
    session: SparkSession,
    files: Files,
    wanted: list[tuple[Executor, tuple[Share, ...]]],
    lent: Mapping[Executor, list[Loan]],
    sweep: Sweep | None = None,
) -> Fetched:
    """Bring shares of state to the executors that want them. Returns how much was brought. With ``sweep``, they remove old copies too."""
    there = anchor(session, [executor.location for executor, _ in wanted])
    shares = tuple(each for _, each in wanted)
    if not lent:
        return _sum(there.mapInArrow(Errand(files, shares, sweep), _FETCHED_SPARK))
    total = Fetched()
    portions = list(rounds(lent))
    for at, portion in enumerate(portions):
        lenders = anchor(session, [executor.location for executor in portion])
        sent = lenders.mapInArrow(Lend(files, tuple(portion.values())), _LENT_SPARK)
        routed = sent.repartitionById(max(PARTITIONS_MIN, len(wanted)), F.col(INSTANCE))
        is_last = at == len(portions) - 1
        borrow = Borrow(files, shares if is_last else (), sweep if is_last else None)
        came = _sum(at_home(there, routed, borrow, _FETCHED_SPARK))
        total = Fetched(total.durable + came.durable, total.lent + came.lent, came.lacking)
    return total


def _sum(frame: DataFrame) -> Fetched:
    rows = frame.collect()
    lacking = frozenset((row[2], file) for row in rows for file in row[3])
    return Fetched(sum(row[0] for row in rows), sum(row[1] for row in rows), lacking)


@dataclass(frozen=True)
class Lend:
    """Runs in a task on an executor that has state: reads the blocks that others need from its working copies."""

    files: Files
    loans: tuple[tuple[Loan, ...], ...]
    """Per lender."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for at in batch.column(0).to_pylist():
                for loan in self.loans[at] if at < len(self.loans) else ():
                    reader = RunReader(self.files.runs, loan.layout, self.files.here())
                    # If the file is gone or damaged, the borrower fetches the blocks from the durable tier.
                    with suppressed(_log, f"{loan.ref.file} cannot be lent", CorruptStateError):
                        for first, data in reader.lend(loan.ref, whole=loan.whole):
                            columns = [[loan.to], [loan.ref.file], [loan.ref.bytes], [loan.ref.crc], [first], [data]]
                            yield pa.RecordBatch.from_arrays(
                                [pa.array(c, f.type) for c, f in zip(columns, _LENT, strict=True)], schema=_LENT
                            )


@dataclass(frozen=True)
class Errand:
    """Runs in a task on an executor that needs state: fetches the runs of its instances from the durable tier."""

    files: Files
    shares: tuple[tuple[Share, ...], ...]
    sweep: Sweep | None = None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        working = self.files.here()
        for batch in batches:
            for at in batch.column(0).to_pylist():
                before = working.fetched_bytes
                lacking = self.open(at, working)
                row = {"fetched": working.fetched_bytes - before, "lent": 0, "to": at, "lacking": lacking}
                yield pa.RecordBatch.from_pylist([row], schema=_FETCHED)

    def open(self, at: int, working: Working) -> list[str]:
        """Open the runs of one instance, which fetches the blocks that are missing. Returns the runs that cannot be opened."""
        lacking = []
        for share in self.shares[at] if at < len(self.shares) else ():
            reader = RunReader(self.files.runs, share.layout, working)
            for ref in share.refs:
                # A missing file was merged away meanwhile. A damaged one is reported by the batch that needs it.
                lacking.append(ref.file)
                with suppressed(_log, f"{ref.file} was not fetched ahead", CorruptStateError):
                    reader.open(ref)
                    lacking.pop()
        if self.sweep is not None:
            working.sweep(self.sweep.is_stale)
        return lacking


@dataclass(frozen=True)
class Borrow:
    """Runs in a task on an executor that needs state: stores the blocks that were lent, and fetches those that are missing."""

    files: Files
    shares: tuple[tuple[Share, ...], ...]
    sweep: Sweep | None = None

    def __call__(self, instance: int, rows: pa.Table) -> pa.Table:
        working, lent = self.files.here(), 0
        for batch in rows.to_batches():
            plain = [batch.column(name).to_pylist() for name in ("file", "bytes", "crc", "first")]
            for file, length, crc, first, data in zip(*plain, batch.column("data"), strict=True):
                # Blocks of a missing file, or with a wrong checksum, are ignored. Those that are needed are fetched below.
                with suppressed(_log, f"lent blocks of {file} were refused", CorruptStateError):
                    if first == TABLE:
                        working.accept_table(file, length, crc, data.as_py())
                    else:
                        lent += working.accept(self.files.runs, file, length, crc, first, data.as_buffer())
        lacking = Errand(self.files, self.shares, self.sweep).open(instance, working)
        row = {"fetched": working.fetched_bytes, "lent": lent, "to": instance, "lacking": lacking}
        return pa.Table.from_pylist([row], schema=_FETCHED)
