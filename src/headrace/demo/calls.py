"""Generated calls: who called whom, when, and for how long.

The stream is divided into *ticks* of a fifth of a second. The calls of a tick depend only on the seed and the number of the tick, so the
same seed gives the same input on every machine. Event time runs `SPEED` times as fast as the clock: a minute of the demo is an hour of
calls. Calls arrive a little out of order in event time.

The rate rises to a peak and falls again. Then, for a while, one customer makes two of five calls.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.demo.measure import Arrival

TICK_S = 0.2
SPEED = 60
BEGIN = datetime(2026, 3, 2, 8, 0, tzinfo=UTC)
DISORDER_MEAN_S, DISORDER_MAX_S = 6.0, 45.0
"""How late calls are, in event time."""

CUSTOMERS = 10_000
ZIPF = 0.8
DURATION_MEDIAN_S, DURATION_SPREAD, CUSTOMER_SPREAD = 240.0, 0.6, 0.5
"""Durations are log-normal around the customer's median. These medians are log-normal around a common median."""

_BEGIN_US = int(BEGIN.timestamp()) * 1_000_000
_TIME = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema([("src", pa.string()), ("dst", pa.string()), ("start", _TIME), ("end", _TIME), ("ts", _TIME)])


SHAPE = ((0.0, 0.3), (0.08, 0.3), (0.2, 2.1), (0.34, 2.1), (0.4, 0.8), (0.62, 0.8), (0.65, 0.5), (0.7, 0.4), (1.0, 0.3))
"""The rate over the demo, as points that lines connect: the part of the time, and how high the rate is. The scale does not matter."""
HOT_FROM, HOT_UNTIL, HOT_SHARE = 0.42, 0.62, 0.4
"""From when until when, as parts of the time, one customer makes so large a share of all calls."""
HOT_CUSTOMER = 7
"""Its number. Before and after it is one of the busier ones."""


@dataclass(frozen=True)
class RateCurve:
    """The rate in rows per second over the demo."""

    mean: float
    seconds: float

    @cached_property
    def _scale(self) -> float:
        x, y = np.array(SHAPE).T
        return self.mean / float(np.trapezoid(y, x))

    def at(self, second: float) -> float:
        """The rate at a second of the demo.

        >>> curve = RateCurve(mean=400, seconds=60)
        >>> [round(curve.at(s)) for s in (0, 15, 30, 60)]
        [138, 963, 367, 138]
        """
        x, y = np.array(SHAPE).T
        return float(np.interp(second / self.seconds, x, y)) * self._scale

    @property
    def peak(self) -> float:
        """The highest rate."""
        return max(height for _, height in SHAPE) * self._scale

    def rows(self, tick: int) -> int:
        """The number of calls in a tick."""
        return round(self.at((tick + 0.5) * TICK_S) * TICK_S)

    def is_hot(self, second: float) -> bool:
        """True while the hot customer is hot."""
        return HOT_FROM <= second / self.seconds < HOT_UNTIL


@dataclass(frozen=True)
class CallMaker:
    """Generates the calls of any tick."""

    curve: RateCurve
    seed: int
    customers: int = CUSTOMERS
    hot_share: float = 0.0
    """The share of the calls that the hot customer makes while it is hot, in addition to its usual ones."""

    @cached_property
    def _names(self) -> pa.Array:
        return pa.array([f"customer-{i:05d}" for i in range(self.customers)])

    @cached_property
    def _reach(self) -> npt.NDArray[np.float64]:
        """Cumulative shares of the calls: the customer of rank r makes 1/r^ZIPF as many as the first."""
        weights = 1.0 / np.arange(1, self.customers + 1) ** ZIPF
        return np.asarray(np.cumsum(weights) / weights.sum())

    @cached_property
    def _medians_s(self) -> npt.NDArray[np.float64]:
        spread = np.random.default_rng([self.seed, 0]).normal(0.0, CUSTOMER_SPREAD, self.customers)
        return np.asarray(DURATION_MEDIAN_S * np.exp(spread))

    def tick(self, tick: int) -> pa.Table:
        """The calls of a tick, in order of arrival."""
        rng = np.random.default_rng([self.seed, 1, tick])
        rows = self.curve.rows(tick)
        src = np.searchsorted(self._reach, rng.random(rows))
        if self.hot_share and self.curve.is_hot(tick * TICK_S):
            src[rng.random(rows) < self.hot_share] = HOT_CUSTOMER
        dst = rng.integers(0, self.customers, rows)
        arrival_s = np.sort((tick + rng.random(rows)) * TICK_S) * SPEED
        behind_s = np.minimum(rng.exponential(DISORDER_MEAN_S, rows), DISORDER_MAX_S)
        ended_us = _BEGIN_US + ((arrival_s - behind_s) * 1e6).astype(np.int64)
        duration_s = self._medians_s[src] * np.exp(rng.normal(0.0, DURATION_SPREAD, rows))
        began_us = ended_us - np.ceil(duration_s).astype(np.int64) * 1_000_000
        times = [pa.array(us, pa.int64()).cast(_TIME) for us in (began_us, ended_us, ended_us)]
        return pa.Table.from_arrays([self._names.take(pa.array(src)), self._names.take(pa.array(dst)), *times], schema=SCHEMA)


def event_time_ms(second: float) -> float:
    """The event time at a second of the demo."""
    return _BEGIN_US / 1000 + second * SPEED * 1000


@dataclass
class CallWriter:
    """Gives the calls of each tick to the lanes, in a thread, at the pace of the clock."""

    maker: CallMaker
    prepare: Callable[[int, pa.Table], Callable[[], None]]
    """Prepares the calls of a tick, and gives what makes them visible to the lanes."""
    seconds: float
    by_files: bool = True
    """True if each tick is a file; False if calls are records."""
    arrivals: list[Arrival] = field(default_factory=list)
    error: BaseException | None = None
    _begin_s: float = 0.0
    _warm: int = 1
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    @property
    def rows(self) -> int:
        return sum(arrival.rows for arrival in self.arrivals)

    @property
    def second(self) -> float:
        """The seconds since the demo began."""
        return min(time.time() - self._begin_s, self.seconds) if self._begin_s else 0.0

    @property
    def running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def write(self, tick: int) -> None:
        calls = self.maker.tick(tick)
        publish = self.prepare(tick, calls)
        # The time is taken before the calls become visible. Otherwise a fast query could seem to process rows before they arrive.
        at_s = time.time()
        publish()
        self.arrivals.append(Arrival(at_s, calls.num_rows))

    def start(self, warm: int = 1) -> None:
        """Begin with this tick; those before were for warming up."""
        self._warm, self._begin_s = warm, time.time()
        self._thread = threading.Thread(target=self._run, name="headrace-demo-calls", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            for tick in range(max(1, math.ceil(self.seconds / TICK_S) - 1)):
                if self._stop.wait(max(0.0, self._begin_s + (tick + 1) * TICK_S - time.time())):
                    return
                self.write(self._warm + tick)
        except BaseException as error:
            # Nobody would see an exception of the thread, so the demo reads this field.
            self.error = error


def about(maker: CallMaker) -> dict[str, str]:
    """A description of the input for the report."""
    curve = maker.curve
    return {
        "calls": f"{curve.mean:,.0f} a second on average, {curve.peak:,.0f} at the peak",
        "customers": f"{maker.customers:,}, the r-th busiest makes 1/r^{ZIPF} as many calls as the first",
        "hot customer": f"{maker.hot_share:.0%} of the calls from {HOT_FROM * curve.seconds:.0f} s to {HOT_UNTIL * curve.seconds:.0f} s",
        "seed": str(maker.seed),
    }
