"""State from one executor's disk to another's: who had it lends it to who will have it.

    old homes     each lends the blocks that hold the slots that leave      | to | file | first block | data |
    shuffle       Spark's own, by the borrower
    new homes     each checks the blocks, and puts them into its copies; what did not come is fetched from the durable tier

The durable tier is read by nobody but those whose lender is gone. There is no server of ours: Spark moves the blocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from headrace.compile.homes import INSTANCE, PARTITIONS_MIN, anchor, at_home
from headrace.errors import CorruptStateError
from headrace.ids import SLOTS
from headrace.logs import logger, set_level, suppressed
from headrace.runtime.whereabouts import working_folder
from headrace.spark.executors import Executor
from headrace.state.layout import Layout
from headrace.state.run import RunReader, RunRef
from headrace.state.slots import SlotRanges, clip
from headrace.state.working import Working

ROUND_BYTES = 64_000_000
"""About what a borrower is lent in one job: a task has it in memory all at once."""

_log = logger(__name__)

_RUN = [("file", pa.string()), ("bytes", pa.int64()), ("crc", pa.int64())]
_LENT = pa.schema([(INSTANCE, pa.int32()), *_RUN, ("first", pa.int32()), ("data", pa.binary())])
_LENT_SPARK = f"{INSTANCE} int, file string, bytes long, crc long, first int, data binary"
_FETCHED = pa.schema([("fetched", pa.int64()), ("lent", pa.int64())])
_FETCHED_SPARK = "fetched long, lent long"


@dataclass(frozen=True)
class Share:
    """An instance's part of one store: the layout of its runs, and those of them that hold its slots."""

    layout: Layout
    refs: tuple[RunRef, ...]


@dataclass(frozen=True)
class Loan:
    """A part of a run that one executor has and another, the one at this place of a list, will need."""

    layout: Layout
    ref: RunRef
    to: int


@dataclass(frozen=True)
class Fetched:
    """Bytes of state that an executor did not have."""

    durable: int = 0
    lent: int = 0

    @property
    def bytes(self) -> int:
        return self.durable + self.lent


@dataclass(frozen=True)
class Files:
    """Where runs lie, and where an executor keeps its copies of them."""

    runs: str
    working: str
    log_level: str = ""

    def here(self) -> Working:
        set_level(self.log_level)
        return Working(working_folder(self.working))


def loans(
    wanted: Iterable[tuple[Executor, Iterable[Share]]], holders: Iterable[tuple[Executor, SlotRanges]]
) -> dict[Executor, list[Loan]]:
    """Who lends what to whom, when the first of these hold the state that the others will need."""
    found: dict[Executor, list[Loan]] = {}
    holders = list(holders)
    for to, (borrower, shares) in enumerate(wanted):
        for share in shares:
            for lender, slots in holders:
                if lender.id != borrower.id:
                    found.setdefault(lender, []).extend(Loan(share.layout, ref, to) for ref in clip(share.refs, slots))
    return {lender: each for lender, each in found.items() if each}


def rounds(of: Mapping[Executor, list[Loan]]) -> Iterator[dict[Executor, tuple[Loan, ...]]]:
    """Loans in portions that borrowers can take at once."""
    now: dict[Executor, list[Loan]] = {}
    taken: dict[int, float] = {}
    for lender, each in of.items():
        for loan in each:
            size = _bytes(loan.ref)
            if taken.get(loan.to, 0.0) and taken[loan.to] + size > ROUND_BYTES:
                yield {lender: tuple(each) for lender, each in now.items()}
                now, taken = {}, {}
            now.setdefault(lender, []).append(loan)
            taken[loan.to] = taken.get(loan.to, 0.0) + size
    yield {lender: tuple(each) for lender, each in now.items()}


def _bytes(ref: RunRef) -> float:
    """What a reference stands for, if a file's rows are evenly spread over the slots."""
    return ref.bytes * (ref.hi - ref.lo) / SLOTS


