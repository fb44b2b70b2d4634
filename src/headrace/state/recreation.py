"""Window recreation: slots change hands without their state (StreamCloud V.A, Fig. 10).

For the length of a window both owners get the rows of the slots. The old one keeps the windows it has begun, the new one begins those
that follow; when the last old window has closed, the old owner forgets. No state moves, whatever its size; the price is that rows count
twice for a while, and that the change takes as long as a window.

                 last    switch                end = last + size
    windows        [------- old, until here -----)
                           [------ new, from here -----)
    rows         old only  |   to both owners    | new only

``last`` is the start of the last window that a row has been seen for. A reference says by its *generation* whose it is: runs of the new
owner carry the epoch of the change, all others are older. Until the end the slots' whole state is the old owner's panes before ``end``
and the new one's from there on, so a recreation can be broken off at any moment.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

from headrace.ids import FIRST_EPOCH, SLOTS, InstanceId, RoutingEpoch
from headrace.state.run import RunRef
from headrace.state.slots import SlotRanges, clip
from headrace.state.units import union


@dataclass(frozen=True)
class Recreation:
    """Slots on their way from one instance to another."""

    slots: SlotRanges
    old: InstanceId
    """May be an instance that the operator no longer has: then it lives on for this."""
    new: InstanceId
    generation: RoutingEpoch
    """The epoch of the change."""
    last_us: int
    switch_us: int
    end_us: int

    @classmethod
    def begun(
        cls, slots: SlotRanges, old: InstanceId, new: InstanceId, generation: RoutingEpoch, seen_us: int, window: tuple[int, int, int]
    ) -> Recreation:
        """After rows up to ``seen_us``, for windows of this size, advance and offset.

        >>> Recreation.begun(((0, 1),), 0, 1, 1, seen_us=1, window=(6, 2, 0))
        Recreation(slots=((0, 1),), old=0, new=1, generation=1, last_us=0, switch_us=2, end_us=6)
        """
        size_us, advance_us, offset_us = window
        last_us = seen_us - (seen_us - offset_us) % advance_us
        return cls(slots, old, new, generation, last_us, last_us + advance_us, last_us + size_us)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, body: dict[str, Any]) -> Recreation:
        return cls(**{**body, "slots": tuple((lo, hi) for lo, hi in body["slots"])})


@dataclass(frozen=True)
class Part:
    """What one task of an operator does: an instance's work, or one owner's side of a recreation."""

    slots: SlotRanges
    generation_below: RoutingEpoch | None = None
    """Only runs older than this are its own ..."""
    generation: RoutingEpoch = FIRST_EPOCH
    """... and those that it writes are of this one; if above 0, only those are its own."""
    starts_us: tuple[int | None, int | None] = (None, None)
    """Only windows that start within these bounds, both included."""
    counts_from_us: int | None = None
    """Rows before this count elsewhere too, and are to be counted there."""
    spread: SlotRanges = ()
    """Slots of which it gets rows too, whoever owns them."""

    @property
    def writes(self) -> SlotRanges:
        """The slots that its runs may hold rows of."""
        if not self.spread:
            return self.slots
        return union((*self.slots, *self.spread))

    def own(self, refs: Iterable[RunRef]) -> list[RunRef]:
        if self.generation:
            return [ref for ref in refs if ref.generation == self.generation]
        return [ref for ref in refs if self.generation_below is None or ref.generation < self.generation_below]


def sides(recreation: Recreation) -> tuple[Part, Part]:
    """The old owner's part and the new one's."""
    r = recreation
    old = Part(r.slots, generation_below=r.generation, starts_us=(None, r.last_us))
    new = Part(r.slots, generation=r.generation, starts_us=(r.switch_us, None), counts_from_us=r.end_us)
    return old, new


def ended(refs: Iterable[RunRef], recreation: Recreation) -> list[RunRef]:
    """The references when the last old window has closed: what the old owner had of the slots is forgotten."""
    kept = []
    for ref in refs:
        kept += [ref] if ref.generation == recreation.generation else clip([ref], _others(recreation.slots))
    return kept


def broken_off(refs: Iterable[RunRef], recreation: Recreation) -> list[RunRef]:
    """The references as they would be without the recreation: each pane once."""

    def cut(ref: RunRef) -> RunRef:
        mine = ref.generation == recreation.generation
        return replace(ref, sub_from=recreation.end_us, generation=FIRST_EPOCH) if mine else ref

    return [cut(ref) for ref in refs if ref.generation != recreation.generation or ref.sub_max is None or ref.sub_max >= recreation.end_us]


def carried_over(refs: Iterable[RunRef], before: Iterable[Recreation], now: Iterable[Recreation], watermark_us: int) -> tuple[RunRef, ...]:
    """The references of a version, for the next one, in which some recreations are no longer under way."""
    kept, still = list(refs), set(now)
    for recreation in before:
        if recreation not in still:
            kept = ended(kept, recreation) if recreation.end_us <= watermark_us else broken_off(kept, recreation)
    return tuple(kept)


def _others(slots: SlotRanges) -> SlotRanges:
    """
    >>> _others(((0, 5), (7, 4096)))
    ((5, 7),)
    """
    edges = [0, *(edge for each in slots for edge in each), SLOTS]
    return tuple((lo, hi) for lo, hi in zip(edges[::2], edges[1::2], strict=True) if lo < hi)
