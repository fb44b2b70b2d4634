"""Runs that a process keeps mapped: several queries of one driver share the table of them."""

from __future__ import annotations

import gc
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa

from headrace.state.layout import HASH, Layout
from headrace.state.open_runs import OPEN
from headrace.state.run import RunReader, RunRef, write_run

LAYOUT = Layout((("k", pa.int64()),), (("v", pa.int64()),))


def write(directory: Path, file: str) -> RunRef:
    columns = {HASH: np.arange(4, dtype=np.uint64), "k": np.arange(4), "v": np.arange(4)}
    rows = pa.RecordBatch.from_arrays([pa.array(columns[name]) for name in LAYOUT.schema.names], schema=LAYOUT.schema)
    return write_run(directory, file, rows, LAYOUT, seq=1, lo=0, hi=4096, sync=False)


def test_queries_of_one_driver_open_and_remove_runs_at_the_same_time(tmp_path: Path) -> None:
    def query(number: int) -> int:
        directory = tmp_path / str(number)
        directory.mkdir()
        reader, found = RunReader(directory, LAYOUT), 0
        for at in range(60):
            found += reader.open(write(directory, f"{at}.arrow")).rows.num_rows
            if at >= 5:
                (directory / f"{at - 5}.arrow").unlink()
        return found

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(query, range(8))) == [240] * 8


def test_a_checkpoint_that_is_left_has_no_open_files(tmp_path: Path) -> None:
    mine, other = tmp_path / "mine", tmp_path / "other"
    for directory in (mine, other):
        directory.mkdir()
        for at in range(3):
            RunReader(directory, LAYOUT).open(write(directory, f"{at}.arrow"))
    OPEN.close_all(mine)
    gc.collect()
    held = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if os.path.islink(f"/proc/self/fd/{fd}")]
    assert not [path for path in held if path.startswith(str(mine))]
    assert len([path for path in held if path.startswith(str(other))]) == 3
