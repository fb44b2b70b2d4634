"""Fault-tolerant scale out and recovery, which are one algorithm (SEEP, Algorithm 3). Only tests use it.

It works from the backup, so the overloaded or dead instance need not respond. If it gives up, nothing has changed:

- If the place of the backup is lost before all parts are restored, it aborts. The old routing stays, and the old instance goes on. It can
  be tried again after a new backup.
- If another upstream instance is lost, it goes on. That instance recovers with the new routing.
- If the place of a new instance is lost, the instance is restored at another place, from its own backup.
- The old instance is released last, when every part is restored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from headrace.errors import PlaceLostError
from headrace.ids import InstanceId, Version
from headrace.state.levelling import Weights
from headrace.state.places import Place
from headrace.state.primitives import (
    Instance,
    holders_for,
    partition_processing_state,
    partition_routing_state,
    replay_buffer_state,
    restore_state,
    split_ranges,
)
from headrace.state.routing import Routing
from headrace.state.slots import SlotRanges

PLACES_TRIED_MAX = 3


@dataclass(frozen=True)
class ScaledOut:
    """The result of a scale out: the new instances by number, and the routing that sends tuples to them."""

    instances: dict[InstanceId, Instance]
    routing: Routing
    bytes_fetched: int

    def to_replay(self, upstream: Sequence[Instance]) -> Iterator[tuple[Instance, Instance, Version, pa.RecordBatch]]:
        """The tuples that the new instances must still process, from upstream instances that are not lost.

        Each entry is (new instance, upstream instance, version, tuples). Tuples of one buffer are in order.
        """
        for number, o in self.instances.items():
            for u in upstream:
                if not u.place.lost:
                    for version, tuples in replay_buffer_state(u, o, number):
                        yield o, u, version, tuples


def scale_out(
    o: Instance,
    number: InstanceId,
    parallelism: int,
    upstream: Sequence[Instance],
    new_place: Callable[[], Place],
    weights: Weights | None = None,
) -> ScaledOut:
    """Replace instance ``number``, which is ``o``, by ``parallelism`` new ones; a parallelism of 1 recovers it.

    Raises an error and changes nothing if the place of its backup is lost.
    """
    if o.holder is None:
        raise PlaceLostError(where=f"scale out of {o.id}", wanted="a backup of its state", found="none", hint="back it up first")
    before = next(u.routing for u in upstream if not u.place.lost)
    parts = split_ranges(o.ranges, parallelism, weights)
    epoch = before.next_epoch
    names = [f"{o.id.split('@')[0]}.{i}@{epoch}" for i in range(parallelism)]
    holders = holders_for(names, upstream)
    after = partition_routing_state(before, number, parts)
    numbers = [number, *map(InstanceId, range(before.instances, after.instances))]
    created: dict[InstanceId, Instance] = {}
    fetched = 0
    try:
        partition_processing_state(o.id, o.holder, parts, names, holders)
        for at, name, ranges, holder in zip(numbers, names, parts, holders, strict=True):
            created[at], some = _restored(name, ranges, holder, o.routing, new_place)
            fetched += some
    except PlaceLostError:
        for name, holder in zip(names, holders, strict=True):
            holder.delete_backup(name)
        raise
    # Every part is restored. Nothing can fail from here on, so the old instance can be released.
    created[number].buffer = o.buffer
    for u in upstream:
        u.routing = after
    if not o.holder.lost:
        o.holder.delete_backup(o.id)
    return ScaledOut(created, after, fetched)


def _restored(name: str, ranges: SlotRanges, holder: Place, routing: Routing, new_place: Callable[[], Place]) -> tuple[Instance, int]:
    """A new instance with its part of the state, and the bytes fetched. If its place is lost, another place is tried."""
    for _ in range(PLACES_TRIED_MAX):
        new = Instance(name, new_place(), ranges, holder=holder)
        try:
            return new, restore_state(new, holder.retrieve_backup(name), holder, routing)
        except PlaceLostError:
            if holder.lost:
                raise
        except OSError:
            if not new.place.lost:
                raise
    raise PlaceLostError(where=name, wanted="a place for it", found=f"that {PLACES_TRIED_MAX} places were lost one after another")
