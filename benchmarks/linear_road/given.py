"""A day from the user's files: tuples and history as CSV without a header, checked before anything runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv

from benchmarks.linear_road.paced import Files, Prepared
from benchmarks.linear_road.road import DAYS, SCHEMA
from headrace.errors import SourceError

HISTORY = pa.schema([(name, pa.int32()) for name in ("VID", "Day", "XWay", "Toll")])
NEVER_S = 1 << 62
PORTION_S = 60
PORTION_ROWS = 100_000
"""Without a pace, a batch has about this many tuples, in whole minutes."""
KINDS = (0, 2, 3, 4)

REPORT = {
    "Time": (0, None),
    "VID": (0, None),
    "Spd": (0, 100),
    "XWay": (0, None),
    "Lane": (0, 4),
    "Dir": (0, 1),
    "Seg": (0, 99),
    "Pos": (0, 527_999),
}
"""The allowed values of a position report."""
TRAVEL = {"Sinit": (0, 99), "Send": (0, 99), "DOW": (1, 7), "TOD": (1, 1440)}


def given(tuples: Path, history: Path, folder: Path, paced: bool) -> Prepared:
    """The day that the files describe. Without a pace, all of it counts as past."""
    begins_s, last, files = 0, -1, None
    for table, line in _tables(tuples, SCHEMA):
        _check(table, line, last, str(tuples))
        seconds = table["Time"].to_numpy()
        if files is None:
            begins_s = int(seconds[0])
            files = Files(folder, begins_s if paced else NEVER_S, PORTION_S, PORTION_ROWS)
        for second in np.unique(seconds):
            files.add(int(second), table.slice(*_range(seconds, second)))
        last = int(seconds[-1])
    if files is None:
        raise SourceError(where=str(tuples), wanted="tuples of 15 integers", found="an empty file")
    files.close()
    day = Prepared(folder, begins_s if paced else NEVER_S, last + 1, 0, 0)
    spent = [table for table, _ in _tables(history, HISTORY)]
    whole = pa.concat_tables(spent) if spent else HISTORY.empty_table()
    days = whole["Day"].to_numpy()
    if len(days) and not (days.min() >= 0 and days.max() <= DAYS):
        raise SourceError(where=str(history), wanted=f"days from 0 to {DAYS}", found=f"{days.min()} to {days.max()}")
    day.write_history(whole)
    return day


def _range(seconds: np.ndarray[tuple[int], np.dtype[np.int32]], second: int) -> tuple[int, int]:
    begin, end = np.searchsorted(seconds, [second, second + 1])
    return int(begin), int(end - begin)


def _tables(path: Path, schema: pa.Schema) -> Iterator[tuple[pa.Table, int]]:
    """The rows of a file in parts that end with a second, each with the number of the line before it."""
    line, rest = 0, schema.empty_table()
    read, convert = csv.ReadOptions(column_names=schema.names), csv.ConvertOptions(column_types=schema)
    try:
        for batch in csv.open_csv(path, read_options=read, convert_options=convert):
            table = pa.concat_tables([rest, pa.Table.from_batches([batch])]).combine_chunks()
            first = schema.names[1] if schema is SCHEMA else None
            cut = int(np.searchsorted(table[first].to_numpy(), table[first][-1].as_py())) if first else len(table)
            # Rows out of order are reported by the check, which must see all rows.
            cut = cut if first is None or bool((np.diff(table[first].to_numpy()) >= 0).all()) else len(table)
            rest = table.slice(cut)
            if cut:
                yield table.slice(0, cut), line
                line += cut
    except FileNotFoundError:
        raise SourceError(where=str(path), wanted="a CSV file", found="no such file") from None
    except pa.ArrowInvalid as wrong:
        if "Empty CSV" in str(wrong):
            return
        wanted = f"{len(schema)} integers a line, without a header: {','.join(schema.names)}"
        raise SourceError(where=str(path), wanted=wanted, found=str(wrong).split("\n")[0]) from None
    if len(rest):
        yield rest, line


def _check(table: pa.Table, line: int, last: int, where: str) -> None:
    """Check that times are in order, types are known and values are allowed."""
    seconds = table["Time"].to_numpy()
    back = np.flatnonzero(np.diff(np.concatenate([[last], seconds])) < 0)
    if len(back):
        found = f"Time {seconds[back[0]]} after {seconds[back[0] - 1] if back[0] else last}"
        raise SourceError(where=f"{where}, line {line + int(back[0]) + 1}", wanted="tuples in the order of Time", found=found)
    kinds = table["Type"].to_numpy()
    _refuse(~np.isin(kinds, KINDS), table, "Type", f"one of {', '.join(map(str, KINDS))}", line, where)
    for kind, limits in ((0, REPORT), (4, TRAVEL)):
        for name, (least, most) in limits.items():
            values = table[name].to_numpy()
            wrong = (values < least) | (values > most) if most is not None else values < least
            wanted = f"{least} to {most}" if most is not None else f"{least} or more"
            _refuse((kinds == kind) & wrong, table, name, wanted, line, where)


def _refuse(wrong: np.ndarray[tuple[int], np.dtype[np.bool_]], table: pa.Table, name: str, wanted: str, line: int, where: str) -> None:
    if wrong.any():
        at = int(np.argmax(wrong))
        raise SourceError(where=f"{where}, line {line + at + 1}", wanted=f"{name} {wanted}", found=str(table[name][at].as_py()))
