"""Files that come when their time does: a tuple is there when its second has come, neither earlier nor later.

The past, up to a minute, is there from the start, in large portions. From then on each second of the road's time is a second of the
clock's, and a file.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.linear_road.road import Road, Traffic

PAST_S = 60
"""Seconds of the past in one file, which is a batch."""


@dataclass
class Prepared:
    """A road's day in files: the past, and what is still to come."""

    folder: Path
    begins_s: int
    ends_s: int
    vids: int
    qids: int

    @property
    def past(self) -> Path:
        return self.folder / "past"

    @property
    def coming(self) -> Path:
        return self.folder / "coming"

    def tables(self) -> Iterator[pa.Table]:
        """All of it, in order."""
        for path in [*sorted(self.past.iterdir()), *sorted(self.coming.iterdir())]:
            yield pq.read_table(path)


def prepare(folder: Path, traffic: Traffic, begins_s: int, ends_s: int) -> Prepared:
    """Write a day's files."""
    road = Road(traffic)
    waiting: list[pa.Table] = []
    for name in ("past", "coming"):
        (folder / name).mkdir(parents=True)
    for now, tuples in enumerate(road.seconds(ends_s)):
        if now >= begins_s:
            pq.write_table(tuples, folder / "coming" / f"{now:06d}.parquet")
            continue
        waiting.append(tuples)
        if len(waiting) == PAST_S or now == begins_s - 1:
            pq.write_table(pa.concat_tables(waiting), folder / "past" / f"{now:06d}.parquet")
            waiting = []
    return Prepared(folder, begins_s, ends_s, road.vids, road.qids)


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
            due = self.due(int(path.stem))
            time.sleep(max(0.0, due - time.time()))
            # A rename is whole or not at all. The file stays where it was, too: it is read again for the check.
            (self.source / f".{path.name}").hardlink_to(path)
            (self.source / f".{path.name}").rename(self.source / path.name)
            self.late_s = max(self.late_s, time.time() - due)
        self.done.set()
