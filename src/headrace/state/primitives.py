"""SEEP's primitives over operator state: section 3.2, Algorithms 1 and 2, and merge, spill and persist. Only tests use them.

They are for backups of state at other executors, and recovery from these, which running queries do not have yet.

An instance of an operator has *processing state* (runs at its place), *buffer state* (the tuples it has sent) and *routing state* (the
instances it sends to). The logical clock is the version of a batch. Scale out, scale in, moves and recovery are built from these functions.

Differences from the paper: state is a set of immutable files, sorted by key hash. So a checkpoint copies nothing, a backup copies only
files that the holder does not have, and to partition state is to refer to other slices of the same files. Two details of the algorithms
are corrected: indices count from 0, and a split into pi parts has pi + 1 edges.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from headrace.errors import PlaceLostError, require
from headrace.ids import NO_VERSION, InstanceId, Version
from headrace.state.buffer import Buffer
from headrace.state.levelling import Weights, with_idle
from headrace.state.places import Place, StateCheckpoint
from headrace.state.routing import Routing
from headrace.state.run import RunRef
from headrace.state.slots import SlotRanges, clip, join, ranges_of
from headrace.state.units import union

ROUNDING = 1e-9


@dataclass
class Instance:
    """One parallel part of an operator, at its place."""

    id: str
    place: Place
    ranges: SlotRanges
    runs: list[RunRef] = field(default_factory=list)
    """Processing state (theta), newest first, clipped to the ranges."""
    reflected: dict[str, Version] = field(default_factory=dict)
    """For each upstream instance, the newest version of its tuples that the state reflects (tau)."""
    buffer: Buffer = field(default_factory=Buffer)
    """The tuples that it has sent downstream (beta)."""
    routing: Routing = field(default_factory=lambda: Routing.even(1))
    """The instances of the downstream operator that it sends tuples to (rho)."""
    holder: Place | None = None
    """The place of its backup; None if it has none."""


def checkpoint_state(o: Instance) -> StateCheckpoint:
    """A checkpoint of the processing state. Runs never change, so nothing is copied."""
    return StateCheckpoint(o.id, o.ranges, tuple(join(o.runs)), dict(o.reflected))


def backup_state(o: Instance, upstream: Sequence[Instance]) -> int:
    """Algorithm 1: back up the state at the place of an upstream instance; returns the bytes copied.

    The place is chosen by a hash, so that backups are spread over all places. A backup at another place is deleted. Buffers are trimmed by
    ``trim_upstream``.
    """
    checkpoint = checkpoint_state(o)
    holder = upstream[zlib.crc32(o.id.encode()) % len(upstream)].place
    shipped = holder.store_backup(checkpoint, o.place)
    if o.holder is not None and o.holder != holder and not o.holder.lost:
        o.holder.delete_backup(o.id)
    o.holder = holder
    return shipped


def trim_upstream(upstream: Sequence[Instance], downstream: Sequence[Instance]) -> None:
    """Algorithm 1, line 4, for all instances of the downstream operator: drop the buffered tuples that all backups reflect.

    One buffer serves all downstream instances, so it can only drop what every one of them has backed up.
    """
    backed_up = [o.holder.retrieve_backup(o.id).reflected for o in downstream if o.holder is not None]
    require(len(backed_up) == len(downstream), "buffers are trimmed when every instance has a backup")
    for u in upstream:
        trim(u, min(reflected.get(u.id, NO_VERSION) for reflected in backed_up))


def trim(u: Instance, version: Version) -> None:
    """Drop the buffered tuples up to a version."""
    u.buffer.trim(version)


def restore_state(o: Instance, checkpoint: StateCheckpoint, source: Place, routing: Routing) -> int:
    """Algorithm 1: give an instance the state of a checkpoint; returns the bytes fetched.

    Its logical clock is set to the checkpoint's, so that downstream instances recognise replayed tuples.
    """
    fetched = o.place.fetch(checkpoint.runs, source)
    o.ranges, o.runs, o.reflected = checkpoint.ranges, list(checkpoint.runs), dict(checkpoint.reflected)
    o.routing = routing
    return fetched


def replay_buffer_state(u: Instance, o: Instance, number: InstanceId) -> Iterator[tuple[Version, pa.RecordBatch]]:
    """Algorithm 1: the tuples that ``u`` has sent to ``o`` and that the state of ``o`` does not reflect. ``number`` is o's instance id."""
    return u.buffer.replay(o.reflected.get(u.id, NO_VERSION), u.routing, number)


