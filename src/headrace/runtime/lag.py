"""Consumer lag: how many rows a topic has that were not read, by partition, and for how long they have been waiting.

Offsets count rows, but say nothing of time. So the newest offsets are noted after each batch. A row beyond the offset that was read has
been waiting since the first note with a greater offset:

    note at      12:00:01   12:00:02   12:00:03
    newest             90        120        160       read up to 100: waiting since 12:00:02

The answer is as precise as batches are close to each other. After a start of the query, waiting is counted from the first note on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

Place = tuple[str, ...]
"""Source, topic and partition."""
NOTES_MAX = 512


@dataclass
class Lag:
    """The lag of the sources of one query whose offsets count rows."""

    clock: Callable[[], float] = time.time
    _notes: dict[Place, list[tuple[float, int]]] = field(default_factory=dict)
    """By place: moments, and the newest offset then. Only those beyond what was read, and the last one."""

    def waiting_s(self, read: Mapping[Place, int], newest: Mapping[Place, int]) -> float:
        """For how long rows have been waiting, in the place where that is longest; 0 if none wait."""
        now = self.clock()
        found = 0.0
        for place in self._notes.keys() - newest.keys():
            del self._notes[place]
        for place, offset in newest.items():
            notes = [note for note in self._notes.get(place, []) if note[1] > read.get(place, 0)]
            if not notes or notes[-1][1] < offset:
                notes.append((now, offset))
            if len(notes) > NOTES_MAX:
                # Half of them say as much, for a lag that is so long. The oldest stays.
                notes = notes[::2]
            self._notes[place] = notes
            if place in read and offset > read[place]:
                found = max(found, now - notes[0][0])
        return found
