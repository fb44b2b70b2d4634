"""The queries that the monitor shows: each is a checkpoint, whose history is read as it grows."""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.dashboard.editor.workbench import Workbench
from headrace.errors import QueryError
from headrace.logs import logger
from headrace.runtime.checkpoint import Checkpoint
from headrace.runtime.endpoint import FILE, ask
from headrace.runtime.history_files import HistoryReader, Line, Tail, history_folder, segments_of

_log = logger(__name__)
RUNNING, ENDED, FAILED, GONE = "running", "ended", "failed", "gone"
WHOLE_MAX = 40
"""Whole progresses that are kept in memory, for heat maps and waterfalls."""
FRESH_S = 0.25
"""Files are looked at no more often than this, however many pages are open."""


@dataclass
class Shown:
    """One query, running or not."""

    id: str
    checkpoint: Checkpoint
    points: list[Line] = field(default_factory=list)
    events: list[Line] = field(default_factory=list)
    whole: deque[Line] = field(default_factory=lambda: deque(maxlen=WHOLE_MAX))
    stamp: tuple[int, int, str] = (0, 0, "")
    """Changes whenever there is something new."""
    _about: Line = field(default_factory=dict)
    _about_s: float = 0.0
    _looked_s: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.reader = HistoryReader(history_folder(self.checkpoint))
        self._tails = Tail(self.reader.folder / "points.jsonl"), Tail(self.reader.folder / "events.jsonl")
        self._segment: Tail | None = None
        self._seen = [0, 0]

    @property
    def about(self) -> Line:
        """What the query is; empty if no history was written."""
        return self._about

    @property
    def location(self) -> str:
        return self.checkpoint.location

    @property
    def name(self) -> str:
        return str(self._about.get("name") or self.location.rstrip("/").rpartition("/")[2])

    def refresh(self) -> None:
        """Read what is new."""
        with self._lock:
            if time.monotonic() - self._looked_s < FRESH_S:
                return
            for at, (tail, kept) in enumerate(zip(self._tails, (self.points, self.events), strict=True)):
                again, lines = tail.read()
                if again:
                    kept.clear()
                kept += lines
                self._seen[at] += len(lines)
            self._read_about()
            self._looked_s = time.monotonic()
            self.stamp = self._seen[0], self._seen[1], self.state

    def progress(self) -> list[Line]:
        """The whole progress of the last batches, oldest first."""
        with self._lock:
            segments = segments_of(self.reader.folder)
            if segments and (self._segment is None or self._segment.path != segments[-1]):
                # The first lines of a new segment follow the last ones of the segment before.
                for path in segments[-2:] if self._segment is None else segments[-1:]:
                    self._segment = Tail(path)
                    self.whole.extend(self._segment.read()[1])
            elif self._segment is not None:
                self.whole.extend(self._segment.read()[1])
            return list(self.whole)

    def _read_about(self) -> None:
        try:
            written_s = (self.reader.folder / "query.json").stat().st_mtime
        except FileNotFoundError:
            return
        if written_s != self._about_s:
            self._about, self._about_s = self.reader.about(), written_s

    @property
    def is_removed(self) -> bool:
        """True if somebody has removed the checkpoint's folder. Of a checkpoint that is no folder this is not known."""
        store = self.checkpoint.store
        return store.local is not None and not store.local.exists()

    @property
    def state(self) -> str:
        """Whether it runs, has ended, has failed, or its process is gone without a word."""
        if self.is_removed:
            return ENDED
        process = control_process(self.checkpoint.private() / FILE)
        if process is not None and is_alive(process):
            return RUNNING
        last = next((each for each in reversed(self.events) if each["kind"] in ("start", "end")), None)
        if process is not None or (last is not None and last["kind"] == "start"):
            return GONE
        return FAILED if last is not None and last.get("error") else ENDED

    @property
    def error(self) -> str:
        """What ended it, if it failed."""
        last = next((each for each in reversed(self.events) if each["kind"] in ("start", "end")), {})
        return str(last.get("error") or "")

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Ask the running query. Raises an error of ours if it does not run, or refuses."""
        return ask(self.checkpoint, request)


def control_process(path: Path) -> int | None:
    """The process that says that it runs the query; None if none does."""
    try:
        return int(json.loads(path.read_text())["process"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def is_alive(process: int) -> bool:
    """True if there is a process of this number on this machine."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError) as other:
        _log.debug("process %s is somebody else's: %s", process, other)
    return True


class Queries:
    """All queries of a monitor. Several threads use it."""

    def __init__(self, locations: Iterable[str] = ()) -> None:
        self._shown: dict[str, Shown] = {}
        self._lock = threading.Lock()
        self.ended = threading.Event()
        """Set when the server stops: streams of news end."""
        self.workbench: Workbench | None = None
        """What the editor works with; None if it is off."""
        for each in locations:
            self.add(Checkpoint.existing(each))

    def add(self, checkpoint: Checkpoint) -> Shown:
        """Show the query of a checkpoint, if it is not shown already."""
        name = hashlib.sha256(checkpoint.location.encode()).hexdigest()[:10]
        with self._lock:
            return self._shown.setdefault(name, Shown(name, checkpoint))

    def all(self) -> list[Shown]:
        with self._lock:
            shown = list(self._shown.values())
        for each in shown:
            each.refresh()
        return shown

    def find(self, name: str) -> Shown:
        """The query with this id. Raises an error if there is none."""
        with self._lock:
            found = self._shown.get(name)
        if found is None:
            raise QueryError(where="monitor", wanted="a query that the monitor shows", found=repr(name))
        found.refresh()
        return found