def split_ranges(ranges: SlotRanges, parts: int, weights: Weights | None = None) -> list[SlotRanges]:
    """Algorithm 2, lines 1 and 2: divide the slots of an instance into parts of equal size, or of equal work if ``weights`` is given.

    >>> split_ranges(((0, 4096),), 3)
    [((0, 1365),), ((1365, 2730),), ((2730, 4096),)]
    >>> split_ranges(((0, 10), (100, 110)), 2)
    [((0, 10),), ((100, 110),)]
    """
    slots = np.concatenate([np.arange(lo, hi) for lo, hi in ranges])
    require(1 <= parts <= len(slots), f"{len(slots)} slots can be cut into 1 to {len(slots)} parts, not {parts}")
    work = with_idle(np.ones(len(slots)) if weights is None else weights[slots])
    # Every part gets at least one slot: edge i has at least i slots before it, and at least as many after it as there are parts left.
    # A slot that ends exactly at an edge must not move to the next part because of rounding.
    wanted = np.searchsorted(np.cumsum(work), np.arange(1, parts) * work.sum() / parts * (1 + ROUNDING), "right")
    edges = [0]
    for at, edge in enumerate(wanted.tolist(), start=1):
        edges.append(min(max(edge, edges[-1] + 1), len(slots) - (parts - at)))
    edges.append(len(slots))
    return [ranges_of(slots[a:b]) for a, b in itertools.pairwise(edges)]


def partition_processing_state(o: str, holder: Place, parts: Sequence[SlotRanges], new: Sequence[str], holders: Sequence[Place]) -> None:
    """Algorithm 2: divide the state of ``o`` and store each part as the backup of a new instance.

    The state is taken from the backup of ``o``, since o itself may be overloaded or dead. A new instance has a backup before it starts,
    so it can be recovered at any time.
    """
    whole = holder.retrieve_backup(o)
    for ranges, name, target in zip(parts, new, holders, strict=True):
        refs = tuple(clip(whole.runs, ranges))
        target.store_backup(StateCheckpoint(name, ranges, refs, whole.reflected), holder)


def partition_routing_state(routing: Routing, instance: InstanceId, parts: Sequence[SlotRanges]) -> Routing:
    """Algorithm 2, lines 9 to 11: the first part keeps the instance's number, and the others get new numbers after the last one.

    >>> partition_routing_state(Routing.even(2), 0, split_ranges(((0, 2048),), 2)).ranges
    (((0, 1024),), ((2048, 4096),), ((1024, 2048),))
    """
    ranges = [*routing.ranges, *parts[1:]]
    ranges[instance] = parts[0]
    return Routing(tuple(ranges), routing.next_epoch)


def partition_buffer_state(u: Instance) -> dict[InstanceId, list[tuple[Version, pa.RecordBatch]]]:
    """Algorithm 2, lines 13 to 17: the buffered tuples, by the instance that the routing now sends them to.

    A buffer is stored whole and divided when it is replayed, so nothing is rewritten here.
    """
    return u.buffer.partitioned(u.routing)


def merge(into: Instance, other: Instance) -> int:
    """Scale in: ``into`` takes over the slots and the state of ``other``; returns the bytes fetched. Both must reflect the same tuples."""
    require(into.reflected == other.reflected, f"{into.id} and {other.id} reflect the same tuples")
    fetched = into.place.fetch(other.runs, other.place)
    into.runs = join([*into.runs, *other.runs])
    into.ranges = union((*into.ranges, *other.ranges))
    return fetched


def spill(o: Instance) -> int:
    """Write buffered tuples to the place's disk to free memory; returns the bytes written. Processing state is always on disk."""
    directory = o.place.directory / "spilled" / o.id
    directory.mkdir(parents=True, exist_ok=True)
    return o.buffer.spill(directory)


def persist(o: Instance, durable: Place) -> int:
    """Store the state in a durable place as well; returns the bytes copied."""
    return durable.store_backup(checkpoint_state(o), o.place)


def holders_for(names: Sequence[str], upstream: Sequence[Instance]) -> list[Place]:
    """The places of new instances' backups, chosen as in ``backup_state`` from the places that are not lost."""
    alive = [u.place for u in upstream if not u.place.lost]
    if not alive:
        raise PlaceLostError(where="backup", wanted="an upstream instance that can hold it", found="none that is there")
    return [alive[zlib.crc32(name.encode()) % len(alive)] for name in names]
