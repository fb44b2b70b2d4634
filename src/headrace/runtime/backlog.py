"""How much the sources offer that has not been taken yet, and how old the oldest of it is.

A folder of files is looked at here: what lies in it and is not in Spark's log of files that were read. Of other sources (Kafka) Spark knows
the newest offset and where a batch ends (``runtime/offsets.py``). Where neither tells, the backlog is None.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

from pyspark.sql import DataFrame

from headrace.logs import logger, suppressed
from headrace.runtime.offsets import OffsetBacklog
from headrace.spark.gateway import class_name
from headrace.spark.plans import analyzed
from headrace.spark.streaming import SourceOffsets, source_path
from headrace.spark.trees import walk

COMPACT = ".compact"
"""Ends the names of log entries that have all entries before them as well."""
READ_BYTES = 1 << 16
UNREADABLE = (OSError, ValueError, KeyError)
"""Errors of an entry in Spark's log. Spark itself reports them; here the entry is only not counted."""
_log = logger(__name__)


@dataclass
class FileBacklog:
    """Files of one source folder that wait to be read. Names are kept only of files that are there, and log entries are read once."""

    folder: Path
    log: Path
    """Where Spark notes the files it has read: one log entry for each batch that had files of this source, numbered on their own; every
    tenth has all before it as well."""
    taken: set[str] = field(default_factory=set)
    """Files that were read and are still there."""
    taken_count: int = 0
    """How many files were read by this start of the query."""
    known_to: int = -1
    """The last log entry that was taken in."""
    waited: set[str] = field(default_factory=set)
    """Files that waited when this was last asked."""
    left: int = 0
    """How many of those that waited then are waiting still: a batch that could have had them has left them."""

    def __post_init__(self) -> None:
        """Take in what earlier runs of the query have read."""
        entries = sorted((_batch_of(name), name) for name in _names(self.log) if _batch_of(name) >= 0)
        whole = max((at for at, (_, name) in enumerate(entries) if name.endswith(COMPACT)), default=0)
        there = set(_names(self.folder))
        for number, name in entries[whole:]:
            with suppressed(_log, f"{self.log / name} is not counted in the backlog", *UNREADABLE), open(self.log / name) as lines:
                next(lines, None)
                self.taken |= there.intersection(_file_of(line) for line in lines)
            self.known_to = number

    def waiting(self) -> tuple[int, float | None]:
        """How many files, and when the oldest was written, after a batch."""
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
        """None if there is no such entry yet."""
        for name in (str(number), f"{number}{COMPACT}"):
            try:
                return [_file_of(line) for line in _last_lines(self.log / name) if json.loads(line)["batchId"] == number]
            except FileNotFoundError:
                continue
            except UNREADABLE as broken:
                _log.warning("%s is not counted in the backlog: %s: %s", self.log / name, type(broken).__name__, broken)
                return []
        return None


def _last_lines(path: Path) -> Iterator[str]:
    """The lines of a log entry that are of its own batch, and the one before: they come last, and all before them was read already."""
    with open(path, "rb") as file:
        end, rest, batch = file.seek(0, os.SEEK_END), b"", _batch_of(path.name)
        while end > 0:
            begin = max(0, end - READ_BYTES)
            file.seek(begin)
            lines = (file.read(end - begin) + rest).split(b"\n")
            # The first line of the log is its format's version; the first of a piece may be half a line.
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

    def __init__(self, frame: DataFrame, checkpoint: Path, offsets: Callable[[], list[SourceOffsets]]) -> None:
        folders = _folders(frame)
        self._sources = [FileBacklog(folder, checkpoint / "sources" / str(i)) for i, folder in enumerate(folders) if folder is not None]
        self._offsets = offsets if None in folders else list
        """Of the sources that are no folders, in the batch that runs now."""
        self._others = OffsetBacklog()
        self._rows = 0

    def observe(self, rows_taken: int) -> dict[str, Any]:
        """Called at the end of each batch with the rows it took."""
        found = self._files(rows_taken)
        left = self._others.left(self._offsets(), rows_taken)
        if left is None:
            return found
        # What came to these sources since the batch was cut is not known.
        return {**found, "rows": left + (found["rows"] or 0), "rowsLeft": left + (found["rowsLeft"] or 0)}

    def _files(self, rows_taken: int) -> dict[str, Any]:
        self._rows += rows_taken
        if not self._sources:
            return {"rows": None, "rowsLeft": None, "ageMs": None}
        seen = [source.waiting() for source in self._sources]
        files = sum(count for count, _ in seen)
        taken = sum(source.taken_count for source in self._sources)
        oldest = min((moment for _, moment in seen if moment is not None), default=None)
        left = sum(source.left for source in self._sources)
        per_file = self._rows / taken if taken else None
        return {
            "files": files,
            # Rows of a file are not known before it is read; files of one source are taken to be alike.
            "rows": 0 if not files else None if per_file is None else round(files * per_file),
            # Of these: those that had come before the batch began.
            "rowsLeft": 0 if not left else None if per_file is None else round(left * per_file),
            "ageMs": 0.0 if oldest is None else round((time.time() - oldest) * 1000, 1),
        }


def _folders(frame: DataFrame) -> list[Path | None]:
    """Per source in plan order the local folder it reads, or None."""
    found: list[Path | None] = []
    for node in walk(analyzed(frame)):
        kind = class_name(node)
        if kind == "StreamingRelation":
            path = source_path(node)
            url = urlparse(path) if path is not None else None
            local = url is not None and url.scheme in ("", "file") and not any(c in url.path for c in "*?[{")
            found.append(Path(unquote(url.path)) if url is not None and local else None)
        elif kind.startswith("StreamingRelation"):
            found.append(None)
    return found
