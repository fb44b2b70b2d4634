"""The history of a query in its checkpoint: what was, over any length, for people and for replays. Nothing that runs depends on it.

    headrace/history/query.json          what the query is: graph, plans, policy; of its last start
    headrace/history/points.jsonl        one short line per batch; old ones are joined, so that a year fits too
    headrace/history/events.jsonl        changes, decisions, faults, starts and ends; the newest some thousand
    headrace/history/batches/N.jsonl     the whole progress of each of the last batches, for replays

Every file is bounded. A line is appended by one write, so ``kill -9`` leaves whole lines; a line that a crash of the machine has torn is
left out by readers. Files are not synced: a crash of the machine may lose the last seconds. What is shortened is replaced as a whole.

This module needs no Spark. It is the only one that knows where the history lies (`history_folder`), and it uses plain files, because object
stores cannot append. The history of a query whose checkpoint is in one lies in its private folder on the driver's machine.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.runtime.checkpoint import Checkpoint

FOLDER = "history"
POINTS_MAX = 8_000
"""When there are more points, neighbours in the older half are joined in pairs."""
EVENTS_MAX = 4_000
"""When there are more events, the older half is dropped."""
SEGMENT_BYTES = 4_000_000
SEGMENTS_MAX = 12
"""Whole progresses are kept in so many files of so many bytes."""

Line = dict[str, Any]


def history_folder(checkpoint: Checkpoint) -> Path:
    """Where the history of a query lies."""
    return checkpoint.private() / FOLDER


_ADDED, _MOST, _LAST = ("rows", "out", "late", "n"), ("ms", "lat", "ev", "fetched"), ("b",)


@dataclass
class Lines:
    """A file of JSON lines that one writer appends to, and any number of processes read."""

    path: Path
    count: int = 0
    _file: int = -1

    def open(self) -> None:
        """Open the file, and begin on a new line if the last one is torn."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        text = self.path.read_bytes() if self.path.exists() else b""
        self.count = text.count(b"\n")
        self._file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        if text and not text.endswith(b"\n"):
            os.write(self._file, b"\n")

    def append(self, lines: Sequence[Line]) -> None:
        """Append lines by one write."""
        if lines:
            os.write(self._file, "".join(json.dumps(each, separators=(",", ":"), default=str) + "\n" for each in lines).encode())
            self.count += len(lines)

    def replace(self, lines: Sequence[Line]) -> None:
        """Replace the whole content. Readers see the old file or the new one."""
        temporary = self.path.with_suffix(f".{os.getpid()}.tmp")
        temporary.write_text("".join(json.dumps(each, separators=(",", ":")) + "\n" for each in lines))
        temporary.replace(self.path)
        self.close()
        self.open()

    def size(self) -> int:
        return os.fstat(self._file).st_size

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


