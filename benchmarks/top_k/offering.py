"""The two loops of SEEP 6.1: how files are offered, and when they are discarded.

*Closed*: the next files come when the last ones were read, and nothing is lost. The rate is the query's capacity. *Open*: files come by
the clock, whatever the query does. A bounded number of files may wait; this is the query's input buffer. A file that comes when the
buffer is full is discarded and counted.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.top_k.views import Stream

CLOSED_POLL_S = 0.02


@dataclass(frozen=True)
class Offered:
    """A file of lines that was offered, and what became of it."""

    at_s: float
    """When it came, by `time.time`."""
    ms: int
    """The event time of its views, since the stream began."""
    name: str = ""
    """The name of its file; empty if it was discarded."""
    block: Path | None = None


@dataclass
class Taken:
    """Which batch reads which file, from the log of Spark's source. The log has an entry as soon as a batch is planned."""

    log: Path
    batches: dict[str, int] = field(default_factory=dict)
    _read: set[str] = field(default_factory=set)

    def count(self) -> int:
        """The number of files that were read."""
        for name in os.listdir(self.log) if self.log.is_dir() else ():
            if name in self._read or name.startswith("."):
                continue
            for line in (self.log / name).read_text().splitlines()[1:]:
                said = json.loads(line)
                self.batches[said["path"].rpartition("/")[2]] = int(said["batchId"])
            self._read.add(name)
        return len(self.batches)


@dataclass
class Offering:
    """Adds files to the source of a query, in one loop at a time."""

    stream: Stream
    taken: Taken
    batch_files: int
    buffer_files: int
    history: list[Offered] = field(default_factory=list)
    late_s: float = 0.0
    """The greatest delay of a file, caused by the measuring machine."""
    alive: Callable[[], bool] = lambda: True
    _accepted: int = 0
    _began: float = field(default_factory=time.time)

    @property
    def waiting(self) -> int:
        return self._accepted - self.taken.count()

    def closed(self, seconds: float) -> None:
        """Offer the files of a batch as soon as the previous ones were read."""
        end = time.time() + seconds
        while time.time() < end and self.alive():
            if self.waiting == 0:
                for _ in range(self.batch_files):
                    self._offer(time.time(), True)
            time.sleep(CLOSED_POLL_S)

    def open(self, seconds: float, files_per_s: float) -> None:
        """Offer files by the clock."""
        began = time.time()
        for at in range(round(seconds * files_per_s)):
            due = began + at / files_per_s
            time.sleep(max(0.0, due - time.time()))
            if not self.alive():
                return
            self._offer(due, self.waiting < self.buffer_files)
            self.late_s = max(self.late_s, time.time() - due)

    def end(self, window_s: int) -> Offered:
        """Offer a last file whose event time is late enough to close all earlier windows."""
        return self._offer(time.time(), True, ahead_ms=3_000 * window_s)

    def _offer(self, at_s: float, fits: bool, ahead_ms: int = 0) -> Offered:
        # Names are times, so they must be different and increasing.
        earliest = self.history[-1].ms + 1 if self.history else 0
        ms = max(earliest, round((at_s - self._began) * 1000) + ahead_ms)
        self.history.append(Offered(at_s, ms, *self.stream.add(ms)) if fits else Offered(at_s, ms))
        self._accepted += fits
        return self.history[-1]
