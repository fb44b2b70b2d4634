"""SEEP's primitives over operator state, by their names (section 3.2, Algorithms 1 and 2, and the discussion's merge, spill, persist).

An instance of an operator has *processing state* (runs at its place), *buffer state* (what it has sent) and *routing state* (to whom). The
logical clock is the version of a batch. Everything that grows, shrinks, moves or recovers an operator is made of these functions.

Where this departs from the paper: state is a set of immutable files sorted by key hash, so a checkpoint copies nothing, a backup ships
only files that its holder lacks, and partitioning is naming other slices of the same files. Algorithms 1 and 2 are corrected where their
text needs it: indices count from 0, and a split of pi parts has pi + 1 edges.
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
    """Per upstream instance the newest version that the state reflects (tau)."""
    buffer: Buffer = field(default_factory=Buffer)
    """What it has sent downstream (beta)."""
    routing: Routing = field(default_factory=lambda: Routing.even(1))
    """To which instances of the downstream operator (rho)."""
    holder: Place | None = None
    """Where its state is backed up."""


def checkpoint_state(o: Instance) -> StateCheckpoint:
    """The processing state as it is now, and what it reflects. Runs never change, so naming them is all it takes."""
    return StateCheckpoint(o.id, o.ranges, tuple(join(o.runs)), dict(o.reflected))


def backup_state(o: Instance, upstream: Sequence[Instance]) -> int:
    """Algorithm 1: back the state up at one of the upstream instances' places, chosen by hash so that backups spread; trim what upstream
    has buffered and the backup reflects; release the holder that had it before. Returns the bytes shipped."""
    checkpoint = checkpoint_state(o)
    holder = upstream[zlib.crc32(o.id.encode()) % len(upstream)].place
    shipped = holder.store_backup(checkpoint, o.place)
    if o.holder is not None and o.holder != holder and not o.holder.lost:
        o.holder.delete_backup(o.id)
    o.holder = holder
    return shipped


def trim_upstream(upstream: Sequence[Instance], downstream: Sequence[Instance]) -> None:
    """Algorithm 1, line 4, for all instances of the downstream operator at once: one buffer serves them all, so it can forget only what
    every one of them has backed up."""
    backed_up = [o.holder.retrieve_backup(o.id).reflected for o in downstream if o.holder is not None]
    require(len(backed_up) == len(downstream), "buffers are trimmed when every instance has a backup")
    for u in upstream:
        trim(u, min(reflected.get(u.id, NO_VERSION) for reflected in backed_up))


def trim(u: Instance, version: Version) -> None:
    """Forget buffered tuples up to a version."""
    u.buffer.trim(version)


def restore_state(o: Instance, checkpoint: StateCheckpoint, source: Place, routing: Routing) -> int:
    """Algorithm 1: give an instance a checkpointed state. Its clock goes back to the checkpoint's, so that what is replayed is not taken
    for new downstream. Returns the bytes fetched."""
    fetched = o.place.fetch(checkpoint.runs, source)
    o.ranges, o.runs, o.reflected = checkpoint.ranges, list(checkpoint.runs), dict(checkpoint.reflected)
    o.routing = routing
    return fetched


def replay_buffer_state(u: Instance, o: Instance, number: InstanceId) -> Iterator[tuple[Version, pa.RecordBatch]]:
    """Algorithm 1: the tuples that ``u`` has sent to ``o``, its downstream instance of this number, and that o's state does not reflect."""
    return u.buffer.replay(o.reflected.get(u.id, NO_VERSION), u.routing, number)


