"""How much the sources offer that has not been taken yet, and how old the oldest of it is.

A folder of files is looked at here: what lies in it and is not in Spark's log of files that were read. Of other sources (Kafka) Spark knows
the newest offset and where a batch ends (``runtime/offsets.py``). Where neither tells, the backlog is None.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

from pyspark.sql import DataFrame

from headrace.compile.catalyst import analyzed, class_name, walk
from headrace.runtime.offsets import OffsetBacklog, SourceOffsets


@dataclass
class FileBacklog:
    """Files of one source folder that wait to be read."""

    folder: Path
    log: Path
    """Where Spark notes the files it has read, one log entry per batch."""
    taken: set[str] = field(default_factory=set)
    entries_read: set[str] = field(default_factory=set)
    waited: set[str] = field(default_factory=set)
    """Files that waited when this was last asked."""
    left: int = 0
    """How many of those that waited then are waiting still: a batch that could have had them has left them."""

    def waiting(self) -> tuple[int, float | None]:
        """How many files, and when the oldest was written."""
        self._catch_up()
        oldest: float | None = None
        now: set[str] = set()
        try:
            with os.scandir(self.folder) as entries:
                for entry in entries:
                    if entry.name[0] in "._" or entry.name in self.taken or not entry.is_file():
                        continue
                    now.add(entry.name)
                    changed = entry.stat().st_mtime
                    oldest = changed if oldest is None else min(oldest, changed)
        except OSError:
            now, oldest = set(), None
        self.left, self.waited = len(self.waited & now), now
        return len(now), oldest

    def _catch_up(self) -> None:
        if not self.log.is_dir():
            return
        for entry in os.scandir(self.log):
            if entry.name in self.entries_read or entry.name.startswith("."):
                continue
            for line in Path(entry.path).read_text().splitlines()[1:]:
                self.taken.add(unquote(Path(urlparse(json.loads(line)["path"]).path).name))
            self.entries_read.add(entry.name)


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
        taken = sum(len(source.taken) for source in self._sources)
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
            path = node.dataSource().options().get("path")
            url = urlparse(path.get()) if path.isDefined() else None
            local = url is not None and url.scheme in ("", "file") and not any(c in url.path for c in "*?[{")
            found.append(Path(unquote(url.path)) if url is not None and local else None)
        elif kind.startswith("StreamingRelation"):
            found.append(None)
    return found
