"""Sigma: the first batch whose rows the state still depends on (Borealis' upstream backup, SEEP's source replay).

An operator that forgets by event time keeps rows with a sub-key (an event time, or the start of a pane) from a bound on that the watermark
moves forward. Every version notes how far the sub-keys of its state reach. So if the bound has passed all that batches up to v brought, the
state holds nothing of them, and can be computed again from the batches after v, beginning empty:

    batch               40    41    42    43    44    45
    newest sub-key      10    12    19    24    27    31        what the operator has been given up to this batch
    the bound at 45                      20                     so batches 40 to 42 do not matter: sigma is 43

Windows that closed before are wrong in such a replay, but they were delivered long ago. What is open at the end is exact. Results of an
operator that go to another one depend on rows that are older than the result, at most by the size of its window. So the bound of an
operator is also held back by those behind it.

The bound is only ever compared with sub-keys that were really kept. So it does not matter which sources are idle, or which of them have a
watermark. A row without event time is never forgotten; sigma stays at the first batch with one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from headrace.compile.dataflow import Dataflow, Op
from headrace.ids import FIRST_VERSION, OperatorId, Version
from headrace.operators.kernel import OutputMode
from headrace.operators.lifetime import Lifetime
from headrace.state.manifest import Manifest


def unbounded(flow: Dataflow) -> list[str]:
    """A sentence for each operator whose state depends on rows of any age."""
    return [f"{op.id} ({op.where}) {why}" for op in flow.ops if (why := _why_unbounded(op)) is not None]


def _why_unbounded(op: Op) -> str | None:
    if op.mode is OutputMode.COMPLETE:
        return "keeps everything, because its output mode is complete"
    if not op.plan.timing.uses_watermark:
        return "has no event time with a watermark, so it never forgets a row"
    if op.plan.operator.looks_back_us(op.mode) is None:
        window = op.plan.description.shown.get("window")
        return f"({window}) can depend on rows of any age" if window else "can depend on rows of any age"
    return None


@dataclass(frozen=True)
class Memory:
    """How an operator forgets, and who reads its results."""

    operator: OperatorId
    lifetimes: tuple[Lifetime, ...]
    """Those of its stores."""
    looks_back_us: int
    """How much older than a result its rows can be."""
    hold_ms: int = 0
    """How far the watermark is held back for it."""
    readers: tuple[OperatorId, ...] = ()


def memories_of(flow: Dataflow) -> tuple[Memory, ...] | None:
    """The memory of each operator, in the order of the flow. None if one of them depends on rows of any age."""
    found = []
    for op in flow.ops:
        back_us = op.plan.operator.looks_back_us(op.mode)
        if back_us is None or _why_unbounded(op) is not None:
            return None
        lifetimes = tuple(store.lifetime for store in op.plan.operator.stores.values())
        readers = tuple(other.id for other in flow.ops if op in flow.upstream(other))
        found.append(Memory(op.id, lifetimes, back_us, op.hold_ms, readers))
    return tuple(found)


def bounds_us(memories: Sequence[Memory], watermark_ms: int) -> dict[OperatorId, int]:
    """By operator: the least sub-key that matters at this watermark, to its own state or to operators behind it.

    >>> from headrace.operators.lifetime import UntilWatermark
    >>> dedup = Memory(OperatorId("dedup"), (UntilWatermark(),), 0, readers=(OperatorId("join"),))
    >>> join = Memory(OperatorId("join"), (UntilWatermark(keep_us=5000),), 5000)
    >>> bounds_us([dedup, join], watermark_ms=20)
    {'join': 15001, 'dedup': 15001}
    """
    found: dict[OperatorId, int] = {}
    for each in reversed(memories):
        lives = (lifetime.live_from(max(0, watermark_ms - each.hold_ms)) for lifetime in each.lifetimes)
        behind = (found[reader] - each.looks_back_us for reader in each.readers)
        found[each.operator] = min([*(live for live in lives if live is not None), *behind, _NO_BOUND])
    return found


_NO_BOUND = 2**63
"""Above every sub-key."""


@dataclass(frozen=True)
class Reach:
    """How far the state of a version reaches, and the first batch that it depends on."""

    version: Version
    newest_us: Mapping[OperatorId, int]
    """By operator: the greatest sub-key of its state. Operators without state are left out."""
    since: Version


@dataclass
class Sigma:
    """Finds the first batch on which each version of a query depends."""

    memories: tuple[Memory, ...] | None
    """How operators forget; None if one of them depends on rows of any age. Then all versions depend on the first batch."""
    since_noted: Callable[[Version], Version]
    """The first batch on which an earlier version depends, as its record says; 0 if that is not known."""
    _kept: deque[Reach] = field(default_factory=deque)
    """The versions whose batches still matter, and the last one before that the state was built on."""

    def note(self, manifest: Manifest, before: Manifest | None) -> Version:
        """The first batch on which this version depends. ``before`` is the version that it was built on."""
        while self._kept and self._kept[-1].version >= manifest.version:
            self._kept.pop()
        if before is not None and not (self._kept and self._kept[-1].version == before.version):
            # All that is known of earlier batches is what the state has of them.
            self._kept.clear()
            self._kept.append(Reach(before.version, newest_us(before), self.since_noted(before.version)))
        earlier = self._kept[-1].since if self._kept else FIRST_VERSION
        newest, since = newest_us(manifest), earlier
        if self.memories is not None:
            bounds = bounds_us(self.memories, manifest.watermark_ms)
            known = [*self._kept, Reach(manifest.version, newest, earlier)]
            first = next((at for at, each in enumerate(known) if _matters(each.newest_us, bounds)), None)
            if first is None:
                since = Version(manifest.version + 1)
            elif first > 0 or before is None:
                since = max(earlier, known[first].version)
        self._kept.append(Reach(manifest.version, newest, since))
        while len(self._kept) > 1 and self._kept[1].version < earlier:
            self._kept.popleft()
        return since

    def since(self, version: Version) -> Version:
        """The first batch on which a version depends; 0 if that is not known."""
        return next((each.since for each in reversed(self._kept) if each.version == version), FIRST_VERSION)


def newest_us(manifest: Manifest) -> dict[OperatorId, int]:
    """By operator: the greatest sub-key of its state. A run without sub-keys counts as one that is never forgotten."""
    found: dict[OperatorId, int] = {}
    for store, state in manifest.stores.items():
        for ref in state.runs:
            newest = _NO_BOUND if ref.sub_max is None else ref.sub_max
            found[store.operator] = max(newest, found.get(store.operator, newest))
    return found


def _matters(newest: Mapping[OperatorId, int], bounds: Mapping[OperatorId, int]) -> bool:
    """True if any operator has something that its bound has not passed."""
    return any(reach >= bounds.get(op, -_NO_BOUND) for op, reach in newest.items())
