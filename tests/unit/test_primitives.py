"""SEEP's primitives, each alone, on real files."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random

import numpy as np
import pytest

from headrace.errors import CorruptStateError, InvariantError, PlaceLostError
from headrace.ids import SLOTS
from headrace.state.buffer import Spilled
from headrace.state.places import StateCheckpoint
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
from tests.unit.counting import Cluster, counts, lose, process, tuples


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path, Random(1))


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
