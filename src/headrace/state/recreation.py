"""Window recreation: slots get a new owner without moving their state (StreamCloud V.A, Fig. 10).

For the length of a window both owners get the rows of the slots. The old owner computes the windows that it has begun, and the new owner
computes all later ones. When the last old window has closed, the old owner drops its state. No state moves, whatever its size. In return,
rows are processed twice for a while, and the change takes as long as a window.

                 last    switch                end = last + size
    windows        [------- old, until here -----)
                           [------ new, from here -----)
    rows         old only  |   to both owners    | new only

``last`` is the start of the last window that has a row so far. The *generation* of a reference says who wrote the run: runs of the new
owner have the epoch of the change, and runs of the old owner have a lower one. Until the recreation ends, the state of the slots is the
old owner's panes before ``end`` and the new owner's panes from ``end`` on. So a recreation can be broken off at any time.
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
    """A window recreation under way: slots, their old and their new owner, and the times at which windows change hands."""

    slots: SlotRanges
    old: InstanceId
    """The old owner. If the operator no longer has this instance, a task still does its side of the recreation."""
    new: InstanceId
    generation: RoutingEpoch
    """The epoch of the change."""
    last_us: int
    """The start of the old owner's last window."""
    switch_us: int
    """The start of the new owner's first window."""
    end_us: int
    """The end of the old owner's last window. From here on only the new owner gets rows."""

    @classmethod
    def begun(
        cls, slots: SlotRanges, old: InstanceId, new: InstanceId, generation: RoutingEpoch, seen_us: int, window: tuple[int, int, int]
    ) -> Recreation:
        """A recreation that begins now. ``seen_us`` is the newest event time so far; ``window`` is size, advance and offset.

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
    """The work of one task of an operator: an instance's, or one owner's side of a recreation."""

    slots: SlotRanges
    generation_below: RoutingEpoch | None = None
    """If set, the task reads only runs of lower generations: it is an old owner's side."""
    generation: RoutingEpoch = FIRST_EPOCH
    """The generation of the runs that the task writes. If above 0, it reads only these: it is a new owner's side."""
    starts_us: tuple[int | None, int | None] = (None, None)
    """The task computes only windows whose start lies within these bounds, both included; None means no bound."""
    counts_from_us: int | None = None
    """Metrics count rows from this event time on; the old owner counts earlier ones. None: all rows are counted."""
    spread: SlotRanges = ()
    """Slots that are spread: the task gets some of their rows, whoever owns them."""

    @property
    def writes(self) -> SlotRanges:
        """The slots that the task's runs may have rows in: its own, and those that are spread."""
        if not self.spread:
            return self.slots
        return union((*self.slots, *self.spread))

    def own(self, refs: Iterable[RunRef]) -> list[RunRef]:
        """The references that the task reads: all, or those of its side of the recreation."""
        if self.generation:
            return [ref for ref in refs if ref.generation == self.generation]
        return [ref for ref in refs if self.generation_below is None or ref.generation < self.generation_below]


def sides(recreation: Recreation) -> tuple[Part, Part]:
    """The work of the old owner and of the new owner."""
    r = recreation
    old = Part(r.slots, generation_below=r.generation, starts_us=(None, r.last_us))
    new = Part(r.slots, generation=r.generation, starts_us=(r.switch_us, None), counts_from_us=r.end_us)
    return old, new


def ended(refs: Iterable[RunRef], recreation: Recreation) -> list[RunRef]:
    """The references after a recreation has ended: without the old owner's state of its slots."""
    kept = []
    for ref in refs:
        kept += [ref] if ref.generation == recreation.generation else clip([ref], _others(recreation.slots))
    return kept


def broken_off(refs: Iterable[RunRef], recreation: Recreation) -> list[RunRef]:
    """The references after a recreation was broken off. Each pane is in one owner's runs only: before the end in the old owner's."""

    def cut(ref: RunRef) -> RunRef:
        mine = ref.generation == recreation.generation
        return replace(ref, sub_from=recreation.end_us, generation=FIRST_EPOCH) if mine else ref

    return [cut(ref) for ref in refs if ref.generation != recreation.generation or ref.sub_max is None or ref.sub_max >= recreation.end_us]


def carried_over(refs: Iterable[RunRef], before: Iterable[Recreation], now: Iterable[Recreation], watermark_us: int) -> tuple[RunRef, ...]:
    """The references of a version as the next one starts with them: recreations that are not in ``now`` have ended or were broken off."""
    kept, still = list(refs), set(now)
    for recreation in before:
        if recreation not in still:
            kept = ended(kept, recreation) if recreation.end_us <= watermark_us else broken_off(kept, recreation)
    return tuple(kept)


def _others(slots: SlotRanges) -> SlotRanges:
    """The slots that are not in these ranges.

    >>> _others(((0, 5), (7, 4096)))
    ((5, 7),)
    """
    edges = [0, *(edge for each in slots for edge in each), SLOTS]
    return tuple((lo, hi) for lo, hi in zip(edges[::2], edges[1::2], strict=True) if lo < hi)
