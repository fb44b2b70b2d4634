"""Damage to the recorded results that no engine can notice. It proves that a campaign finds such damage."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from headrace.chaos.recorder import read_rows, write_rows


def lose_a_row(results: Path) -> None:
    """Drop the last row of the newest delivery that has rows."""
    _rewrite(results, lambda table: table.slice(0, table.num_rows - 1))


def double_a_row(results: Path) -> None:
    """Add the first row of the newest delivery that has rows a second time."""
    _rewrite(results, lambda table: pa.concat_tables([table, table.slice(0, 1)]))


def _rewrite(results: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    newest = max((path for path in results.rglob("*.arrow") if read_rows(path)), key=lambda path: path.stat().st_mtime_ns)
    with pa.OSFile(str(newest)) as file:
        table = pa.ipc.open_file(file).read_all()
    write_rows(newest, change(table))


MUTATIONS: dict[str, Callable[[Path], None]] = {"lose": lose_a_row, "double": double_a_row}
