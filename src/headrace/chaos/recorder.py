"""The sinks of a query under chaos: a folder for each, with one file for every delivery. They stand in for the user's sinks.

    results/NAME/000007-0.arrow      the first delivery of version 7
    results/NAME/000007-1.arrow      the second one: after a crash, the same batch may be delivered again
    results/deliveries.jsonl         a line for each delivery, with its time

A file is written under another name and renamed, so half a delivery is none, as in a sink with transactions.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame

from headrace.chaos.judge import Expectation, Values, Verdict, judge

LOG = "deliveries.jsonl"


@dataclass
class RecordingSink:
    """A sink for ``foreachBatch``."""

    folder: Path

    def take(self, frame: DataFrame, version: int) -> None:
        """Keep the rows of one delivery."""
        self.folder.mkdir(parents=True, exist_ok=True)
        write_rows(self.folder / f"{version:06d}-{len(list(self.folder.glob(f'{version:06d}-*.arrow')))}.arrow", frame.toArrow())
        line = json.dumps({"at_s": time.time(), "version": version, "sink": self.folder.name})
        with open(self.folder.parent / LOG, "a", encoding="utf-8") as log:
            log.write(line + "\n")


def write_rows(path: Path, table: pa.Table) -> None:
    """Write a table to a file that appears at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}")
    with pa.OSFile(str(temporary), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    os.replace(temporary, path)


def read_rows(path: Path) -> list[Values]:
    """The rows of a file as tuples. A file never changes, so it is read once."""
    return _read(str(path), path.stat().st_mtime_ns)


@lru_cache(maxsize=20_000)
def _read(path: str, _: int) -> list[Values]:
    table = pa.ipc.open_file(pa.memory_map(path)).read_all()
    columns = [_values(column) for column in table.columns]
    return list(zip(*columns, strict=True)) if columns else []


def _values(column: pa.ChunkedArray) -> list[Any]:
    if pa.types.is_timestamp(column.type):
        # Whole microseconds: a datetime of Python has the range of years 1 to 9999 only.
        return list(column.cast(pa.int64()).to_pylist())
    return list(column.to_pylist())


@dataclass(frozen=True)
class Recorded:
    """The deliveries of one sink, as files."""

    name: str
    mode: str
    columns: tuple[str, ...]
    keys: tuple[int, ...]
    """Positions of the columns that identify a result; empty if they are not known."""
    folder: Path
    until_s: float = math.inf
    """Later deliveries do not count."""

    def deliveries(self) -> Iterator[tuple[int, int, list[Values]]]:
        """Version, number of the delivery, and rows, in order."""
        for path in sorted(self.folder.glob("*.arrow")):
            if path.stat().st_mtime <= self.until_s:
                version, _, number = path.stem.partition("-")
                yield int(version), int(number), read_rows(path)

    def rows(self, every: bool = False) -> list[Values]:
        """The result so far: all rows in append mode, the last of each key in update mode, the last table in complete mode.

        Of a version that was delivered more than once only the last delivery counts, as in a sink that replaces a batch that comes again.
        With ``every``, all of them count.
        """
        newest: dict[tuple[int, int], list[Values]] = {}
        for version, number, rows in self.deliveries():
            newest[version, number if every else 0] = rows
        if not newest:
            return []
        if self.mode == "complete":
            return newest[max(newest)]
        flat = [row for at in sorted(newest) for row in newest[at]]
        if self.mode == "append":
            return flat
        return list({repr([row[at] for at in self.keys]): row for row in flat}.values())

    def repeated(self) -> Verdict:
        """Compare deliveries of the same version with each other: a batch that comes again must have the same rows."""
        found, first = Verdict(), {}
        for version, number, rows in self.deliveries():
            if number == 0:
                first = {version: rows}
            else:
                what = f"{self.name}, version {version} again"
                again = judge(rows, first.get(version, []), what=what, columns=self.columns, keys=self.keys)
                found += Verdict(0, again.lost, again.doubled, again.wrong, 0, again.examples)
        return found

    def within(self) -> Verdict:
        """In update mode a delivery has each key once."""
        if self.mode != "update":
            return Verdict()
        found = Verdict()
        for version, _, rows in self.deliveries():
            extra = len(rows) - len({repr([row[at] for at in self.keys]) for row in rows})
            if extra:
                found += Verdict(doubled=extra, examples=(f"{self.name}, version {version}: {extra} key(s) more than once",))
        return found

    def verdict(self, wanted: Sequence[Values], expectation: Expectation, counted: int = 0) -> Verdict:
        """Compare the result so far with the answer."""
        every = expectation is Expectation.AT_LEAST_ONCE
        found = judge(self.rows(every), wanted, expectation, counted=counted, what=self.name, columns=self.columns, keys=self.keys)
        return found + self.within() if expectation is not Expectation.EQUAL else found + self.within() + self.repeated()


def delivery_times(folder: Path) -> list[tuple[float, int, str]]:
    """Time, version and sink of every delivery."""
    path = folder / LOG
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    # A driver that was killed may have left half a line.
    whole = [json.loads(line) for line in lines if line.endswith("}")]
    return [(each["at_s"], each["version"], each["sink"]) for each in whole]