@dataclass
class HistoryWriter:
    """Writes the history of one query. One thread uses it."""

    folder: Path
    points: Lines = field(init=False)
    events: Lines = field(init=False)
    batches: Lines = field(init=False)

    def __post_init__(self) -> None:
        self.points, self.events = Lines(self.folder / "points.jsonl"), Lines(self.folder / "events.jsonl")
        segments = segments_of(self.folder)
        self.batches = Lines(segments[-1] if segments else self._segment(0))

    def open(self) -> None:
        for each in (self.points, self.events, self.batches):
            each.open()

    def close(self) -> None:
        for each in (self.points, self.events, self.batches):
            each.close()

    def about(self, body: Line) -> None:
        """Replace what is known about the query."""
        self.folder.mkdir(parents=True, exist_ok=True)
        temporary = self.folder / f"query.{os.getpid()}.tmp"
        temporary.write_text(json.dumps(body, default=str))
        temporary.replace(self.folder / "query.json")

    def add(self, points: Sequence[Line], events: Sequence[Line], batches: Sequence[Line]) -> None:
        """Append lines, and shorten what has become too long."""
        if self.batches.size() > SEGMENT_BYTES:
            self._next_segment()
        self.batches.append(batches)
        self.events.append(events)
        self.points.append(points)
        if self.points.count > POINTS_MAX:
            self.points.replace(thinned(list(lines_of(self.points.path))))
        if self.events.count > EVENTS_MAX:
            self.events.replace(list(lines_of(self.events.path))[-EVENTS_MAX // 2 :])

    def _segment(self, number: int) -> Path:
        return self.folder / "batches" / f"{number:08d}.jsonl"

    def _next_segment(self) -> None:
        self.batches.close()
        self.batches = Lines(self._segment(int(self.batches.path.stem) + 1))
        self.batches.open()
        for old in segments_of(self.folder)[:-SEGMENTS_MAX]:
            old.unlink(missing_ok=True)


def segments_of(folder: Path) -> list[Path]:
    """The files with whole progresses, oldest first."""
    return sorted(each for each in (folder / "batches").glob("*.jsonl") if each.stem.isdigit())


def thinned(points: Sequence[Line]) -> list[Line]:
    """The points, with neighbours in the older half joined in pairs.

    >>> [each["rows"] for each in thinned([{"t": at, "rows": 1, "n": 1} for at in range(8)])]
    [2, 2, 1, 1, 1, 1]
    """
    half = len(points) // 2 // 2 * 2
    pairs = zip(points[0:half:2], points[1:half:2], strict=True)
    return [joined(first, then) for first, then in pairs] + list(points[half:])


def joined(first: Line, then: Line) -> Line:
    """Two neighbouring points as one: sums of rows, the longest times, and the newest of everything else."""
    both = {**first, **then}
    for name in _ADDED:
        both[name] = first.get(name, 0) + then.get(name, 0)
    for name in _MOST:
        known = [each[name] for each in (first, then) if each.get(name) is not None]
        both[name] = max(known, default=None)
    for name in _LAST:
        both[name] = first.get(name)
    return both


def grouped(points: Sequence[Line], most: int) -> list[Line]:
    """At most so many points: neighbours are joined."""
    size = -(-len(points) // most) if points else 1
    if size <= 1:
        return list(points)
    found = []
    for at in range(0, len(points), size):
        whole = points[at]
        for each in points[at + 1 : at + size]:
            whole = joined(whole, each)
        found.append(whole)
    return found


def lines_of(path: Path) -> Iterator[Line]:
    """The lines of a file that are whole; none if there is no file."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return
    yield from parsed(data)


def parsed(data: bytes) -> Iterator[Line]:
    """The JSON objects among the lines of a text. Torn lines are left out."""
    for line in data.split(b"\n"):
        try:
            body = json.loads(line) if line else None
        except ValueError:
            continue
        if isinstance(body, dict):
            yield body


@dataclass
class Tail:
    """Reads what was appended to a file of lines since the last call, and says when it has to be read anew."""

    path: Path
    _place: int = 0
    _inode: int = 0

    def read(self) -> tuple[bool, list[Line]]:
        """True and all lines if the file is new or was replaced, else False and the new lines. A line without its end is left for later."""
        try:
            with open(self.path, "rb") as file:
                about = os.fstat(file.fileno())
                again = about.st_ino != self._inode or about.st_size < self._place
                if again:
                    self._place, self._inode = 0, about.st_ino
                if about.st_size == self._place:
                    return again, []
                file.seek(self._place)
                data = file.read()
        except FileNotFoundError:
            return False, []
        end = data.rfind(b"\n") + 1
        self._place += end
        return again, list(parsed(data[:end]))


@dataclass
class HistoryReader:
    """Reads the history of a query, while it is written or afterwards."""

    folder: Path

    @property
    def is_there(self) -> bool:
        return (self.folder / "query.json").exists()

    def about(self) -> Line:
        """What is known about the query; empty if an older Headrace has written the checkpoint."""
        try:
            body: Line = json.loads((self.folder / "query.json").read_bytes())
        except (FileNotFoundError, ValueError):
            return {}
        return body

    def points(self) -> list[Line]:
        return list(lines_of(self.folder / "points.jsonl"))

    def events(self) -> list[Line]:
        return list(lines_of(self.folder / "events.jsonl"))

    def batches(self, most: int | None = None, wanted: Callable[[Line], bool] | None = None) -> list[Line]:
        """The whole progress of the last batches, oldest first; at most so many."""
        found: list[Line] = []
        for path in reversed(segments_of(self.folder)):
            found = [each for each in lines_of(path) if wanted is None or wanted(each)] + found
            if most is not None and len(found) >= most:
                break
        return found if most is None else found[-most:]
