"""The backlog: how many rows the sources have that no batch has read yet, and how old the oldest of them are.

For a folder of files, the backlog is the files in it that are not in Spark's log of files that were read. For other sources, such as Kafka,
Spark knows the newest offset and the offset at which a batch ends (``runtime/offsets.py``). Kafka is also asked for what has come since.
For how long it has been there follows from what was noted before (``runtime/lag.py``). If nothing is known, the backlog is None.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import unquote, urlparse

from pyspark.sql import DataFrame

from headrace.errors import StorageError
from headrace.logs import logger, suppressed
from headrace.runtime.offsets import OffsetBacklog
from headrace.runtime.progress import Waiting
from headrace.spark.streaming import SourceOffsets, source_paths
from headrace.state.durable import DurableStore

COMPACT = ".compact"
"""Suffix of log entries that also contain all entries before them."""
READ_BYTES = 1 << 16
UNREADABLE = (OSError, StorageError, ValueError, KeyError)
"""Errors in an entry of Spark's log. Spark itself reports them; here the entry is ignored."""
_log = logger(__name__)


@dataclass
class FileBacklog:
    """Counts the files of one source folder that wait to be read.

    It keeps names of existing files only, and reads each log entry once, so it stays small and quick.
    """

    folder: Path
    log: DurableStore
    """Spark's log of the files it has read. It has one entry per batch with files of this source, numbered on its own. Every tenth entry
    also contains all entries before it."""
    taken: set[str] = field(default_factory=set)
    """Files that were read and are still there."""
    taken_count: int = 0
    """How many files were read since this start of the query."""
    known_to: int = -1
    """The number of the last log entry that was read here."""
    waited: set[str] = field(default_factory=set)
    """Files that waited at the last call of `waiting`."""
    left: int = 0
    """How many of them still waited at the next call: the batch in between could have read them, but did not."""

    def __post_init__(self) -> None:
        """Find out which files earlier starts of the query have read."""
        names: list[str] = []
        with suppressed(_log, f"{self.log.where('')} is not counted in the backlog", StorageError):
            names = self.log.keys("")
        entries = sorted((_batch_of(name), name) for name in names if _batch_of(name) >= 0)
        whole = max((at for at, (_, name) in enumerate(entries) if name.endswith(COMPACT)), default=0)
        there = set(_names(self.folder))
        for number, name in entries[whole:]:
            with suppressed(_log, f"{self.log.where(name)} is not counted in the backlog", *UNREADABLE):
                lines = self.log.get(name).decode().splitlines()[1:]
                self.taken |= there.intersection(_file_of(line) for line in lines)
            self.known_to = number

    def waiting(self) -> tuple[int, float | None]:
        """Called after each batch: how many files wait, and when the oldest of them was written."""
        while (new := self._files_of_entry(self.known_to + 1)) is not None:
            self.taken.update(new)
            self.taken_count += len(new)
            self.known_to += 1
        oldest: float | None = None
        now: set[str] = set()
        there: set[str] = set()
        try:
            with os.scandir(self.folder) as entries:
                for entry in entries:
                    if entry.name in self.taken:
                        there.add(entry.name)
                    elif entry.name[0] not in "._" and entry.is_file():
                        now.add(entry.name)
                        changed = entry.stat().st_mtime
                        oldest = changed if oldest is None else min(oldest, changed)
        except OSError as refused:
            _log.debug("the backlog of %s is not known: %s", self.folder, refused)
            now, oldest = set(), None
        self.taken = there
        self.left, self.waited = len(self.waited & now), now
        return len(now), oldest

    def _files_of_entry(self, number: int) -> list[str] | None:
        """The files of a log entry; None if there is no such entry yet."""
        for name in (str(number), f"{number}{COMPACT}"):
            try:
                return [_file_of(line) for line in _last_lines(self.log, name) if json.loads(line)["batchId"] == number]
            except FileNotFoundError:
                continue
            except UNREADABLE as broken:
                _log.warning("%s is not counted in the backlog: %s: %s", self.log.where(name), type(broken).__name__, broken)
                return []
        return None


