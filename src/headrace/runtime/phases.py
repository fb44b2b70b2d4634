"""How long the parts of a batch, or of an instance's task, took."""

from __future__ import annotations

import time
from dataclasses import dataclass


@dataclass
class Phase:
    """Adds the time spent in a block to a table of phases."""

    table: dict[str, float]
    name: str
    began: float = 0.0

    def __enter__(self) -> None:
        self.began = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        took_s = time.perf_counter() - self.began
        self.table[self.name] = self.table.get(self.name, 0.0) + took_s * 1000
        if isinstance(self.table, Phases):
            end_s = time.time()
            self.table.spans.append((self.name, end_s - took_s, end_s))


class Phases(dict[str, float]):
    """The phases of a batch: milliseconds by name, and when each was."""

    def __init__(self) -> None:
        super().__init__()
        self.spans: list[tuple[str, float, float]] = []
        """Name, begin and end, in seconds since the epoch."""