def split_ranges(ranges: SlotRanges, parts: int, weights: Weights | None = None) -> list[SlotRanges]:
    """Algorithm 2, lines 1 and 2: cut an instance's key interval into parts, even by hash, or by the observed distribution of keys.

    >>> split_ranges(((0, 4096),), 3)
    [((0, 1365),), ((1365, 2730),), ((2730, 4096),)]
    >>> split_ranges(((0, 10), (100, 110)), 2)
    [((0, 10),), ((100, 110),)]
    """
    slots = np.concatenate([np.arange(lo, hi) for lo, hi in ranges])
    require(1 <= parts <= len(slots), f"{len(slots)} slots can be cut into 1 to {len(slots)} parts, not {parts}")
    work = with_idle(np.ones(len(slots)) if weights is None else weights[slots])
    # Every part gets at least a slot: the i-th edge leaves i slots before it and as many as there are parts after it.
    # A slot that ends right at an edge must not fall behind it by rounding.
    wanted = np.searchsorted(np.cumsum(work), np.arange(1, parts) * work.sum() / parts * (1 + ROUNDING), "right")
    edges = [0]
    for at, edge in enumerate(wanted.tolist(), start=1):
        edges.append(min(max(edge, edges[-1] + 1), len(slots) - (parts - at)))
    edges.append(len(slots))
    return [ranges_of(slots[a:b]) for a, b in itertools.pairwise(edges)]


def partition_processing_state(o: str, holder: Place, parts: Sequence[SlotRanges], new: Sequence[str], holders: Sequence[Place]) -> None:
    """Algorithm 2: from the *backup* of ``o``, not from o itself, which may be overloaded or dead. Each part is backed up as the new
    instance's own before it exists, so that it can be recovered from the first moment on."""
    whole = holder.retrieve_backup(o)
    for ranges, name, target in zip(parts, new, holders, strict=True):
        refs = tuple(clip(whole.runs, ranges))
        target.store_backup(StateCheckpoint(name, ranges, refs, whole.reflected), holder)


def partition_routing_state(routing: Routing, instance: InstanceId, parts: Sequence[SlotRanges]) -> Routing:
    """Algorithm 2, lines 9 to 11: the first part keeps the instance's number, the others get new ones behind the last.

    >>> partition_routing_state(Routing.even(2), 0, split_ranges(((0, 2048),), 2)).ranges
    (((0, 1024),), ((2048, 4096),), ((1024, 2048),))
    """
    ranges = [*routing.ranges, *parts[1:]]
    ranges[instance] = parts[0]
    return Routing(tuple(ranges), routing.next_epoch)


def partition_buffer_state(u: Instance) -> dict[InstanceId, list[tuple[Version, pa.RecordBatch]]]:
    """Algorithm 2, lines 13 to 17: buffered tuples by the instance that the routing now gives them to, order kept.

    A buffer is kept whole and cut when it is replayed, so there is nothing to rewrite; this shows what each instance would get.
    """
    return u.buffer.partitioned(u.routing)


def merge(into: Instance, other: Instance) -> int:
    """Scale in: ``into`` takes over the slots and the state of another. Both must have come equally far. Returns the bytes fetched."""
    require(into.reflected == other.reflected, f"{into.id} and {other.id} reflect the same tuples")
    fetched = into.place.fetch(other.runs, other.place)
    into.runs = join([*into.runs, *other.runs])
    into.ranges = union((*into.ranges, *other.ranges))
    return fetched


def spill(o: Instance) -> int:
    """Free memory: buffered tuples go to the place's disk. Processing state lies there anyway, mapped. Returns the bytes written."""
    directory = o.place.directory / "spilled" / o.id
    directory.mkdir(parents=True, exist_ok=True)
    return o.buffer.spill(directory)


def persist(o: Instance, durable: Place) -> int:
    """Keep the state also in a place that outlives all machines. Returns the bytes shipped."""
    return durable.store_backup(checkpoint_state(o), o.place)


def holders_for(names: Sequence[str], upstream: Sequence[Instance]) -> list[Place]:
    """Where new instances' states will be backed up: by the same rule as in ``backup_state``, among those that live."""
    alive = [u.place for u in upstream if not u.place.lost]
    if not alive:
        raise PlaceLostError(where="backup", wanted="an upstream instance that can hold it", found="none that is there")
    return [alive[zlib.crc32(name.encode()) % len(alive)] for name in names]
