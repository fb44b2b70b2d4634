"""The delta of a checkpoint: what a store's slots have gained since they were last shipped, merged into one run (Floe V).

    durable      | base: runs that earlier checkpoints shipped                    | + | delta: one merged run per instance |
    at home      | master: the same rows, compacted as the home likes             | + | runs since the last checkpoint     |

A durable version names the base, as it was shipped, and the delta on top of it. What compaction makes of the master at home is not shipped,
because the durable store has these rows already. So a checkpoint ships about as many bytes as have changed, and a key that was updated many
times is shipped once. From time to time the base itself has too many runs, or too many rows that count no more. Then the runs of the home
become the new base (``wear``, one instance after the other), and those among them that the durable store lacks are shipped.

This is right because compaction keeps to one side of every version that was captured (``same_fragment``): all runs up to the base's
version together have the rows of the base, except expired ones, and all later runs have none of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa

from headrace.ids import SLOTS, Version
from headrace.state.layout import Combine, Layout, never_combined
from headrace.state.merge import merge_rows, without_expired
from headrace.state.run import RunReader, RunRef
from headrace.state.sequence import run_version
from headrace.state.slots import SlotRanges, clip, stacks

DEPTH_MAX = 16
"""The most runs over a slot in the durable store. A restart looks keys up in all of them, until its compaction has merged them."""
SPARE = 2.0
"""The durable store may have this many times the rows that the home has: older values of keys, and rows that have expired."""
WORN_OUT = 2.0
"""Above these limits by this factor, a base is renewed whatever the others do."""


def written_since(refs: Iterable[RunRef], version: Version) -> list[RunRef]:
    """The references to runs that later versions wrote, newest first."""
    return sorted((ref for ref in refs if run_version(ref.seq) > version), key=lambda ref: (-ref.seq, ref.lo))


def merged_delta(
    refs: Iterable[RunRef],
    ranges: SlotRanges,
    layout: Layout,
    reader: RunReader,
    combine: Combine = never_combined,
    expired_below: int | None = None,
) -> pa.RecordBatch:
    """The rows of these runs in these slots as one sorted batch. Tombstones stay, because the base may have rows of their keys."""
    newest_first = sorted(clip(refs, ranges), key=lambda ref: (-ref.seq, ref.lo))
    rows = merge_rows([reader.open(ref).rows for ref in newest_first], layout, combine, keep_deleted=True)
    return without_expired(rows, expired_below)


def depth_of(refs: Iterable[RunRef]) -> int:
    """The most runs that lie over a slot."""
    return max((len(stack.refs) for stack in stacks(refs, ((0, SLOTS),))), default=0)


def wear(base: Iterable[RunRef], home: Iterable[RunRef]) -> float:
    """How much the durable runs of some slots are worn: from 1 on, they should be replaced by the home's, instead of adding a delta."""
    base, rows = list(base), sum(ref.rows for ref in home)
    return max(depth_of(base) / DEPTH_MAX, sum(ref.rows for ref in base) / (SPARE * rows + 1))


def new_bases(wears: Sequence[float]) -> set[int]:
    """Which instances of a store get a new base in this checkpoint: the one that is worn most, and those that are worn out twice over.

    A new base may be all of an instance's state. If all instances got one at once, that checkpoint would ship all of the state.

    >>> new_bases([1.0, 1.2, 0.4]), new_bases([0.9, 0.2]), new_bases([2.0, 1.2, 2.5])
    ({1}, set(), {0, 2})
    """
    worn = [at for at, each in enumerate(wears) if each >= 1]
    return {at for at in worn if wears[at] >= WORN_OUT} | set(sorted(worn, key=lambda at: -wears[at])[:1])
