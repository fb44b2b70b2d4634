"""Files that become visible at their time: a tuple arrives exactly in its second.

The past is divided into portions of some seconds, which are processed as fast as possible. After that, each second of the road's time
is a second of the clock, and a file.
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
"""The number of seconds in a portion of the past."""
BEGAN_S = 1_700_000_000
FILES = 2
"""The number of files of a second or of a portion of the past; as many tasks read them."""


@dataclass
class Prepared:
    """A day in files: the past, what is still to come, and the history."""

    folder: Path
    begins_s: int
    ends_s: int
    vids: int
    """Vehicles and questions have numbers below these. Copies of the expressway use numbers above."""
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
        """The files of the past that arrive together."""
        for _, paths in groupby(sorted(self.past.iterdir()), key=second):
            yield list(paths)

    def tables(self) -> Iterator[pa.Table]:
        """All of it, in order."""
        for path in [*sorted(self.past.iterdir()), *sorted(self.coming.iterdir())]:
            yield pq.read_table(path)

    def write_history(self, spent: pa.Table) -> None:
        pq.write_table(spent, self.history)


class Files:
    """Writes seconds as they will be read: the past in portions, other seconds one by one."""

    def __init__(self, folder: Path, begins_s: int, portion_s: int = PAST_S, portion_rows: int = 0) -> None:
        """The least number of seconds and rows in a portion."""
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
        # The first second is a portion of its own: the query starts with it, and no other rows wait for the start.
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
            # Spark reads files by age, and these may be written faster than the clock ticks.
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
    """Make a file visible in the folder, by an atomic rename of a link. The original is read again for the check."""
    (folder / f".{path.name}").hardlink_to(path)
    (folder / f".{path.name}").rename(folder / path.name)


def second(path: Path) -> int:
    """The first second in a file."""
    return int(path.stem.partition("-")[0])


@dataclass
class Pace:
    """Moves the files of later seconds into the folder that the query reads, each at its second."""

    day: Prepared
    source: Path
    began: float = 0.0
    """The time of the clock at the first second."""
    late_s: float = 0.0
    """The greatest delay of a file, caused by the measuring machine."""
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
