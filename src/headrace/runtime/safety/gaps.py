"""Skips lost state instead of computing it again: the guarantee *gap*.

    an executor is lost   the slots whose runs it alone had go back to the last durable version; other slots keep their state
    the driver is lost    all slots go back to the last durable version

With the approach *amnesia* they begin empty. What the slots have forgotten is counted, logged, noted durably (`state/gaps.py`) and reported
in the progress.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from headrace.guarantees import Approach, Safety
from headrace.ids import NO_VERSION, SLOTS, OperatorId, StoreId, Version
from headrace.logs import logger
from headrace.runtime.checkpoint import Checkpoint
from headrace.runtime.reports import InstanceReport
from headrace.state.gaps import Gap
from headrace.state.journal import Record
from headrace.state.manifest import Counters, Manifest, StoreState
from headrace.state.run import RunRef
from headrace.state.slots import SlotRanges, clip, join, shown

ALL_SLOTS: SlotRanges = ((0, SLOTS),)
_log = logger(__name__)


@dataclass
class Gaps:
    """Skips lost state of one query, and counts what was skipped."""

    checkpoint: Checkpoint
    safety: Safety
    stores: tuple[StoreId, ...]
    """All stores of the query."""
    found: list[Gap] = field(default_factory=list)
    """Those that no progress has reported yet."""
    _rows: deque[tuple[Version, dict[OperatorId, npt.NDArray[np.int64]]]] = field(default_factory=deque)
    """The rows of each slot, by version that is not durable."""

    def observe(self, version: Version, reports: Mapping[OperatorId, list[InstanceReport]], durable: Version) -> None:
        """Remember how many rows a version brought to each slot, until it is durable."""
        while self._rows and self._rows[0][0] <= durable:
            self._rows.popleft()
        if self.safety.approach is Approach.AMNESIA and self._rows:
            # All versions together are lost, so their sum is enough.
            _, before = self._rows.popleft()
        else:
            before = {}
        rows = {op: _rows_by_slot(each) + before.get(op, 0) for op, each in reports.items()}
        self._rows.append((version, {**before, **rows}))

    def without_runs(self, manifest: Manifest, lost: Collection[str], durable: Version) -> Manifest:
        """A version without the changes that lost runs had: their slots are as in the durable version.

        All stores of an operator go back together, so that they fit each other.
        """
        safe = self._safe(durable)
        stores = dict(manifest.stores)
        for op in dict.fromkeys(name.operator for name in manifest.stores):
            mine = {name: state for name, state in manifest.stores.items() if name.operator == op}
            slots = _covered([ref for state in mine.values() for ref in state.runs if ref.file in lost])
            if slots:
                for name, state in mine.items():
                    stores[name] = replace(state, runs=_with_slots_of(state.runs, safe.get(name, ()), slots))
                self._note(Gap(op, slots, Version(durable + 1), manifest.version, self._rows_in(op, slots), Version(manifest.version + 1)))
        return replace(manifest, stores=stores, counters=_counters_at_most(manifest, stores))

    def without_versions(self, record: Record, between: Collection[Record], durable: Version) -> Manifest:
        """The version of a record, with the state of the durable version: all versions since are skipped, because the driver was lost."""
        safe, facts = self._safe(durable), record.facts
        stores = {name: StoreState(safe.get(name, ()), facts.watermark_ms) for name in self.stores}
        for op in dict.fromkeys(name.operator for name in self.stores):
            complete = len(between) == facts.version - durable and all(op in each.rows for each in between)
            rows = sum(each.rows[op] for each in between) if complete and self._forgets_no_more(durable) else None
            first = Version(durable + 1) if safe else Version(0)
            self._note(Gap(op, ALL_SLOTS, first, facts.version, rows, Version(facts.version + 1)))
        return replace(facts, stores=stores)

    def drain(self) -> tuple[Gap, ...]:
        """The gaps since the last call."""
        found, self.found = tuple(self.found), []
        return found

    def _forgets_no_more(self, durable: Version) -> bool:
        """True if only the versions since the durable one are forgotten."""
        return self.safety.approach is not Approach.AMNESIA or durable == NO_VERSION

    def _safe(self, durable: Version) -> dict[StoreId, tuple[RunRef, ...]]:
        """The state that slots go back to."""
        if self.safety.approach is Approach.AMNESIA or durable == NO_VERSION:
            return {}
        return {name: state.runs for name, state in self.checkpoint.manifests.read(durable).stores.items()}

    def _rows_in(self, op: OperatorId, slots: SlotRanges) -> int:
        owned = np.zeros(SLOTS, dtype=bool)
        for lo, hi in slots:
            owned[int(lo) : int(np.ceil(hi))] = True
        return int(sum(rows[op][owned].sum() for _, rows in self._rows if op in rows))

    def _note(self, gap: Gap) -> None:
        slots = ", ".join(shown(lo, hi) for lo, hi in gap.slots)
        rows = "an unknown number of" if gap.rows is None else str(gap.rows)
        what = "%s rows of versions %d to %d are missing in slots %s, because their state was lost"
        _log.warning(what, rows, gap.first, gap.last, slots, operator=gap.operator)
        self.checkpoint.gaps.write(gap, self.checkpoint.fence.writer)
        self.found.append(gap)


def _rows_by_slot(reports: list[InstanceReport]) -> npt.NDArray[np.int64]:
    found = np.zeros(SLOTS, dtype=np.int64)
    for report in reports:
        for slot, rows in report.rows_per_slot:
            found[slot] += rows
    return found


def _covered(refs: Collection[RunRef]) -> SlotRanges:
    """The slots of references, as ranges that do not overlap.

    >>> from headrace.ids import RunSeq
    >>> run = RunRef("a", 0, 0, 0, RunSeq(0))
    >>> _covered([replace(run, lo=3, hi=9), replace(run, lo=0, hi=4), replace(run, lo=20, hi=30)])
    ((0, 9), (20, 30))
    """
    found: list[tuple[float, float]] = []
    for lo, hi in sorted((ref.lo, ref.hi) for ref in refs):
        if found and lo <= found[-1][1]:
            found[-1] = found[-1][0], max(hi, found[-1][1])
        else:
            found.append((lo, hi))
    return tuple(found)


def _outside(slots: SlotRanges) -> SlotRanges:
    """All other slots.

    >>> _outside(((0, 9), (20, 30)))
    ((9, 20), (30, 4096))
    """
    edges = [0.0, *(edge for each in slots for edge in each), float(SLOTS)]
    pairs = zip(edges[::2], edges[1::2], strict=True)
    return tuple((lo if lo % 1 else int(lo), hi if hi % 1 else int(hi)) for lo, hi in pairs if lo < hi)


def _with_slots_of(now: tuple[RunRef, ...], safe: tuple[RunRef, ...], slots: SlotRanges) -> tuple[RunRef, ...]:
    """State whose slots are those of ``safe`` here, and those of ``now`` elsewhere."""
    return tuple(join([*clip(now, _outside(slots)), *clip(safe, slots)]))


def _counters_at_most(manifest: Manifest, stores: Mapping[StoreId, StoreState]) -> Counters:
    """Counters of keys that do not exceed the rows that are left."""
    left: dict[OperatorId, int] = {}
    for name, state in stores.items():
        left[name.operator] = left.get(name.operator, 0) + sum(ref.rows for ref in state.runs)
    keys = {op: min(count, left.get(op, count)) for op, count in manifest.counters.keys.items()}
    return replace(manifest.counters, keys=keys)
