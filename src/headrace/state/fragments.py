"""Floe's fragments of a state: master, inactive, active.

Rows written since the last backup are the *active* fragment. A backup first freezes them: they become the *inactive* fragment, and new rows
form the next active one. When the inactive fragment has been backed up, it belongs to the *master* fragment. With
``headrace.checkpointSeconds=0``, every version is backed up when it is committed, so all runs are master.

The version that wrote a run decides its fragment, so no file moves when the fragment changes. Each boundary between fragments is a
version whose state was captured. Compaction never merges runs across a boundary (``same_fragment``): what is newer than the last backup is
a set of runs of its own, the *delta*, which a checkpoint merges into one run per instance and ships (``state/delta.py``).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

from headrace.ids import Version
from headrace.state.run import RunRef
from headrace.state.sequence import run_version


def same_fragment(newest_first: list[RunRef], boundaries: Iterable[Version]) -> list[list[RunRef]]:
    """The references of a stack, divided at each of these versions, newest first. Compaction merges within a list only.

    A boundary belongs to the older side. Without boundaries, all references are in one list.
    """
    edges = sorted(boundaries)
    parts: dict[int, list[RunRef]] = {}
    for ref in newest_first:
        parts.setdefault(bisect_left(edges, run_version(ref.seq)), []).append(ref)
    return [parts[at] for at in sorted(parts, reverse=True)]
