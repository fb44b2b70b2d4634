"""Working copies of runs: missing blocks are fetched when needed, damage is repaired from the origin, unneeded copies are removed."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from headrace.errors import CorruptStateError, MissingRunError
from headrace.ids import SLOTS
from headrace.state.blocks import BLOCK_BYTES
from headrace.state.layout import Layout
from headrace.state.open_runs import OPEN
from headrace.state.run import TABLE, RunReader, RunRef, write_run
from headrace.state.slots import clip
from headrace.state.working import Working

LAYOUT = Layout(keys=(("k0", pa.int64()),), values=(("p0", pa.float64()),))
ROWS = 200_000


@pytest.fixture
def run(tmp_path: Path) -> RunRef:
    """One large run in the durable tier: about five megabytes, its keys spread over all slots."""
    (tmp_path / "runs").mkdir()
    hashes = np.linspace(0, 2**64 - 2**12, ROWS).astype(np.uint64)
    columns = [pa.array(hashes), pa.array(np.arange(ROWS)), pa.array(np.arange(ROWS) / 2)]
    rows = pa.RecordBatch.from_arrays(columns, schema=LAYOUT.schema)
    return write_run(tmp_path / "runs", "v000000000001-op-i0-e0-a0-run.arrow", rows, LAYOUT, seq=3, lo=0, hi=SLOTS, sync=False)


def reader(tmp_path: Path, executor: str) -> RunReader:
    OPEN.close_all()
    return RunReader(tmp_path / "runs", LAYOUT, Working(tmp_path / executor))


def part(ref: RunRef, lo: int, hi: int) -> RunRef:
    return clip([ref], ((lo, hi),))[0]


def fetched(opened: RunReader) -> int:
    """The bytes fetched since this was last asked: each task counts from its own beginning."""
    assert opened.working is not None
    count = opened.working.fetched_bytes
    opened.working = Working(opened.working.folder)
    return count


def test_an_instance_fetches_its_share_and_no_more(tmp_path: Path, run: RunRef) -> None:
    eighth = part(run, 512, 1024)
    mine = reader(tmp_path, "a")
    expected = RunReader(tmp_path / "runs", LAYOUT).open(eighth).rows
    assert mine.open(eighth).rows.equals(expected)
    moved = fetched(mine)
    # Three columns, each cut at two places; and the head and the foot of the file.
    assert run.bytes / 8 <= moved <= run.bytes / 8 + 12 * BLOCK_BYTES
    assert mine.open(part(run, 600, 900)).rows.num_rows > 0
    assert fetched(mine) == 0, "a part of what is here"
    assert (tmp_path / "a" / run.file).stat().st_blocks * 512 < run.bytes / 2, "the rest are holes"


def test_another_process_of_the_executor_finds_what_is_there(tmp_path: Path, run: RunRef) -> None:
    reader(tmp_path, "a").open(part(run, 0, 2048))
    again = reader(tmp_path, "a")
    again.open(part(run, 0, 2048))
    assert fetched(again) == 0
    again.open(run)
    assert run.bytes / 2 - 12 * BLOCK_BYTES <= fetched(again) <= run.bytes / 2 + 12 * BLOCK_BYTES
    assert again.open(run).rows.equals(RunReader(tmp_path / "runs", LAYOUT).open(run).rows)


def test_counting_rows_fetches_none(tmp_path: Path, run: RunRef) -> None:
    mine = reader(tmp_path, "a")
    assert mine.count(part(run, 0, 1024)) == pytest.approx(ROWS / 4, abs=2)
    assert fetched(mine) < 6 * BLOCK_BYTES, "head and foot"


def test_a_damaged_copy_is_fetched_again_and_warned_about(tmp_path: Path, run: RunRef, caplog: pytest.LogCaptureFixture) -> None:
    reader(tmp_path, "a").open(run)
    with open(tmp_path / "a" / run.file, "r+b") as copy:
        for block in (1, 20, 40):
            os.pwrite(copy.fileno(), b"damage", block * BLOCK_BYTES + 77)
    mine = reader(tmp_path, "a")
    assert mine.open(run).rows.equals(RunReader(tmp_path / "runs", LAYOUT).open(run).rows)
    assert fetched(mine) == 3 * BLOCK_BYTES
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 3
    for record, block in zip(caplog.records, (1, 20, 40), strict=True):
        assert str(tmp_path / "a" / run.file) in record.getMessage()
        assert f"in block {block};" in record.getMessage()


def test_a_copy_of_another_length_is_made_anew_with_a_warning(tmp_path: Path, run: RunRef, caplog: pytest.LogCaptureFixture) -> None:
    reader(tmp_path, "a").open(run)
    (tmp_path / "a" / run.file).write_bytes(b"short")
    assert reader(tmp_path, "a").open(run).rows.num_rows == ROWS
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert record.getMessage().endswith(f"{run.file} is created again: wanted {run.bytes} bytes; found 5 bytes")


def test_marks_that_were_cut_short_are_made_anew_with_a_warning(tmp_path: Path, run: RunRef, caplog: pytest.LogCaptureFixture) -> None:
    reader(tmp_path, "a").open(part(run, 0, 100))
    (marks,) = (tmp_path / "a").glob("*.here")
    marks.write_bytes(b"\1")
    assert reader(tmp_path, "a").open(run).rows.equals(RunReader(tmp_path / "runs", LAYOUT).open(run).rows)
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert str(marks) in record.getMessage()


def test_a_damaged_origin_is_named_and_its_block_not_kept(tmp_path: Path, run: RunRef) -> None:
    origin = tmp_path / "runs" / run.file
    with open(origin, "r+b") as file:
        os.pwrite(file.fileno(), b"damage", 30 * BLOCK_BYTES)
    with pytest.raises(CorruptStateError, match=rf"{origin}.*block 30"):
        reader(tmp_path, "a").open(run)
    with pytest.raises(CorruptStateError, match=rf"{origin}.*block 30"):
        reader(tmp_path, "a").open(run)


def test_a_missing_origin_is_named(tmp_path: Path, run: RunRef) -> None:
    origin = tmp_path / "runs" / run.file
    origin.unlink()
    with pytest.raises(CorruptStateError, match=f"{origin}.*no such file"):
        reader(tmp_path, "a").open(run)


def test_a_run_that_was_written_here_is_not_fetched(tmp_path: Path, run: RunRef) -> None:
    mine = reader(tmp_path, "a")
    mine.keep(run.file)
    assert mine.open(run).rows.num_rows == ROWS
    assert fetched(mine) == 0


def test_copies_that_nobody_needs_go(tmp_path: Path, run: RunRef) -> None:
    mine = reader(tmp_path, "a")
    mine.open(part(run, 0, 100))
    assert mine.working is not None
    assert mine.working.sweep(lambda file: False) == 0
    assert mine.working.sweep(lambda file: file == run.file) == 1
    assert list((tmp_path / "a").iterdir()) == []


def test_blocks_that_another_executor_lends_are_not_fetched(tmp_path: Path, run: RunRef) -> None:
    eighth = part(run, 512, 1024)
    old = reader(tmp_path, "a")
    expected = old.open(eighth).rows
    (table, _), *lent = old.lend(eighth)
    assert table == TABLE
    assert fetched(old) >= run.bytes / 8
    new = reader(tmp_path, "b")
    assert new.working is not None
    taken = sum(new.working.accept(new.store, run.file, run.bytes, run.crc, first, data) for first, data in lent)
    assert run.bytes / 8 <= taken <= run.bytes / 8 + 12 * BLOCK_BYTES
    assert new.open(eighth).rows.equals(expected)
    # What tells where the columns lie is not part of any slot.
    assert fetched(new) <= 6 * BLOCK_BYTES
    again = [new.working.accept(new.store, run.file, run.bytes, run.crc, first, data) for first, data in lent]
    assert sum(again) == 0, "they are here"


def test_a_whole_run_is_lent_though_its_original_is_gone(tmp_path: Path, run: RunRef) -> None:
    expected = RunReader(tmp_path / "runs", LAYOUT).open(run).rows
    old = reader(tmp_path, "a")
    lent = list(old.lend(run, whole=True))
    (tmp_path / "runs" / run.file).unlink()
    new = reader(tmp_path, "b")
    assert new.working is not None
    with pytest.raises(MissingRunError):
        new.open(run)
    (_, table), *blocks = lent
    with pytest.raises(CorruptStateError, match="checksum"):
        new.working.accept_table(run.file, run.bytes, run.crc, b"?" + table[1:])
    new.working.accept_table(run.file, run.bytes, run.crc, table)
    first, data = blocks[0]
    assert new.working.accept(new.store, run.file, run.bytes, run.crc, first, data)
    if len(blocks) > 1:
        with pytest.raises(MissingRunError):
            new.open(run)
    for first, data in blocks:
        new.working.accept(new.store, run.file, run.bytes, run.crc, first, data)
    assert new.open(run).rows.equals(expected)


def test_a_block_that_is_damaged_on_the_way_is_not_taken(tmp_path: Path, run: RunRef) -> None:
    eighth = part(run, 512, 1024)
    first, data = max(reader(tmp_path, "a").lend(eighth), key=lambda piece: len(piece[1]))
    new = reader(tmp_path, "b")
    assert new.working is not None
    with pytest.raises(CorruptStateError, match="checksum"):
        new.working.accept(new.store, run.file, run.bytes, run.crc, first, data[:100] + b"?" + data[101:])
    assert new.open(eighth).rows.equals(RunReader(tmp_path / "runs", LAYOUT).open(eighth).rows)
