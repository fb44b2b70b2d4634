"""The event times of the programs' rows: a minute for each file, with rows that are late."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

import pyarrow as pa

BEGIN = datetime(2024, 5, 1, 12, 0, tzinfo=UTC)
TIME = pa.timestamp("us", tz="UTC")


def moment(rng: random.Random, file: int, width_s: int = 60) -> datetime:
    """A time in the minute of the file; now and then much earlier, so that the row is late."""
    late_s = rng.choice([0] * 12 + [45, 200])
    return BEGIN + timedelta(seconds=file * width_s + rng.randrange(width_s) - late_s, microseconds=rng.choice([0, 0, 500_000]))
