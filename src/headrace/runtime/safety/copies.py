"""Which executors have which runs, and which runs the durable store has.

Only whole copies count. A run that the durable store has can be read by all. Any other run is on the executor that wrote it, and on those
that got a copy; if all of these are lost, the run is lost, and its version must be computed again.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from headrace.ids import NO_VERSION, OperatorId, Version
from headrace.runtime.fencing import version_of
from headrace.runtime.lending import Loan, Share
from headrace.runtime.reports import InstanceReport
from headrace.spark.executors import Executor
from headrace.state.manifest import Manifest

Wanted = list[tuple[Executor, tuple[Share, ...]]]
"""Executors, and the shares of state that each should have."""


@dataclass(frozen=True)
class Lack:
    """What executors lack of the state that they should have."""

    loans: dict[Executor, list[Loan]] = field(default_factory=dict)
    """By lender: whole runs that other executors lack. ``Loan.to`` is the position in the list of those who want state."""
    lost: frozenset[str] = frozenset()
    """Runs that no living executor has, nor the durable store."""

    @property
    def files(self) -> list[tuple[int, str]]:
        """The position of each borrower, and the run that it lacks."""
        return [(loan.to, loan.ref.file) for each in self.loans.values() for loan in each]

    def shares(self, to: int) -> tuple[Share, ...]:
        """What is lent to one of those who want state."""
        return tuple(Share(loan.layout, (loan.ref,)) for each in self.loans.values() for loan in each if loan.to == to)


@dataclass
class Copies:
    """The whole copies of the runs of a query. Several threads use it: batches, checkpoints, replicas."""

    durable: set[str] = field(default_factory=set)
    """Runs that the durable store has."""
    holders: dict[str, set[str]] = field(default_factory=dict)
    """By run: the ids of executors that have it."""
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def is_durable(self, file: str) -> bool:
        """True if the durable store has a run. It has a query's initial state from the beginning."""
        return file in self.durable or version_of(file) == NO_VERSION

    def learn(self, reports: Mapping[OperatorId, list[InstanceReport]], version: Version) -> None:
        """Note where the runs of a version are: on the executors that wrote them."""
        for report in (report for each in reports.values() for report in each):
            for ref in report.refs:
                if version_of(ref.file) == version:
                    self.add(ref.file, report.executor)

    def add(self, file: str, executor: str) -> None:
        """Note that an executor has a copy now."""
        with self._lock:
            self.holders.setdefault(file, set()).add(executor)

    def forget(self, file: str, executor: str) -> None:
        """Note that an executor lacks a run."""
        with self._lock:
            self.holders.get(file, set()).discard(executor)

    def shipped(self, manifest: Manifest) -> None:
        """Note that the durable store has the runs of a version, and of no other."""
        self.durable = {ref.file for state in manifest.stores.values() for ref in state.runs}

    def keep_only(self, named: Collection[str]) -> None:
        """Forget runs that nobody needs any more."""
        with self._lock:
            self.holders = {file: each for file, each in self.holders.items() if file in named}

    def holders_of(self, file: str) -> frozenset[str]:
        """The executors that have a run."""
        with self._lock:
            return frozenset(self.holders.get(file, ()))

    def heir(self, shares: Iterable[Share], live: Collection[str]) -> str | None:
        """The living executor that has most of this state; None if none has any."""
        found: Counter[str] = Counter()
        for share in shares:
            for ref in share.refs:
                for holder in self.holders_of(ref.file).intersection(live):
                    found[holder] += ref.bytes
        return max(sorted(found), key=lambda each: found[each]) if found else None

    def only_durable(self, share: Share) -> Share:
        """The part of a share that the durable store has. Of other runs, executors have all or nothing."""
        return Share(share.layout, tuple(ref for ref in share.refs if self.is_durable(ref.file)))

    def lack(self, wanted: Wanted, live: Iterable[Executor], *, durable_suffices: bool = True) -> Lack:
        """What these executors lack. With ``durable_suffices``, they read what the durable store has, and need no copies of it.

        The lender of a run is one of its holders, the same for all borrowers.
        """
        by_id = {each.id: each for each in live}
        loans: dict[Executor, list[Loan]] = {}
        lost, seen = set(), set()
        for to, (borrower, shares) in enumerate(wanted):
            for share in shares:
                for ref in share.refs:
                    holders, is_durable = self.holders_of(ref.file), self.is_durable(ref.file)
                    if (to, ref.file) in seen or borrower.id in holders or (is_durable and durable_suffices):
                        continue
                    seen.add((to, ref.file))
                    lenders = sorted(holders & by_id.keys())
                    if lenders:
                        loans.setdefault(by_id[lenders[0]], []).append(Loan(share.layout, ref, to, whole=True))
                    elif not is_durable:
                        lost.add(ref.file)
        return Lack(loans, frozenset(lost))
