"""The machines, the operators that run on them, and the pool of ready machines (SEEP 5.2).

requested ──start_s──> ready ──taken──> working ──released──> ready ──given back──> gone
                                           └────────fails────────────────────────────┘
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np

from headrace.control.observation import Flags, Floats, Owners
from headrace.control.pool import PoolObservation
from headrace.errors import require
from headrace.sim.clock import SimulatedClock
from headrace.sim.model import MachineModel

Grant = Callable[[list[int]], None]


class Machines:
    """All machines of a simulation, by number. A number is never used again. Machine i is in zone ``i % zones``."""

    def __init__(self, model: MachineModel, clock: SimulatedClock, rng: np.random.Generator) -> None:
        self.model = model
        self._rng = rng
        self._clock = clock
        self.speed: Floats = np.zeros(0)
        """CPU seconds per second of each machine; 0 if it is gone."""
        self.zone: Owners = np.zeros(0, dtype=np.int64)
        self.alive: Flags = np.zeros(0, dtype=np.bool_)
        self.ready: deque[int] = deque()
        self.starting = 0
        self.working: set[int] = set()
        self.taken = 0
        """The number of machines taken from the pool since the last `observe`."""
        self._queue: deque[tuple[int, list[int], Grant]] = deque()

    def added(self, count: int, ready: bool) -> list[int]:
        """Add machines, to the pool if ``ready`` or as working ones otherwise, and return their numbers."""
        first = len(self.speed)
        numbers = list(range(first, first + count))
        speeds = np.full(count, self.model.capacity)
        if self.model.speed_deviation:
            # A gamma distribution, because a speed is never negative.
            shape = self.model.speed_deviation**-2.0
            speeds = speeds * self._rng.standard_gamma(shape, count) / shape
        self.speed = np.r_[self.speed, speeds]
        self.zone = np.r_[self.zone, np.array(numbers, dtype=np.int64) % self.model.zones]
        self.alive = np.r_[self.alive, np.ones(count, dtype=np.bool_)]
        if ready:
            self.ready.extend(numbers)
            self._serve()
        else:
            self.working.update(numbers)
        return numbers

    def take(self, count: int, grant: Grant) -> None:
        """Call ``grant`` with this many machines as soon as they are ready. Requests are served in order."""
        self._queue.append((count, [], grant))
        self._serve()

    def _serve(self) -> None:
        while self._queue:
            count, got, grant = self._queue[0]
            # Ready machines are kept for the oldest request. Otherwise small requests could starve a large one.
            while self.ready and len(got) < count:
                got.append(self.ready.popleft())
                self.working.add(got[-1])
                self.taken += 1
            got[:] = [machine for machine in got if self.alive[machine]]
            if len(got) < count:
                return
            self._queue.popleft()
            grant(got)

    @property
    def waiting(self) -> int:
        """The number of machines that requests still wait for."""
        return sum(count - len(got) for count, got, _ in self._queue)

    @property
    def count(self) -> int:
        """The number of machines that work, are ready, or are starting."""
        return len(self.working) + len(self.ready) + self.starting

    def observe(self) -> PoolObservation:
        """The pool as its policy sees it. Resets the count of machines taken."""
        taken, self.taken = self.taken, 0
        return PoolObservation(self._clock.now_s, len(self.working), len(self.ready), self.starting, taken, self.waiting)

    def request(self, total: int) -> None:
        """Start machines until there are ``total``, those included that are starting."""
        for _ in range(min(total, self.model.count_max) - self.count):
            self.starting += 1
            self._clock.after(self.model.start_s, self._started)

    def _started(self) -> None:
        self.starting -= 1
        self.added(1, ready=True)

    def give_back(self, count: int) -> None:
        """Give up ready machines, the newest first."""
        for _ in range(min(count, len(self.ready))):
            self._gone(self.ready.pop())

    def release(self, machines: list[int]) -> None:
        """Return working machines to the pool. Dead ones are dropped."""
        for machine in machines:
            require(machine in self.working or not self.alive[machine], f"machine {machine} works or is dead")
            self.working.discard(machine)
            if self.alive[machine]:
                self.ready.append(machine)
        self._serve()

    def fail(self, machine: int) -> None:
        """Kill a machine."""
        self.working.discard(machine)
        if machine in self.ready:
            self.ready.remove(machine)
        self._gone(machine)

    def _gone(self, machine: int) -> None:
        self.alive[machine] = False
        self.speed[machine] = 0.0
