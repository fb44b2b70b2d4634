"""SEEP's primitives and its scale out, each alone, on real files; a place is a directory, and a place that is lost a directory removed."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import numpy as np
import pyarrow as pa
import pytest

from headrace.errors import CorruptStateError, InvariantError, PlaceLostError
from headrace.ids import SLOTS, slot_of
from headrace.state.buffer import Spilled
from headrace.state.layout import Indices, Layout, Policy, hashes
from headrace.state.merge import merge_rows
from headrace.state.places import Place, StateCheckpoint
from headrace.state.primitives import (
    Instance,
    backup_state,
    checkpoint_state,
    merge,
    partition_buffer_state,
    partition_processing_state,
    partition_routing_state,
    persist,
    replay_buffer_state,
    restore_state,
    spill,
    split_ranges,
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
        """Upstream keeps what it sends; downstream instances that live process it."""
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


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path, Random(1))


def lose(place: Place) -> None:
    shutil.rmtree(place.directory)


def test_a_checkpoint_names_state_and_what_it_reflects(cluster: Cluster) -> None:
    cluster.send(3)
    o = cluster.down[0]
    taken = checkpoint_state(o)
    assert taken.reflected == {"split-0": 2, "split-1": 2}
    assert len(taken.runs) == 6
    cluster.send()
    assert len(taken.runs) == 6, "what comes later does not change it"
    assert StateCheckpoint.from_json(taken.to_json()) == taken


def test_a_backup_goes_to_a_place_upstream_and_is_a_delta(cluster: Cluster) -> None:
    cluster.send(3)
    o = cluster.down[0]
    first = backup_state(o, cluster.up)
    assert o.holder in [u.place for u in cluster.up]
    assert first == sum(ref.bytes for ref in o.runs)
    cluster.send(1)
    second = backup_state(o, cluster.up)
    assert second == sum(ref.bytes for ref in o.runs[:2]), "only what is new is shipped"
    assert o.holder.retrieve_backup(o.id) == checkpoint_state(o)


def test_backups_spread_over_the_holders_and_the_old_holder_is_released(cluster: Cluster, tmp_path: Path) -> None:
    many = [Instance(f"count-{i}", cluster.down[0].place, ((0, SLOTS),)) for i in range(40)]
    for o in many:
        backup_state(o, cluster.up)
    held = Counter(o.holder.name for o in many if o.holder)
    assert len(held) == 2
    assert min(held.values()) > 5
    moved = next(o for o in many if o.holder == cluster.up[0].place)
    backup_state(moved, cluster.up[1:])
    assert moved.holder == cluster.up[1].place
    with pytest.raises(PlaceLostError, match="wanted a backup of"):
        cluster.up[0].place.retrieve_backup(moved.id)


def test_buffers_are_trimmed_to_what_every_backup_reflects(cluster: Cluster) -> None:
    cluster.send(3)
    with pytest.raises(InvariantError, match="every instance has a backup"):
        trim_upstream(cluster.up, list(cluster.down.values()))
    cluster.backup()
    assert all(not u.buffer.batches for u in cluster.up)
    cluster.send(2)
    assert all(list(u.buffer.batches) == [3, 4] for u in cluster.up)


def test_a_restored_state_and_the_replay_are_the_state(cluster: Cluster) -> None:
    cluster.send(2)
    cluster.backup()
    cluster.send(2)
    o = cluster.down[0]
    assert o.holder is not None
    new = Instance("count-new", cluster.place(), ())
    assert restore_state(new, o.holder.retrieve_backup(o.id), o.holder, o.routing) > 0
    assert new.reflected == {"split-0": 1, "split-1": 1}
    for u in cluster.up:
        for version, rows in replay_buffer_state(u, new, 0):
            process(new, u, version, rows)
            process(new, u, version, rows)
    assert counts(new) == counts(o) == cluster.sent, "duplicates are told by their version"


def test_a_damaged_backup_is_found_when_it_is_used(cluster: Cluster) -> None:
    cluster.send(1)
    cluster.backup()
    o = cluster.down[0]
    assert o.holder is not None
    (o.holder.runs / o.runs[0].file).unlink()
    with pytest.raises(CorruptStateError, match="no such file"):
        restore_state(Instance("new", cluster.place(), ()), o.holder.retrieve_backup(o.id), o.holder, o.routing)


def test_state_is_partitioned_by_slots_from_the_backup(cluster: Cluster) -> None:
    cluster.send(4)
    cluster.backup()
    o = cluster.down[0]
    assert o.holder is not None
    parts = split_ranges(o.ranges, 3)
    targets = [cluster.place() for _ in parts]
    partition_processing_state(o.id, o.holder, parts, ["a", "b", "c"], targets)
    whole = Counter[int]()
    for name, ranges, target in zip("abc", parts, targets, strict=True):
        backup = target.retrieve_backup(name)
        assert (backup.ranges, backup.reflected) == (ranges, o.reflected)
        new = Instance(name, target, ranges, list(backup.runs))
        mine = counts(new)
        assert all(any(lo <= k << 6 < hi for lo, hi in ranges) for k in mine)
        whole += mine
    assert whole == cluster.sent


def test_a_split_may_follow_the_keys_seen() -> None:
    work = np.zeros(SLOTS)
    work[[10, 20, 30, 4000]] = [1, 1, 1, 3]
    halves = split_ranges(((0, SLOTS),), 2, work)
    assert [sum(work[lo:hi].sum() for lo, hi in half) for half in halves] == [3, 3]
    assert [len(split_ranges(((0, 5),), n)) for n in (1, 5)] == [1, 5]
    with pytest.raises(InvariantError, match="5 slots"):
        split_ranges(((0, 5),), 6)


def test_routing_and_buffers_are_partitioned_alike(cluster: Cluster) -> None:
    u = cluster.up[0]
    u.buffer.append(0, tuples([1, 60, 2]))
    u.buffer.append(1, tuples([61, 3]))
    u.routing = partition_routing_state(u.routing, 0, split_ranges(((0, SLOTS),), 2))
    assert u.routing.epoch == 1
    shown = {number: [(v, rows.column("k").to_pylist()) for v, rows in each] for number, each in partition_buffer_state(u).items()}
    assert shown == {0: [(0, [1, 2]), (1, [3])], 1: [(0, [60]), (1, [61])]}


def test_merge_is_the_inverse_of_a_partition(cluster: Cluster) -> None:
    cluster.send(3)
    cluster.backup()
    cluster.scale_out(0, 3)
    cluster.send(2)
    a, b, c = (cluster.down[i] for i in range(3))
    merge(a, b)
    merge(a, c)
    assert a.ranges == ((0, SLOTS),)
    assert counts(a) == cluster.sent
    c.reflected["split-0"] += 1
    with pytest.raises(InvariantError, match="reflect the same tuples"):
        merge(a, c)


def test_spilled_tuples_are_replayed_and_trimmed(cluster: Cluster) -> None:
    cluster.send(2)
    u, o = cluster.up[0], cluster.down[0]
    before = [rows.to_pylist() for _, rows in u.buffer.replay(-1, u.routing, 0)]
    assert spill(u) > 0
    assert all(isinstance(kept, Spilled) for kept in u.buffer.batches.values())
    assert [rows.to_pylist() for _, rows in u.buffer.replay(-1, u.routing, 0)] == before
    assert spill(u) == 0
    files = [kept.path for kept in u.buffer.batches.values() if isinstance(kept, Spilled)]
    cluster.backup()
    assert not any(path.exists() for path in files)
    assert counts(o) == cluster.sent


def test_persisted_state_outlives_all_machines(cluster: Cluster) -> None:
    cluster.send(2)
    durable = cluster.place()
    o = cluster.down[0]
    assert persist(o, durable) > 0
    assert persist(o, durable) == 0
    for place in (o.place, *(u.place for u in cluster.up)):
        lose(place)
    new = Instance("count-0", cluster.place(), ())
    restore_state(new, durable.retrieve_backup("count-0"), durable, Routing.even(1))
    assert counts(new) == cluster.sent


def test_what_no_backup_names_is_swept(cluster: Cluster) -> None:
    cluster.send(2)
    cluster.backup()
    o = cluster.down[0]
    assert o.holder is not None
    assert o.holder.sweep() == 0
    o.holder.delete_backup(o.id)
    assert o.holder.sweep() == 4
    assert o.place.sweep(own=o.runs) == 0


@pytest.mark.parametrize("parallelism", [1, 2, 5])
def test_scale_out_and_recovery_are_one_algorithm(cluster: Cluster, parallelism: int) -> None:
    cluster.send(3)
    cluster.backup()
    cluster.send(2)
    lose(cluster.down[0].place)
    cluster.send(2)
    cluster.scale_out(0, parallelism)
    assert len(cluster.down) == parallelism
    assert cluster.counted() == cluster.sent
    cluster.send(2)
    cluster.backup()
    assert cluster.counted() == cluster.sent


def test_the_holder_is_lost_before_the_restores_are_done(cluster: Cluster) -> None:
    """Abort: the old routing stays, the old instance goes on; the next try, after a new backup, succeeds."""
    cluster.send(2)
    cluster.backup()
    cluster.send(1)
    o, routing = cluster.down[0], cluster.up[0].routing
    assert o.holder is not None
    holder = o.holder
    lose(holder)
    with pytest.raises(PlaceLostError):
        cluster.scale_out(0, 2)
    assert cluster.down == {0: o}
    assert [u.routing for u in cluster.up] == [routing] * 2
    survivor = next(u for u in cluster.up if u.place != holder)
    assert not list(survivor.place.backups.glob("count-0.*")), "what was begun is taken back"
    # The upstream instance recovers at another place; what it has buffered is with its own backup, here still in memory.
    lost = next(u for u in cluster.up if u.place == holder)
    lost.place = cluster.place()
    cluster.send(1)
    assert counts(o) == cluster.sent, "the old instance goes on"
    cluster.backup()
    cluster.scale_out(0, 2)
    assert cluster.counted() == cluster.sent


def test_another_upstream_is_lost_meanwhile(cluster: Cluster) -> None:
    """Go on; it recovers with the new routing and replays by it."""
    cluster.send(2)
    cluster.backup()
    cluster.send(2)
    o = cluster.down[0]
    other = next(u for u in cluster.up if u.place != o.holder)
    lose(other.place)
    cluster.scale_out(0, 2)
    assert cluster.counted() != cluster.sent, "its tuples since the backup are still to come"
    other.place = cluster.place()
    for number, new in cluster.down.items():
        for version, rows in list(replay_buffer_state(other, new, number)):
            process(new, other, version, rows)
    assert cluster.counted() == cluster.sent
    cluster.send(2)
    assert cluster.counted() == cluster.sent


def test_a_new_instance_is_lost_meanwhile_and_later(cluster: Cluster) -> None:
    """It is restored elsewhere, from its own backup."""
    cluster.send(3)
    cluster.backup()
    cluster.send(1)
    given: list[Place] = []

    def fragile() -> Place:
        given.append(cluster.place())
        if len(given) == 2:
            lose(given[-1])
        return given[-1]

    cluster.scale_out(0, 2, fragile)
    assert len(given) == 3
    assert cluster.counted() == cluster.sent
    lose(cluster.down[1].place)
    cluster.scale_out(1, 1)
    assert cluster.counted() == cluster.sent


def test_the_old_instance_is_released_last(cluster: Cluster) -> None:
    cluster.send(2)
    cluster.backup()
    o = cluster.down[0]
    assert o.holder is not None
    holder, seen = o.holder, []

    def watching() -> Place:
        seen.append((holder.backups / "count-0.json").exists())
        return cluster.place()

    cluster.scale_out(0, 3, watching)
    assert seen == [True, True, True]
    assert not (holder.backups / "count-0.json").exists()


def test_random_scale_outs_losses_and_merges_lose_nothing(tmp_path: Path) -> None:
    for seed in range(3):
        cluster = Cluster(tmp_path / str(seed), Random(seed))
        for _ in range(8):
            cluster.send(cluster.random.randint(1, 2))
            cluster.backup()
            cluster.send(cluster.random.randint(0, 2))
            number = cluster.random.choice(sorted(cluster.down))
            if cluster.random.random() < 0.5:
                lose(cluster.down[number].place)
            cluster.scale_out(number, cluster.random.randint(1, 3))
            assert cluster.counted() == cluster.sent, f"seed {seed}"
