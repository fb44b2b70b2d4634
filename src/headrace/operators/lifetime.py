"""How long the rows of a store live, and when results fall due from them.

A lifetime is a small value. The engine asks it three things: which runs hold rows that fall due, below which sub-key all rows have
expired, and which of some rows have expired by another rule.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from headrace.operators.shape import TimerClock
from headrace.operators.windows import TimeWindow
from headrace.state.run import RunRef

NEVER = 2**62
"""The event time, in microseconds, of a row that has none. Such a row is never late and never due."""
NOTHING_YET = -(2**52)
"""A watermark before all event times, in milliseconds."""
WRITTEN = "written"
"""Value column of stores with a time to live: when the row was written, in microseconds."""


class Lifetime:
    """When the rows of a store fall due and when they expire. The base class answers: never."""

    def is_due(self, ref: RunRef, after_ms: int, until_ms: int) -> bool:
        """True if the run may hold rows whose results fall due while the watermark moves from `after_ms` to `until_ms`."""
        return False

    def live_from(self, watermark_ms: int) -> int | None:
        """The lowest sub-key that is still needed at this watermark; None if rows do not expire by sub-key."""
        return None

    def unexpired(self, rows: pa.RecordBatch, watermark_ms: int, now_ms: int) -> pa.RecordBatch:
        """The rows that have not expired by a rule other than the sub-key's. An older row of a key never outlives a newer one."""
        return rows


@dataclass(frozen=True)
class Forever(Lifetime):
    """Rows live until the operator replaces or deletes them."""


@dataclass(frozen=True)
class UntilWindowsClose(Lifetime):
    """The sub-key is a pane. A row lives until the last window over its pane has closed; each window falls due when it closes."""

    window: TimeWindow

    def is_due(self, ref: RunRef, after_ms: int, until_ms: int) -> bool:
        if ref.sub_min is None or ref.sub_max is None:
            return False
        return self.window.any_over(ref.sub_min, ref.sub_max, after_ms * 1000, until_ms * 1000)

    def live_from(self, watermark_ms: int) -> int | None:
        return self.window.live_from(watermark_ms * 1000)


@dataclass(frozen=True)
class UntilWatermark(Lifetime):
    """The sub-key is an event time in microseconds. A row lives until the watermark has passed that time by `keep_us`."""

    keep_us: int = 0
    due_us: int | None = None
    """A row falls due when the watermark has passed its time by this much; None: never."""

    def is_due(self, ref: RunRef, after_ms: int, until_ms: int) -> bool:
        if self.due_us is None or ref.sub_min is None or ref.sub_max is None:
            return False
        return ref.sub_min <= until_ms * 1000 - self.due_us and ref.sub_max > after_ms * 1000 - self.due_us

    def live_from(self, watermark_ms: int) -> int | None:
        return watermark_ms * 1000 - self.keep_us + 1


@dataclass(frozen=True)
class TimeToLive(Lifetime):
    """A row expires this long after it was written, which its column `WRITTEN` says."""

    ttl_us: int
    clock: TimerClock

    def unexpired(self, rows: pa.RecordBatch, watermark_ms: int, now_ms: int) -> pa.RecordBatch:
        if not rows.num_rows:
            return rows
        clock_us = (now_ms if self.clock is TimerClock.PROCESSING else watermark_ms) * 1000
        alive = rows.column(WRITTEN).to_numpy() > clock_us - self.ttl_us
        return rows if bool(alive.all()) else rows.filter(pa.array(alive))


@dataclass(frozen=True)
class UntilFired(Lifetime):
    """The sub-key is the moment of a timer in microseconds. The operator deletes it when it has fired; the watermark does not.

    User code may set a timer for a moment that the watermark has passed. It fires in the next step of a batch.
    """

    def is_due(self, ref: RunRef, after_ms: int, until_ms: int) -> bool:
        if ref.sub_min is None or ref.sub_max is None:
            return False
        return ref.sub_min <= until_ms * 1000 and ref.sub_max > after_ms * 1000


FOREVER = Forever()
UNTIL_FIRED = UntilFired()
