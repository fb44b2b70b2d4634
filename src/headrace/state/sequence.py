"""Sequence numbers of runs: which of two runs is newer, and which version wrote a run.

A version writes its runs in up to three steps, and each step has a sequence number of its own:

    version      41                    42
    step         process flush close   process flush close
    seq          123     124   125     126     127   128

A sequence number is not a version: compare versions with versions, by `run_version`. No other module computes one from the other.
"""

from __future__ import annotations

from enum import IntEnum

from headrace.ids import RunSeq, Version


class VersionStep(IntEnum):
    """The step of a version that wrote a run, in order of time."""

    PROCESS = 0
    FLUSH = 1
    CLOSE = 2


BEFORE_ALL = RunSeq(-1)
"""The sequence number of a query's initial state, which is older than the runs of version 0."""


def run_seq(version: Version, step: VersionStep) -> RunSeq:
    """The sequence number of a run that this step of this version writes.

    >>> run_seq(Version(42), VersionStep.FLUSH)
    127
    """
    return RunSeq(len(VersionStep) * version + step)


def run_version(seq: RunSeq) -> Version:
    """The version that wrote the newest rows of a run; `NO_VERSION` for initial state.

    >>> run_version(RunSeq(127)), run_version(BEFORE_ALL)
    (42, -1)
    """
    return Version(seq // len(VersionStep))
