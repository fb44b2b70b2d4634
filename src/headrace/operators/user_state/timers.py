"""The timers of a call: those that are stored, and those that the user's code sets and deletes.

As in Spark, the timers that fire are known when all rows of the batch are done, and before the first one fires. What happens while they
fire does not change which of them do.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from headrace.operators.kernel import View
from headrace.operators.user_state.stored import Keys
from headrace.state import lookup
from headrace.state.layout import DELETED, Layout, hashes, subs
from headrace.state.merge import merge_rows
from headrace.state.segments import sort_into_segments

MS = 1000
"""Microseconds in a millisecond."""


class UserTimers:
    """Timers by owner, in milliseconds."""

    def __init__(self, keys: Keys, view: View, layout: Layout, due: pa.RecordBatch) -> None:
        """`due` are the stored timers that the clock has reached."""
        self._keys, self._view, self._layout = keys, view, layout
        self._changes: dict[int, dict[int, bool]] = {}
        """By owner and moment, the last change: true for set."""
        self._due: list[tuple[int, int]] = list(zip((subs(due) // MS).tolist(), keys.of(due).tolist(), strict=True))
        self._stored: dict[int, set[int]] | None = None

    def register(self, owner: int, at_ms: int) -> None:
        """Set a timer. Setting it twice sets it once."""
        self._changes.setdefault(owner, {})[at_ms] = True

    def delete(self, owner: int, at_ms: int) -> None:
        """Delete a timer. Nothing happens if it is not set."""
        self._changes.setdefault(owner, {})[at_ms] = False

    def of(self, owner: int) -> list[int]:
        """The timers of a key, in the order in which Spark's store lists them: by the bytes of the moment, the lowest byte first."""
        if self._stored is None:
            self._stored = self._read()
        found = set(self._stored.get(owner, ()))
        for at_ms, is_set in self._changes.get(owner, {}).items():
            (found.add if is_set else found.discard)(at_ms)
        return sorted(found, key=lambda at_ms: at_ms.to_bytes(8, "little", signed=True))

    def pop_due(self, until_ms: int) -> Iterator[tuple[int, int]]:
        """Owner and moment of the timers at or before `until_ms`, earliest first. Each is deleted after it was given."""
        due = {(at_ms, owner) for at_ms, owner in self._due if at_ms <= until_ms and self._changes.get(owner, {}).get(at_ms, True)}
        for owner, mine in self._changes.items():
            due.update((at_ms, owner) for at_ms, is_set in mine.items() if is_set and at_ms <= until_ms)
        for at_ms, owner in sorted(due):
            yield owner, at_ms
            self.delete(owner, at_ms)

    def rows(self) -> pa.RecordBatch | None:
        """The changed rows of a new run."""
        changes = [(owner, at_ms, is_set) for owner, mine in self._changes.items() for at_ms, is_set in mine.items()]
        if not changes:
            return None
        owners, at_ms, is_set = (np.array(column) for column in zip(*changes, strict=True))
        gone = ~is_set
        rows = pa.RecordBatch.from_arrays([*self._keys.take(owners), pa.array(at_ms * MS)], schema=self._layout.schema)
        rows = rows.append_column(DELETED, pa.array(gone)) if gone.any() else rows
        return sort_into_segments(rows, self._layout)[0]

    def _read(self) -> dict[int, set[int]]:
        wanted = np.unique(hashes(self._keys.rows))
        rows = merge_rows([lookup.rows_of_hashes(run.rows, wanted) for run in self._view.runs()], self._layout)
        found: dict[int, set[int]] = defaultdict(set)
        for owner, at_us in zip(self._keys.of(rows).tolist(), subs(rows).tolist(), strict=True):
            found[owner].add(at_us // MS)
        return found


def due_until(view: View, layout: Layout, until_us: int) -> pa.RecordBatch:
    """The stored timers at or before a moment, merged."""
    parts = []
    for run in view.runs():
        if run.ref.sub_min is not None and run.ref.sub_min > until_us:
            continue
        at = np.flatnonzero(subs(run.rows) <= until_us)
        if len(at):
            parts.append(run.rows.take(pa.array(at)))
    return merge_rows(parts, layout)
