"""Floe's fragments of a state: master, inactive, active.

Rows written since the last checkpoint are the *active* fragment. A checkpoint freezes it (it becomes *inactive* while new rows form the
next active one), merges it into one compact delta, in which a key that changed many times is one row, and ships that. Once shipped, the
delta belongs to the *master* state. With a checkpoint at every batch, the default, a batch's own run is the delta and nothing waits.

Fragments are told apart by age alone, so no file moves when one becomes another. The only rule is that compaction keeps to one side of
the last checkpoint (``same_fragment``), or a delta would carry rows that were shipped before.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headrace.errors import require
from headrace.ids import Version
from headrace.state.layout import Combine, Layout
from headrace.state.merge import merge_rows
from headrace.state.run import RunReader, RunRef, write_run
from headrace.state.sequence import run_version
from headrace.state.slots import SlotRange, restrict


@dataclass(frozen=True)
class Fragments:
    """An operator's references by what a recovery would find of them."""

    master: tuple[RunRef, ...] = ()
    inactive: tuple[RunRef, ...] = ()
    """Frozen, on its way to a backup."""
    active: tuple[RunRef, ...] = ()

    @property
    def refs(self) -> tuple[RunRef, ...]:
        return (*self.active, *self.inactive, *self.master)


def fragments(refs: Iterable[RunRef], backed_up: Version, frozen: Version | None = None) -> Fragments:
    """Sort references into fragments: up to version ``backed_up`` master, then up to ``frozen`` inactive, the rest active."""
    frozen = backed_up if frozen is None else frozen
    require(frozen >= backed_up, f"what is frozen ({frozen}) is at least what is backed up ({backed_up})")
    written = [(run_version(ref.seq), ref) for ref in refs]
    return Fragments(
        master=tuple(ref for version, ref in written if version <= backed_up),
        inactive=tuple(ref for version, ref in written if backed_up < version <= frozen),
        active=tuple(ref for version, ref in written if version > frozen),
    )


def same_fragment(newest_first: list[RunRef], backed_up: Version) -> list[list[RunRef]]:
    """A stack cut where the last checkpoint lies: compaction may merge within a part, never across."""
    sorted_ = fragments(newest_first, backed_up)
    return [list(part) for part in (sorted_.active, sorted_.master) if part]


def compact_delta(
    inactive: Iterable[RunRef], slots: SlotRange, reader: RunReader, layout: Layout, combine: Combine, file: str, *, sync: bool
) -> RunRef | None:
    """One run that holds all that the inactive fragment changed in these slots; deletions stay in it. None if nothing changed."""
    lo, hi = slots
    parts = [part for ref in sorted(inactive, key=lambda r: -r.seq) if (part := restrict(ref, lo, hi)) is not None]
    rows = merge_rows([reader.open(part).rows for part in parts], layout, combine, keep_deleted=True)
    if not rows.num_rows:
        return None
    return write_run(reader.directory, file, rows, layout, seq=max(p.seq for p in parts), lo=lo, hi=hi, sync=sync)
