"""Consumer lag: how many rows a topic has that were not read, by partition, and for how long they have been waiting.

Offsets count rows, but say nothing of time. So the newest offsets are noted twice a batch: when Spark planned it, and when it ended. Rows
beyond the offset that was read came after the last note that was not beyond it:

    note at      12:00:01   12:00:02   12:00:03
    newest             90        120        160       read up to 100: waiting since 12:00:01 at most

The answer is never too low, and too high by the time between two notes at most. After a start of the query there are no notes yet: then
waiting is counted from the first one on.
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
    """By place: moments, and the newest offset then. The first is the last one that was not beyond what was read, if there was one."""

    def note(self, newest: Mapping[Place, int], at_s: float) -> None:
        """Note the newest offsets of a moment. Places that are left out are gone."""
        for place in self._notes.keys() - newest.keys():
            del self._notes[place]
        for place, offset in newest.items():
            notes = self._notes.setdefault(place, [])
            notes.append((at_s, offset))
            if len(notes) > NOTES_MAX:
                # Half of them say as much, for a lag that is so long. The first stays.
                self._notes[place] = notes[::2]

    def waiting_s(self, read: Mapping[Place, int], newest: Mapping[Place, int]) -> float:
        """For how long rows have been waiting, in the place where that is longest; 0 if none wait. ``newest`` are the offsets now."""
        now_s = self.clock()
        self.note(newest, now_s)
        found = 0.0
        for place, offset in newest.items():
            if place not in read:
                continue
            notes = self._notes[place]
            behind = [at for at, (_, noted) in enumerate(notes) if noted <= read[place]]
            # What came before the last of these was read.
            del notes[: behind[-1] if behind else 0]
            if offset > read[place]:
                found = max(found, now_s - notes[0][0])
        return found
