"""Traffic on one expressway, second by second: positions, speeds, accidents and questions.

Linear Road's own generator may not be redistributed, so this one makes data of the same form: 100 segments of 5,280 feet in two directions,
lanes 0 (entry), 1 to 3 (travel) and 4 (exit); a vehicle reports every 30 s; the number of reports climbs from 15 to 1,700 a second over
three hours; accidents happen and clear; one report in a hundred comes with a question. The same seed gives the same traffic.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

COLUMNS = ("Type", "Time", "VID", "Spd", "XWay", "Lane", "Dir", "Seg", "Pos", "QID", "Sinit", "Send", "DOW", "TOD", "Day")
SCHEMA = pa.schema([(name, pa.int32()) for name in COLUMNS])

SEGMENTS = 100
SEGMENT_FT = 5280
ROAD_FT = SEGMENTS * SEGMENT_FT
PERIOD_S = 30
FT_PER_REPORT = 44
"""A mile per hour in feet per 30 s."""
ENTRY, EXIT = 0, 4
POSITION, BALANCE, DAILY, TRAVEL = 0, 2, 3, 4
DAYS = 69
DROVE = 0.8
LANE_CHANGES = 0.1

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Traffic:
    """The parameters of a day."""

    seed: int = 1
    rate_first: float = 15.0
    """Reports per second at the beginning."""
    rate_last: float = 1700.0
    """Reports per second after three hours."""
    curve: float = 1.0
    """With 1 the rate grows linearly; with more it grows later."""
    ramp_s: int = 3 * 3600
    accident_every_s: float = 600.0
    accident_s: tuple[int, int] = (300, 1200)
    questions: float = 0.01

    def rate(self, second: int) -> float:
        """Reports a second.

        >>> Traffic().rate(0), Traffic().rate(5400), Traffic().rate(3 * 3600)
        (15.0, 857.5, 1700.0)
        """
        return self.rate_first + (self.rate_last - self.rate_first) * min(1.0, second / self.ramp_s) ** self.curve


@dataclass
class Group:
    """The vehicles that report in the same second of every half minute; one entry per vehicle."""

    vid: Ints
    dir: Ints
    pos: Ints
    lane: Ints
    spd: Ints
    wish: Ints
    """The speed that it tries to reach."""
    exit: Ints
    """The segment where it leaves the road."""
    stopped_until: Ints

    @classmethod
    def empty(cls) -> Group:
        return cls(*(np.zeros(0, dtype=np.int64) for _ in range(8)))

    @property
    def seg(self) -> Ints:
        return self.pos // SEGMENT_FT

    def __len__(self) -> int:
        return len(self.vid)

    def keep(self, which: npt.NDArray[np.bool_]) -> None:
        for name, values in vars(self).items():
            setattr(self, name, values[which])

    def add(self, other: Group) -> None:
        for name, values in vars(self).items():
            setattr(self, name, np.concatenate([values, getattr(other, name)]))


@dataclass
class Crash:
    """A stopped vehicle, until another one runs into it."""

    dir: int
    seg: int
    pos: int
    lane: int
    until_s: int


class Road:
    """One expressway."""

    def __init__(self, traffic: Traffic) -> None:
        self.traffic = traffic
        self.random = np.random.default_rng(traffic.seed)
        self.groups = [Group.empty() for _ in range(PERIOD_S)]
        self.waves = self.random.random((2, 2)) * 2 * np.pi
        self.slow_until = np.zeros((2, SEGMENTS), dtype=np.int64)
        self.crashes: list[Crash] = []
        self.vids = 0
        self.qids = 0

    def seconds(self, until_s: int) -> Iterator[pa.Table]:
        """All tuples from the beginning of the day, one table per second."""
        for now in range(until_s):
            yield self.second(now)

    def second(self, now: int) -> pa.Table:
        group = self.groups[now % PERIOD_S]
        group.keep(group.lane != EXIT)
        self._drive(group, now)
        self._enter(group, now)
        self._crash(group, now)
        return self._told(group, now)

    def _drive(self, group: Group, now: int) -> None:
        """The speed of the traffic. Jams move in waves along the road; an accident slows everything down."""
        wave = self.waves[group.dir]
        jam = np.sin(group.seg / 7 + now / 900 + wave[:, 0]) + np.sin(group.seg / 17 - now / 1500 + wave[:, 1])
        factor = np.where(self.slow_until[group.dir, group.seg] > now, 0.15, np.clip(0.75 - 0.3 * jam, 0.15, 1.0))
        wanted = group.wish * factor + self.random.integers(-5, 6, len(group))
        free = group.stopped_until <= now
        group.spd = np.where(free, np.clip(wanted, 1, 100), 0).astype(np.int64)
        step = group.spd * FT_PER_REPORT
        group.pos = np.clip(group.pos + np.where(group.dir == 0, step, -step), 0, ROAD_FT - 1)
        changes = free & ((group.lane == ENTRY) | (self.random.random(len(group)) < LANE_CHANGES))
        group.lane = np.where(changes, self.random.integers(1, 4, len(group)), group.lane)
        there = np.where(group.dir == 0, group.seg >= group.exit, group.seg <= group.exit)
        group.lane = np.where(free & there, EXIT, group.lane)

    def _enter(self, group: Group, now: int) -> None:
        """Add the missing vehicles; they begin on a ramp."""
        count = max(0, round(self.traffic.rate(now)) - len(group))
        dir_ = self.random.integers(0, 2, count)
        begin = self.random.integers(0, SEGMENTS - 1, count)
        length = self.random.integers(2, 50, count)
        seg = np.where(dir_ == 0, begin, SEGMENTS - 1 - begin)
        exit_ = np.where(dir_ == 0, np.minimum(seg + length, SEGMENTS - 1), np.maximum(seg - length, 0))
        pos = seg * SEGMENT_FT + self.random.integers(0, SEGMENT_FT // 4, count)
        vid = np.arange(self.vids, self.vids + count)
        self.vids += count
        zeros = np.zeros(count, dtype=np.int64)
        group.add(Group(vid, dir_, pos, zeros + ENTRY, zeros + 20, self.random.integers(45, 75, count), exit_, zeros))

    def _crash(self, group: Group, now: int) -> None:
        """Sometimes a vehicle stops and another one in its segment runs into it. Both stand at one place until it is cleared."""
        travelling = np.flatnonzero((group.lane != ENTRY) & (group.lane != EXIT) & (group.stopped_until <= now))
        for crash in self.crashes:
            near = [at for at in travelling if group.dir[at] == crash.dir and group.seg[at] == crash.seg]
            if near:
                self._stop(group, near[0], crash)
                self.slow_until[crash.dir, crash.seg] = crash.until_s
                self.crashes.remove(crash)
                return
        if len(travelling) and self.random.random() < 1 / self.traffic.accident_every_s:
            at = self.random.choice(travelling)
            until_s = now + int(self.random.integers(*self.traffic.accident_s))
            crash = Crash(int(group.dir[at]), int(group.seg[at]), int(group.pos[at]), int(group.lane[at]), until_s)
            self._stop(group, at, crash)
            self.crashes.append(crash)

    def _stop(self, group: Group, at: int, crash: Crash) -> None:
        group.pos[at], group.lane[at], group.spd[at], group.stopped_until[at] = crash.pos, crash.lane, 0, crash.until_s

    def _told(self, group: Group, now: int) -> pa.Table:
        """Reports; some are followed by a question of the same vehicle."""
        count = len(group)
        nothing = np.full(count, -1)
        of = {
            "Type": np.zeros(count), "Time": np.full(count, now), "VID": group.vid, "Spd": group.spd, "XWay": np.zeros(count),
            "Lane": group.lane, "Dir": group.dir, "Seg": group.seg, "Pos": group.pos,
        }  # fmt: skip
        reports = np.stack([of.get(name, nothing) for name in COLUMNS], axis=1).astype(np.int32)
        asking = np.flatnonzero(self.random.random(count) < self.traffic.questions)
        rows = np.insert(reports, asking + 1, self._questions(group.vid[asking], now), axis=0)
        return pa.table([pa.array(rows[:, at]) for at in range(len(COLUMNS))], schema=SCHEMA)

    def _questions(self, vids: Ints, now: int) -> npt.NDArray[np.int32]:
        count, nothing = len(vids), np.full(len(vids), -1)
        kind = self.random.choice([BALANCE, DAILY, TRAVEL], count, p=[0.5, 0.1, 0.4])
        daily, travel = kind == DAILY, kind == TRAVEL
        qid = np.arange(self.qids, self.qids + count)
        self.qids += count

        def only(which: npt.NDArray[np.bool_], values: Ints) -> Ints:
            return np.where(which, values, -1)

        of = {
            "Type": kind, "Time": np.full(count, now), "VID": vids, "QID": qid,
            "XWay": only(daily | travel, np.zeros(count, dtype=np.int64)),
            "Sinit": only(travel, self.random.integers(0, SEGMENTS, count)), "Send": only(travel, self.random.integers(0, SEGMENTS, count)),
            "DOW": only(travel, self.random.integers(1, 8, count)), "TOD": only(travel, self.random.integers(1, 1441, count)),
            "Day": only(daily, self.random.integers(1, DAYS + 1, count)),
        }  # fmt: skip
        return np.stack([of.get(name, nothing) for name in COLUMNS], axis=1).astype(np.int32)


def history(vids: int, seed: int = 1) -> pa.Table:
    """What vehicles 0, 1, ... spent on each of the last 69 days. Most of them, but not all, were driving."""
    random = np.random.default_rng([seed, DAYS])
    vid, day = np.meshgrid(np.arange(vids), np.arange(1, DAYS + 1), indexing="ij")
    drove = random.random(vid.shape) < DROVE
    toll = random.integers(0, 100, vid.shape)
    columns = [vid[drove], day[drove], np.zeros(int(drove.sum())), toll[drove]]
    return pa.table([pa.array(each.astype(np.int32)) for each in columns], names=["VID", "Day", "XWay", "Toll"])