def have_ready(
    session: SparkSession, files: Files, wanted: list[tuple[Executor, tuple[Share, ...]]], lent: Mapping[Executor, list[Loan]]
) -> Fetched:
    """Bring shares to the executors that want them."""
    there = anchor(session, [executor.location for executor, _ in wanted])
    shares = tuple(each for _, each in wanted)
    if not lent:
        return _sum(there.mapInArrow(Errand(files, shares), _FETCHED_SPARK))
    total = Fetched()
    portions = list(rounds(lent))
    for at, portion in enumerate(portions):
        lenders = anchor(session, [executor.location for executor in portion])
        sent = lenders.mapInArrow(Lend(files, tuple(portion.values())), _LENT_SPARK)
        routed = sent.repartitionById(max(PARTITIONS_MIN, len(wanted)), F.col(INSTANCE))
        borrow = Borrow(files, shares if at == len(portions) - 1 else ())
        came = _sum(at_home(there, routed, borrow, _FETCHED_SPARK))
        total = Fetched(total.durable + came.durable, total.lent + came.lent)
    return total


def _sum(frame: DataFrame) -> Fetched:
    rows = frame.collect()
    return Fetched(sum(row[0] for row in rows), sum(row[1] for row in rows))


@dataclass(frozen=True)
class Lend:
    """In a task on an executor that has state: the blocks of its copies that others will need."""

    files: Files
    loans: tuple[tuple[Loan, ...], ...]
    """Per lender."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for at in batch.column(0).to_pylist():
                for loan in self.loans[at] if at < len(self.loans) else ():
                    reader = RunReader(Path(self.files.runs), loan.layout, self.files.here())
                    # What cannot be lent, because the file is gone or damaged, is the borrower's to look for.
                    with suppressed(_log, f"{loan.ref.file} cannot be lent", CorruptStateError):
                        for first, data in reader.lend(loan.ref):
                            columns = [[loan.to], [loan.ref.file], [loan.ref.bytes], [loan.ref.crc], [first], [data]]
                            yield pa.RecordBatch.from_arrays(
                                [pa.array(c, f.type) for c, f in zip(columns, _LENT, strict=True)], schema=_LENT
                            )


@dataclass(frozen=True)
class Errand:
    """In a task on the executor that is to have them: fetches the runs of the instances it is given from the durable tier."""

    files: Files
    shares: tuple[tuple[Share, ...], ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        working = self.files.here()
        for batch in batches:
            for at in batch.column(0).to_pylist():
                self.open(at, working)
        yield pa.RecordBatch.from_pylist([{"fetched": working.fetched_bytes, "lent": 0}], schema=_FETCHED)

    def open(self, at: int, working: Working) -> None:
        for share in self.shares[at] if at < len(self.shares) else ():
            reader = RunReader(Path(self.files.runs), share.layout, working)
            for ref in share.refs:
                # A file that is gone was merged away meanwhile; one that is damaged will be named by whoever needs it.
                with suppressed(_log, f"{ref.file} was not fetched ahead", CorruptStateError):
                    reader.open(ref)


@dataclass(frozen=True)
class Borrow:
    """In a task on the executor that is to have them: takes the blocks that were lent, and fetches what is missing then."""

    files: Files
    shares: tuple[tuple[Share, ...], ...]

    def __call__(self, instance: int, rows: pa.Table) -> pa.Table:
        working, lent = self.files.here(), 0
        for batch in rows.to_batches():
            plain = [batch.column(name).to_pylist() for name in ("file", "bytes", "crc", "first")]
            for file, length, crc, first, data in zip(*plain, batch.column("data"), strict=True):
                # Blocks of a file that is gone, or that were damaged on the way, do not count; those that matter are fetched below.
                with suppressed(_log, f"lent blocks of {file} were refused", CorruptStateError):
                    lent += working.accept(Path(self.files.runs) / file, length, crc, first, data.as_buffer())
        Errand(self.files, self.shares).open(instance, working)
        return pa.Table.from_pylist([{"fetched": working.fetched_bytes, "lent": lent}], schema=_FETCHED)
