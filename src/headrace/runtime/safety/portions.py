"""The units of a checkpoint: what each instance must ship of each store, and the durable version that results.

    a captured version  ->  portions: one per operator, store and instance  ->  parcels, shipped  ->  the stores of the durable version

A portion is shipped as a *delta* on top of what the durable store has (``state/delta.py``), or as a *new base*: the runs of the home as
they are. The first checkpoint, one after window recreations, and one whose base has too many runs ship a new base.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from headrace.compile.dataflow import Dataflow
from headrace.control.availability.units import UnitId
from headrace.ids import SLOTS, OperatorId, StoreId, Version, WriterId
from headrace.operators.kernel import OutputMode
from headrace.operators.store import Store
from headrace.runtime.safety.copies import Copies
from headrace.runtime.safety.shipping import Delta, Parcel
from headrace.state.delta import new_bases, wear, written_since
from headrace.state.manifest import Manifest, StoreState
from headrace.state.run import RunRef
from headrace.state.slots import SlotRanges, clip, join

MERGE_BYTES_MAX = 256_000_000
"""A larger delta is shipped as it is, because a merge holds all of it in memory."""


@dataclass(frozen=True)
class Portion:
    """What an instance ships of one store."""

    unit: UnitId
    id: StoreId
    instance: int
    store: Store
    ranges: SlotRanges
    base: tuple[RunRef, ...] | None
    """The durable runs of its slots that stay; None for a new base."""
    refs: tuple[RunRef, ...]
    """The runs on top of these: those since the last checkpoint, or for a new base all."""
    early: tuple[RunRef, ...] = ()
    """Deltas that a checkpoint that broke off has shipped. They are between base and ``refs``."""
    expired_below: int | None = None

    @property
    def bytes(self) -> int:
        return sum({ref.file: ref.bytes for ref in self.refs}.values())

    def merged(self, name: str) -> Parcel | None:
        """The parcel of one merged run; None if there is nothing to merge, or too much."""
        if self.base is None or len({ref.file for ref in self.refs}) < 2 or self.bytes > MERGE_BYTES_MAX:
            return None
        return Parcel(self.unit, self.refs, Delta(name, self.store, self.ranges, self.expired_below))

    def raw(self, copies: Copies) -> list[Parcel]:
        """The runs that the durable store lacks, as they are, a parcel for each."""
        lacking = {ref.file: ref for ref in self.refs if not copies.is_durable(ref.file)}
        return [Parcel(self.unit, (ref,)) for ref in lacking.values()]

    def arrived(self, shipped: Mapping[str, tuple[RunRef, ...]], name: str) -> tuple[RunRef, ...]:
        """The references to what was shipped: one merged run, or the runs themselves."""
        return shipped.get(name, self.refs)


@dataclass
class EarlyShipments:
    """What checkpoints that broke off have shipped, by unit: it counts for the next one, if the unit has the same slots then."""

    upto: dict[UnitId, tuple[Version, SlotRanges, tuple[RunRef, ...]]] = field(default_factory=dict)

    def note(self, portion: Portion, version: Version, refs: Iterable[RunRef]) -> None:
        """Note that a delta of a unit is in the durable store."""
        if portion.base is not None:
            self.upto[portion.unit] = version, portion.ranges, (*refs, *portion.early)

    def of(self, unit: UnitId, ranges: SlotRanges, base: Version) -> tuple[Version, tuple[RunRef, ...]]:
        """The version up to which a unit is shipped, and the deltas since the base."""
        version, slots, refs = self.upto.get(unit, (base, ranges, ()))
        return (version, refs) if slots == ranges and version > base else (base, ())

    def versions(self) -> set[Version]:
        return {version for version, _, _ in self.upto.values()}


def portions_of(
    captured: Manifest, durable: Manifest | None, flow: Dataflow, recreated: set[OperatorId], early: EarlyShipments
) -> list[Portion]:
    """The portions of a captured version, given the newest durable one."""
    found = []
    for op in flow.ops:
        slots = [part.slots for part in captured.routing[op.id].parts]
        for name, store in op.plan.operator.stores.items():
            id = StoreId(op.id, name)
            home = captured.stores[id].runs
            if durable is None or id not in durable.stores or op.id in recreated:
                found.append(Portion(_unit(id, 0), id, 0, store, ((0, SLOTS),), None, home))
                continue
            below = None if op.mode is OutputMode.COMPLETE else store.lifetime.live_from(max(0, captured.watermark_ms - op.hold_ms))
            base = [ref for ref in durable.stores[id].runs if below is None or ref.sub_max is None or ref.sub_max >= below]
            found += portions_of_store(id, store, slots, home, base, durable.version, early, below)
    return found


def portions_of_store(
    id: StoreId,
    store: Store,
    slots: Iterable[SlotRanges],
    home: Iterable[RunRef],
    base: Iterable[RunRef],
    version: Version,
    early: EarlyShipments,
    expired_below: int | None = None,
) -> list[Portion]:
    """The portions of one store, by instance. ``version`` is the durable one, whose runs are ``base``."""
    home, base, found, wears = list(home), list(base), [], []
    for at, ranges in enumerate(slots):
        unit, mine, durable = _unit(id, at), clip(home, ranges), clip(base, ranges)
        upto, shipped = early.of(unit, ranges, version)
        wears.append(wear((*shipped, *durable), mine))
        delta = tuple(written_since(mine, upto))
        found.append(Portion(unit, id, at, store, ranges, tuple(durable), delta, shipped, expired_below))
    for at in new_bases(wears):
        each = found[at]
        found[at] = Portion(each.unit, id, at, store, each.ranges, None, tuple(clip(home, each.ranges)))
    return found


def composed(
    captured: Manifest, durable: Manifest | None, portions: Iterable[tuple[Portion, tuple[RunRef, ...]]]
) -> dict[StoreId, StoreState]:
    """The stores of the durable version: for every portion its base, and what was shipped on top of it."""
    refs: dict[StoreId, list[RunRef]] = {id: [] for id in captured.stores}
    for portion, arrived in portions:
        refs[portion.id] += [*arrived, *portion.early, *(portion.base or ())]
    # Row counts of references that are clipped and joined again are estimates. Those that the last manifest has are exact.
    exact = {(ref.file, ref.lo, ref.hi): ref for state in (durable.stores if durable else {}).values() for ref in state.runs}
    joined = {id: [exact.get((ref.file, ref.lo, ref.hi), ref) for ref in join(each)] for id, each in refs.items()}
    return {id: StoreState(tuple(each), captured.stores[id].closed_ms) for id, each in joined.items()}


def delta_name(portion: Portion, version: Version, writer: WriterId, number: int) -> str:
    """The beginning of the name of a unit's delta. Like all names of runs it says version, operator, instance and writer."""
    store = f"-{portion.id.name}" if portion.id.name else ""
    return f"v{version:012d}-{portion.id.operator}-i{portion.instance}-e{writer}-a{number}-delta{store}"


def _unit(id: StoreId, instance: int) -> UnitId:
    return UnitId(f"{id}-{instance}")
