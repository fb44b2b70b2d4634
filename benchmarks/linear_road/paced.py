"""Files that come when their time does: a tuple is there when its second has come, neither earlier nor later.

The past is made up of portions of some seconds, for which nobody waits. From then on each second of the road's time is a second of the
clock's, and a file.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.linear_road.road import Road, Traffic, history

PAST_S = 10
"""Seconds of the past in one portion."""
BEGAN_S = 1_700_000_000
FILES = 2
"""A second, or a portion of the past, comes in so many files, so that as many tasks read them."""


@dataclass
class Prepared:
    """A day in files: the past, what is still to come, and the history."""

    folder: Path
    begins_s: int
    ends_s: int
    vids: int
    """Vehicles and questions have numbers below these; expressways are replicated with numbers above."""
    qids: int

    @property
    def past(self) -> Path:
        return self.folder / "past"

    @property
    def coming(self) -> Path:
        return self.folder / "coming"

    @property
    def history(self) -> Path:
        return self.folder / "history.parquet"

    def portions(self) -> Iterator[list[Path]]:
        """The files of the past that come together."""
        for _, paths in groupby(sorted(self.past.iterdir()), key=second):
            yield list(paths)

    def tables(self) -> Iterator[pa.Table]:
        """All of it, in order."""
        for path in [*sorted(self.past.iterdir()), *sorted(self.coming.iterdir())]:
            yield pq.read_table(path)

    def write_history(self, spent: pa.Table) -> None:
        pq.write_table(spent, self.history)


class Files:
    """Writes seconds as they will be read: those of the past in portions, the others each alone."""

    def __init__(self, folder: Path, begins_s: int, portion_s: int = PAST_S, portion_rows: int = 0) -> None:
        """A portion has at least so many seconds and rows."""
        self.folder, self.begins_s = folder, begins_s
        self.portion_s, self.portion_rows = portion_s, portion_rows
        self._waiting: list[pa.Table] = []
        self._first_s = 0
        self._written = 0
        for name in ("past", "coming"):
            (folder / name).mkdir(parents=True)

    def add(self, second: int, tuples: pa.Table) -> None:
        if second >= self.begins_s:
            self.close()
            self._write(tuples, self.folder / "coming" / f"{second:06d}")
            return
        # The first second comes alone: the query starts with it, and nobody else need wait for that.
        full = second - self._first_s >= self.portion_s and sum(map(len, self._waiting)) >= self.portion_rows
        if full or self._written == 0:
            self.close()
        if not self._waiting:
            self._first_s = second
        self._waiting.append(tuples)

    def close(self) -> None:
        if self._waiting:
            self._write(pa.concat_tables(self._waiting), self.folder / "past" / f"{self._first_s:06d}")
        self._waiting = []

    def _write(self, tuples: pa.Table, name: Path) -> None:
        size = -(-len(tuples) // FILES)
        for at in range(FILES):
            path = name.with_name(f"{name.name}-{at}.parquet")
            pq.write_table(tuples.slice(at * size, size), path)
            # Spark takes files by age, and these may be written faster than clocks tick.
            os.utime(path, (BEGAN_S + self._written, BEGAN_S + self._written))
            self._written += 1


def prepare(folder: Path, traffic: Traffic, begins_s: int, ends_s: int, portion_s: int = PAST_S) -> Prepared:
    """Write a day's files."""
    road, files = Road(traffic), Files(folder, begins_s, portion_s)
    for now, tuples in enumerate(road.seconds(ends_s)):
        files.add(now, tuples)
    files.close()
    day = Prepared(folder, begins_s, ends_s, road.vids, road.qids)
    day.write_history(history(day.vids))
    return day


def appear(path: Path, folder: Path) -> None:
    """A file is now in the folder as well. A rename is whole or not at all; where it was, it is read again for the check."""
    (folder / f".{path.name}").hardlink_to(path)
    (folder / f".{path.name}").rename(folder / path.name)


def second(path: Path) -> int:
    """The second with which a file begins."""
    return int(path.stem.partition("-")[0])


@dataclass
class Pace:
    """Moves the files of the seconds to come to where the query looks for them, each at its second."""

    day: Prepared
    source: Path
    began: float = 0.0
    """The clock at the first second."""
    late_s: float = 0.0
    """How late a file was at most: the measuring machine's own fault."""
    done: threading.Event = field(default_factory=threading.Event)

    def start(self) -> None:
        self.began = time.time()
        threading.Thread(target=self._run, name="pace", daemon=True).start()

    def due(self, second: int) -> float:
        return self.began + second - self.day.begins_s

    def _run(self) -> None:
        for path in sorted(self.day.coming.iterdir()):
            due = self.due(second(path))
            time.sleep(max(0.0, due - time.time()))
            appear(path, self.source)
            self.late_s = max(self.late_s, time.time() - due)
        self.done.set()
