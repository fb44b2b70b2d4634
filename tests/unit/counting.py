"""A small cluster of counting instances, for tests of state primitives. Places are folders; a lost place is a removed folder."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import numpy as np
import pyarrow as pa

from headrace.ids import SLOTS, slot_of
from headrace.state.layout import Indices, Layout, Policy, hashes
from headrace.state.merge import merge_rows
from headrace.state.places import Place
from headrace.state.primitives import (
    Instance,
    backup_state,
    trim_upstream,
)
from headrace.state.routing import Routing
from headrace.state.run import RunReader, write_run
from headrace.state.scale_out import scale_out

LAYOUT = Layout(keys=(("k", pa.int64()),), values=(("n", pa.int64()),), policy=Policy.COMBINE)
KEYS = 64


def add(columns: list[pa.Array], starts: Indices) -> list[pa.Array]:
    return [pa.array(np.add.reduceat(columns[0].to_numpy(), starts))]


def tuples(keys: list[int]) -> pa.RecordBatch:
    """Keys spread over the whole ring: key k has the hash k * 2^58."""
    return pa.RecordBatch.from_arrays([pa.array([k << 58 for k in keys], pa.uint64()), pa.array(keys, pa.int64())], names=["h", "k"])


def process(o: Instance, u: Instance, version: int, rows: pa.RecordBatch) -> None:
    """Count keys: write a run with what the tuples add. A version that the state reflects is a duplicate, and dropped."""
    if version <= o.reflected.get(u.id, -1):
        return
    o.reflected[u.id] = version
    counted = sorted(Counter(rows.column("k").to_pylist()).items())
    if counted:
        keys, counts = zip(*counted, strict=True)
        columns = [pa.array([k << 58 for k in keys], pa.uint64()), pa.array(keys, pa.int64()), pa.array(counts, pa.int64())]
        batch = pa.RecordBatch.from_arrays(columns, schema=LAYOUT.schema)
        lo, hi = min(r[0] for r in o.ranges), max(r[1] for r in o.ranges)
        name = f"{o.id}-{u.id}-{version}.arrow"
        o.runs.insert(0, write_run(o.place.runs, name, batch, LAYOUT, seq=version, lo=lo, hi=hi, sync=False))


def counts(o: Instance) -> Counter[int]:
    reader = RunReader(o.place.runs, LAYOUT)
    rows = merge_rows([reader.open(ref).rows for ref in o.runs], LAYOUT, add) if o.runs else LAYOUT.empty()
    return Counter(dict(zip(rows.column("k").to_pylist(), rows.column("n").to_pylist(), strict=True)))


@dataclass
class Cluster:
    """Two upstream instances that send keys, and a downstream operator that counts them."""

    root: Path
    random: Random
    up: list[Instance] = field(default_factory=list)
    down: dict[int, Instance] = field(default_factory=dict)
    sent: Counter[int] = field(default_factory=Counter)
    version: int = 0
    places: int = 0

    def __post_init__(self) -> None:
        self.up = [Instance(f"split-{i}", self.place(), ((0, SLOTS),), routing=Routing.even(1)) for i in range(2)]
        self.down = {0: Instance("count-0", self.place(), ((0, SLOTS),))}

    def place(self) -> Place:
        self.places += 1
        return Place.made(f"machine {self.places}", self.root / f"machine{self.places}")

    def send(self, batches: int = 1) -> None:
        """Send keys. Upstream instances keep what they send; downstream instances that are alive process it."""
        for _ in range(batches):
            for u in self.up:
                keys = [self.random.randrange(KEYS) for _ in range(20)]
                self.sent.update(keys)
                rows = tuples(keys)
                u.buffer.append(self.version, rows)
                for number, o in self.down.items():
                    if not o.place.lost:
                        mine = u.routing.table()[slot_of(hashes(rows))] == number
                        process(o, u, self.version, rows.filter(pa.array(mine)))
            self.version += 1

    def backup(self) -> None:
        for o in self.down.values():
            backup_state(o, self.up)
        trim_upstream(self.up, list(self.down.values()))

    def scale_out(self, number: int, parallelism: int, new_place: Callable[[], Place] | None = None) -> None:
        done = scale_out(self.down[number], number, parallelism, self.up, new_place or self.place)
        self.down |= done.instances
        for o, u, version, rows in done.to_replay(self.up):
            process(o, u, version, rows)

    def counted(self) -> Counter[int]:
        return sum((counts(o) for o in self.down.values()), Counter())


def lose(place: Place) -> None:
    shutil.rmtree(place.directory)