def _last_lines(log: DurableStore, name: str) -> Iterator[str]:
    """The lines of a log entry from the last one back to the first that belongs to an earlier batch.

    Lines of earlier batches come first in a compacted entry, and were read with the entries before it.
    """
    size = log.size(name)
    if size is None:
        raise FileNotFoundError(log.where(name))
    end, rest, batch = size, b"", _batch_of(name)
    while end > 0:
        begin = max(0, end - READ_BYTES)
        lines = (log.get(name, begin, end - begin) + rest).split(b"\n")
        # The first line of the file is the version of the log's format. The first line of a piece may be incomplete.
        rest, end = lines[0], begin
        for line in reversed(lines[1:]):
            if not line:
                continue
            yield line.decode()
            if json.loads(line)["batchId"] != batch:
                return


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []
    except OSError as refused:
        _log.warning("%s cannot be listed, and is not counted in the backlog: %s", folder, refused)
        return []


def _batch_of(name: str) -> int:
    number = name.removesuffix(COMPACT)
    return int(number) if number.isdigit() else -1


def _file_of(line: str) -> str:
    return unquote(Path(urlparse(json.loads(line)["path"]).path).name)


class Backlog:
    """The backlog of all sources of a query."""

    def __init__(self, frame: DataFrame, logs: DurableStore, offsets: Callable[[], list[SourceOffsets]]) -> None:
        folders = _folders(frame)
        self._sources = [FileBacklog(folder, logs.below(f"sources/{i}")) for i, folder in enumerate(folders) if folder is not None]
        self._offsets = offsets if None in folders else list
        """Gives the offsets of the sources that are not folders, for the current batch."""
        self._others = OffsetBacklog()
        self._rows = 0

    def observe(self, rows_taken: int, begin_s: float) -> Waiting:
        """The backlog at the end of a batch that began at this moment and read this many rows."""
        found = self._files(rows_taken)
        offsets = self._offsets()
        left, topics = self._others.left(offsets, rows_taken), self._others.waiting(offsets, begin_s)
        if left is None:
            return found
        found = replace(found, rows_left=left + (found.rows_left or 0))
        if topics is None:
            # Rows that arrived at these sources after Spark planned the batch are not known.
            return replace(found, rows=left + (found.rows or 0))
        age_ms = max(found.age_ms or 0.0, round(topics.waiting_s * 1000, 1))
        return replace(found, rows=topics.total + (found.rows or 0), age_ms=age_ms, topics=topics.rows)

    def _files(self, rows_taken: int) -> Waiting:
        self._rows += rows_taken
        if not self._sources:
            return Waiting()
        seen = [source.waiting() for source in self._sources]
        files = sum(count for count, _ in seen)
        taken = sum(source.taken_count for source in self._sources)
        oldest = min((moment for _, moment in seen if moment is not None), default=None)
        left = sum(source.left for source in self._sources)
        per_file = self._rows / taken if taken else None
        return Waiting(
            files=files,
            # The rows of a file are not known before it is read. Files of one source are assumed to be alike.
            rows=0 if not files else None if per_file is None else round(files * per_file),
            rows_left=0 if not left else None if per_file is None else round(left * per_file),
            age_ms=0.0 if oldest is None else round((time.time() - oldest) * 1000, 1),
        )


def _folders(frame: DataFrame) -> list[Path | None]:
    """For each source, in the order of the plan: the local folder that it reads, or None."""
    return [None if path is None else _local_folder(path) for path in source_paths(frame)]


def _local_folder(path: str) -> Path | None:
    url = urlparse(path)
    local = url.scheme in ("", "file") and not any(c in url.path for c in "*?[{")
    return Path(unquote(url.path)) if local else None
