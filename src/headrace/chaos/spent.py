"""Where the time of a campaign goes: seconds by what was done. Parts inside of others are not counted twice."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass
class Spent:
    """Seconds by what was done, for one thread.

    >>> spent = Spent()
    >>> with spent.on("batches"):
    ...     with spent.on("starting the driver"):
    ...         time.sleep(0.02)
    >>> spent.seconds["batches"] < 0.01 < spent.seconds["starting the driver"]
    True
    """

    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    _inner: list[float] = field(default_factory=list)
    """For each part that is open: how long the parts inside of it took."""

    @contextmanager
    def on(self, what: str) -> Iterator[None]:
        """Count the time inside."""
        began_s = time.monotonic()
        self._inner.append(0.0)
        try:
            yield
        finally:
            took_s = time.monotonic() - began_s
            self.seconds[what] += took_s - self._inner.pop()
            if self._inner:
                self._inner[-1] += took_s


def told(seconds: Mapping[str, float]) -> str:
    """The longest parts in one line.

    >>> told({"batches": 30.2, "comparing": 10.1})
    'batches 30 s, comparing 10 s'
    """
    longest = sorted(seconds.items(), key=lambda item: -item[1])
    return ", ".join(f"{what} {each:.0f} s" for what, each in longest if each >= 0.5)
