"""Results that are many times larger than rows and state: computed, written and read piece by piece."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from headrace.errors import CorruptStateError
from headrace.operators.kernel import MAIN, Moment, OutputMode, View
from headrace.operators.partials import Count
from headrace.operators.windowed import WindowedAggregate
from headrace.operators.windows import TimeWindow
from headrace.runtime.staged import STAGED_ROWS, StagedReader, check_staged, write_staged
from headrace.state.durable import FolderStore
from headrace.state.layout import HASH, SUB, Layout, Policy
from headrace.state.manifest import StagedFile
from headrace.state.run import RunReader, write_run

S = 1_000_000
SCHEMA = pa.schema([("x", pa.int64()), ("t", pa.large_string())])


def piece(first: int, rows: int) -> pa.RecordBatch:
    numbers = np.arange(first, first + rows)
    return pa.RecordBatch.from_arrays([pa.array(numbers), pa.array([str(n) for n in numbers], pa.large_string())], schema=SCHEMA)


def read(path: Path, rows: int, length: int, crc: int) -> list[pa.RecordBatch]:
    file = StagedFile(path.name, path.parent.name, length, crc, rows, "op")
    return list(StagedReader(FolderStore(path.parent.parent), (), ("x", "t")).read(file))


@pytest.mark.parametrize("pieces", [[3], [1, 0, 5], [STAGED_ROWS, 1], [STAGED_ROWS // 2] * 5])
def test_what_is_staged_is_what_is_read(tmp_path: Path, pieces: list[int]) -> None:
    (tmp_path / "staged").mkdir()
    path, total = tmp_path / "staged" / "f.arrow", sum(pieces)
    given = (piece(sum(pieces[:at]), rows) for at, rows in enumerate(pieces))
    rows, length, crc = write_staged(path, SCHEMA, given, sync=False)
    found = pa.Table.from_batches(read(path, rows, length, crc))
    assert rows == total
    assert found["x"].to_pylist() == list(range(total))
    assert found["t"].type == pa.string()


def test_without_results_there_is_no_file(tmp_path: Path) -> None:
    assert write_staged(tmp_path / "f.arrow", SCHEMA, iter(()), sync=False) == (0, 0, 0)
    assert not list(tmp_path.iterdir())


def test_a_piece_is_written_before_the_next_but_one_is_computed(tmp_path: Path) -> None:
    path = tmp_path / "f.arrow"
    sizes = []

    def results() -> Iterator[pa.RecordBatch]:
        for at in range(4):
            sizes.append(path.stat().st_size if path.exists() else 0)
            yield piece(at * STAGED_ROWS, STAGED_ROWS)

    write_staged(path, SCHEMA, results(), sync=False)
    assert sizes == sorted(set(sizes))


def test_a_results_file_is_not_left_behind_when_computing_fails(tmp_path: Path) -> None:
    def results() -> Iterator[pa.RecordBatch]:
        yield piece(0, STAGED_ROWS)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_staged(tmp_path / "f.arrow", SCHEMA, results(), sync=False)
    assert not list(tmp_path.iterdir())


def test_damage_anywhere_in_a_file_of_many_pieces_is_found(tmp_path: Path) -> None:
    (tmp_path / "staged").mkdir()
    path = tmp_path / "staged" / "f.arrow"
    rows, length, crc = write_staged(path, SCHEMA, (piece(at, STAGED_ROWS) for at in range(3)), sync=False)
    data = bytearray(path.read_bytes())
    data[length * 2 // 3] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptStateError, match="checksum"):
        check_staged(FolderStore(tmp_path), (StagedFile(path.name, "staged", length, crc, rows, "op"),))


def test_closing_many_windows_holds_few_of_them_at_a_time(tmp_path: Path) -> None:
    """20,000 keys with one row each give 60 windows a key: 1.2 million results of 20,000 rows."""
    layout = Layout((("k0", pa.int64()),), (("p0", pa.int64()),), has_sub=True, policy=Policy.COMBINE)
    operator = WindowedAggregate(layout, (Count(),), TimeWindow(60 * S, S))
    keys = np.arange(20_000)
    hashed = np.sort(keys.astype(np.uint64) * np.uint64(2**64 // 20_000))
    columns = {HASH: hashed, "k0": keys, SUB: np.full(len(keys), 100 * S), "p0": np.ones(len(keys), dtype=np.int64)}
    state = pa.RecordBatch.from_arrays([pa.array(columns[name]) for name in layout.schema.names], schema=layout.schema)
    ref = write_run(tmp_path, "run.arrow", state, layout, seq=1, lo=0, hi=4096, sync=False)
    view = View(RunReader(tmp_path, layout), [ref], ((0, 4096),))
    before = pa.total_allocated_bytes()
    most = rows = size = 0
    for part in operator.close({MAIN: view}, Moment(OutputMode.APPEND, 0), 1_000_000).results():
        rows, size = rows + part.num_rows, size + part.nbytes
        most = max(most, pa.total_allocated_bytes() - before)
    assert rows == 60 * len(keys)
    assert most < size / 8, f"{most} of {size} bytes at once"
    assert math.isclose(size, rows * 24, rel_tol=0.1)
