"""Homes: on which executor each instance runs, and how its state gets there before it moves.

A home has the instance's working copies, so it is kept as long as its executor lives. Before an instance moves, a Spark job beside the
batches brings its state to the new home. Then the home changes between two batches (Floe's delayed transition). If an executor is lost,
Spark runs the task elsewhere, and the next batch gives the instance a new home.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from statistics import median

from pyspark.sql import DataFrame, SparkSession

from headrace.compile.dataflow import Op
from headrace.compile.homes import anchor
from headrace.control.homes import assigned, executors_needed, without_ready_ones
from headrace.errors import MissingRunError
from headrace.ids import OperatorId, StoreId
from headrace.logs import logger
from headrace.runtime.guard import Guard
from headrace.runtime.lending import Fetched, Files, Loan, Share, Sweep, have_ready, loans
from headrace.runtime.loss import BrokenOff, broken_off_on_loss
from headrace.runtime.pool import PoolClient
from headrace.runtime.safety.copies import Copies, Lack, Wanted
from headrace.spark.executors import Executor, Executors
from headrace.spark.gateway import SPARK_ERRORS
from headrace.state.durable import DurableStore
from headrace.state.manifest import Manifest
from headrace.state.routing import Routing
from headrace.state.slots import clip

ATTEMPTS_MAX = 4
"""How often state is brought to its homes before a batch fails, if executors are lost meanwhile."""
PATIENCE, PATIENCE_S_MIN = 5.0, 8.0
"""Bringing state to executors usually takes a fraction of a second. Those that still work after this many times the usual time, and at
least so many seconds, are suspected to hang. On a busy machine, executors that are only slow must not be avoided."""
TIMES_REMEMBERED = 20
BYTES_PER_S = 10e6
"""A slow network."""
_log = logger(__name__)

Homes = tuple[Executor, ...]
"""The executor of each instance of an operator."""

Shares = Callable[[OperatorId, Routing], list[tuple[Share, ...]]]
"""Gives the newest state of an operator, by instance of the routing and by store."""


@dataclass
class Placement:
    """The homes of a query's instances."""

    executors: Executors
    session: SparkSession
    runs: DurableStore
    shares: Shares
    lends: bool
    """True if state comes from the executors that have it; otherwise it comes from the durable tier only."""
    working: str | None
    """The folder of working copies, see ``working_folder``. None: instances read the runs of the checkpoint itself."""
    guard: Guard
    """Finds executors that hang."""
    copies: Copies = field(default_factory=Copies)
    """Which executors have which runs."""
    log_level: str = ""
    """The log level of tasks on executors; see ``Config.logLevel``."""
    pool: PoolClient | None = None
    """The pool of executors, which keeps those ready that instances do not need; None if instances use all that there are."""
    homes: dict[OperatorId, Homes] = field(default_factory=dict)
    """By operator. They change only under the batch lock."""
    anchors: dict[OperatorId, tuple[Homes, DataFrame]] = field(default_factory=dict)
    avoided: set[str] = field(default_factory=set)
    """Executors that are suspected to hang. They get no instances, unless there are no others."""
    leaving: set[str] = field(default_factory=set)
    """Executors that are about to be decommissioned. They get no instances, but lend the state that they have."""
    left: set[str] = field(default_factory=set)
    """Those among them that have handed their state over. Spark may list them for a while."""
    proven: set[str] = field(default_factory=set)
    """Executors that have lent or borrowed state before. One that has just started may be slow, and is not suspected."""
    fetches_s: deque[float] = field(default_factory=lambda: deque(maxlen=TIMES_REMEMBERED))
    """How long it took lately to bring state to executors."""
    ensured: object = None
    """The homes and routings for which all state was found at home. Only versions that were made at home have been added since."""

    def trusted(self) -> tuple[Executor, ...]:
        """The executors that instances may live on."""
        live = self.executors.live()
        gone = self.avoided | self.released | self.leaving | self.executors.decommissioned()
        return tuple(each for each in live if each.id not in gone) or live

    def lenders(self) -> tuple[Executor, ...]:
        """The executors that can lend state: those that Spark gives tasks to, and that are not suspected to hang."""
        gone = self.avoided | self.executors.decommissioned()
        return tuple(each for each in self.executors.live() if each.id not in gone)

    @property
    def released(self) -> frozenset[str]:
        """Executors that were given back, and may still be alive for a while."""
        return frozenset() if self.pool is None else self.pool.released

    def settle(self, routing: Mapping[OperatorId, Routing]) -> None:
        """Give every instance a home on a living executor. Called before a batch, and before a step runs again."""
        live = self.trusted()
        homeless = {
            op: each
            for op, each in routing.items()
            if len(homes := self.homes.get(op, ())) != len(each.parts) or not set(homes) <= set(live)
        }
        self.homes |= self.planned(homeless, live)

    def planned(self, routing: Mapping[OperatorId, Routing], live: tuple[Executor, ...]) -> dict[OperatorId, Homes]:
        """The homes that the instances of these operators should have, beside all others; none while there are no executors."""
        if not live:
            return dict.fromkeys(routing, ())
        by_id = {each.id: each for each in live}
        shares = {op: self.shares(op, routing[op]) if op in routing else [] for op in self.homes}
        before = {op: self._with_heirs(homes, shares[op], by_id) for op, homes in self.homes.items()}
        instances = {op: each.instances for op, each in routing.items()}
        chosen = assigned(before, instances, self._used(instances, before, live))
        return {op: self._with_sides(op, each, [by_id[home] for home in chosen[op]]) for op, each in routing.items()}

    def _used(
        self, instances: Mapping[OperatorId, int], before: Mapping[OperatorId, list[str | None]], live: tuple[Executor, ...]
    ) -> list[str]:
        """The executors among which homes are chosen: all of them, or with a pool those that are not to stay ready."""
        names = [each.id for each in live]
        if self.pool is None:
            return names
        staying = [len(set(homes).intersection(names)) for op, homes in before.items() if op not in instances]
        needed = max(1, self.executors_for(instances.values(), live), *staying)
        homes = [home for every in before.values() for home in every if home is not None]
        return without_ready_ones(names, needed, homes, self.pool.homes_of_others())

    def executors_for(self, instances: Collection[int], live: tuple[Executor, ...]) -> int:
        """How many executors operators with these numbers of instances need. They take turns on the cores, so the largest one counts."""
        return executors_needed(max(instances, default=0), live[0].cores if live else 1)

    def _with_heirs(self, homes: Homes, shares: list[tuple[Share, ...]], live: Collection[str]) -> list[str | None]:
        """The homes of an operator. A lost one is replaced by the living executor that has most of the instance's state, if any has."""
        known = [*shares, *[()] * len(homes)]
        return [home.id if home.id in live else self.copies.heir(known[at], live) for at, home in enumerate(homes)]

    def ensure(self, routing: Mapping[OperatorId, Routing]) -> None:
        """Bring runs that the durable store lacks to the homes that need them. Raises MissingRunError if nobody has one.

        Does nothing as long as homes and routing stay the same: a version's new runs are where its instances are.
        """
        for _ in range(ATTEMPTS_MAX):
            seen = dict(self.homes), {op: each.epoch for op, each in routing.items()}
            if seen == self.ensured:
                return
            wanted, lack = self._lack(routing)
            if lack.lost:
                found = f"{len(lack.lost)} runs that only lost executors had"
                raise MissingRunError(path=min(lack.lost), wanted="the state of every instance", found=found)
            if not lack.loans or self._lend(wanted, lack):
                self.ensured = seen
                return
            self.settle(routing)

    def lost_runs(self, routing: Mapping[OperatorId, Routing]) -> frozenset[str]:
        """The runs of the newest version that are lost: no living executor has them, nor the durable store."""
        self.ensured = None
        return self._lack(routing)[1].lost

    def _lack(self, routing: Mapping[OperatorId, Routing]) -> tuple[Wanted, Lack]:
        wanted = [pair for op, each in routing.items() for pair in zip(self.homes.get(op, ()), self.shares(op, each), strict=False)]
        return wanted, self.copies.lack(wanted, self.lenders())

    def _lend(self, wanted: Wanted, lack: Lack) -> bool:
        """Lend whole runs, and note who has them then. False if not all arrived."""
        fetched = self.fetch([(executor, lack.shares(to)) for to, (executor, _) in enumerate(wanted)], lack.loans)
        if fetched is None:
            return False
        self._note_lent(wanted, lack, fetched)
        return not fetched.lacking

    def _note_lent(self, wanted: Wanted, lack: Lack, fetched: Fetched) -> None:
        for to, file in lack.files:
            if (to, file) not in fetched.lacking:
                self.copies.add(file, wanted[to][0].id)

    def _with_sides(self, op: OperatorId, routing: Routing, homes: list[Executor]) -> Homes:
        """The homes of instances, and of the sides of recreations. Sides live with their owners: the old one where its state is, the new
        one where it will be."""
        before = self.homes.get(op, ())
        for recreation in routing.recreations:
            kept = recreation.old < len(before) and before[recreation.old] in self.trusted()
            homes += [before[recreation.old] if kept else homes[recreation.new], homes[recreation.new]]
        return tuple(homes)

    def move_in(self, op: OperatorId, homes: Homes) -> Homes:
        """Set the homes of an operator's instances, under the batch lock. Returns the homes before."""
        before = self.homes.get(op, ())
        self.homes[op] = homes
        return before

    @contextmanager
    def following(self, ran: Mapping[OperatorId, Sequence[str]]) -> Iterator[None]:
        """Inside, instances live where their last tasks ``ran``: what those wrote is there, and perhaps nowhere else.

        Spark runs a task elsewhere if its home is busy for long. A version's flush needs the runs that the version has just written.
        """
        live, before = {each.id: each for each in self.executors.live()}, dict(self.homes)
        for op, names in ran.items():
            if len(names) == len(homes := self.homes.get(op, ())):
                self.homes[op] = tuple(live.get(name, home) for name, home in zip(names, homes, strict=True))
        try:
            yield
        finally:
            self.homes |= {op: before[op] for op in ran if op in before}

    def ahead(self, routing: Mapping[OperatorId, Routing], before: Mapping[OperatorId, Routing]) -> tuple[dict[OperatorId, Homes], Fetched]:
        """Bring state to the homes of a future routing. Returns those homes, and how much was brought.

        If an executor is lost meanwhile, it is tried again with the others.
        """
        for _ in range(ATTEMPTS_MAX):
            live = self.lenders()
            homes, fetched = self._ahead(routing, before)
            if fetched is not None or self.lenders() == live:
                break
        return homes, fetched or Fetched()

    def _ahead(
        self, routing: Mapping[OperatorId, Routing], before: Mapping[OperatorId, Routing]
    ) -> tuple[dict[OperatorId, Homes], Fetched | None]:
        """Like ``ahead``, once; no bytes if it was broken off."""
        lenders = self.lenders()
        homes = self.planned(routing, self.trusted())
        wanted: Wanted = []
        lent: dict[Executor, list[Loan]] = {}
        for op, each in routing.items():
            mine = list(zip(homes[op], self.shares(op, each), strict=False))
            if self.lends:
                holders = zip(self.homes.get(op, ()), before[op].parts, strict=False)
                alive = [(home, part.slots) for home, part in holders if home in lenders]
                durable = [(home, tuple(self.copies.only_durable(share) for share in shares)) for home, shares in mine]
                for lender, every in loans(durable, alive).items():
                    lent.setdefault(lender, []).extend(replace(loan, to=loan.to + len(wanted)) for loan in every)
            wanted += mine
        # Runs that the durable store lacks are lent as whole files.
        whole = self.copies.lack(wanted, lenders)
        for lender, each_loan in whole.loans.items():
            lent.setdefault(lender, []).extend(each_loan)
        fetched = self.fetch(wanted, lent, beside=True)
        if fetched is not None:
            self._note_lent(wanted, whole, fetched)
        return homes, fetched

    def can_read(self, executor: Executor, shares: Iterable[Share]) -> bool:
        """True if an executor can read state without a loan: it has the runs, or the durable store has them."""
        files = [ref.file for share in shares for ref in share.refs]
        return all(self.copies.is_durable(file) or executor.id in self.copies.holders_of(file) for file in files)

    def elsewhere(self, routing: Mapping[OperatorId, Routing], without: Collection[str]) -> dict[OperatorId, Homes] | None:
        """Homes without these executors, at which all state can be read; None if there are none."""
        live = [each for each in self.trusted() if each.id not in without]
        found: dict[OperatorId, Homes] = {}
        for op, each in routing.items():
            homes = list(self.homes.get(op, ()))
            for at, share in enumerate(self.shares(op, each)[: len(homes)]):
                if homes[at] in live:
                    continue
                able = [executor for executor in live if self.can_read(executor, share)]
                if not able:
                    return None
                homes[at] = min(able, key=homes.count)
            found[op] = tuple(homes)
        return found

    def anchor(self, session: SparkSession, op: OperatorId, chosen: Homes | None = None) -> DataFrame | None:
        """A DataFrame whose partitions are at the operator's homes, so that Spark runs its tasks there; None if it has no homes.

        ``chosen`` are other homes, for this time only.
        """
        if chosen is not None:
            return anchor(session, [each.location for each in chosen])
        homes = self.homes.get(op, ())
        if not homes:
            return None
        if op not in self.anchors or self.anchors[op][0] != homes:
            self.anchors[op] = homes, anchor(session, [each.location for each in homes])
        return self.anchors[op][1]

    def fetch(
        self, wanted: Wanted, lent: Mapping[Executor, list[Loan]], sweep: Sweep | None = None, *, beside: bool = False
    ) -> Fetched | None:
        """Bring these shares of state to these executors. Returns how much was brought, or None after a failure.

        A failure does no harm: a batch fetches missing state when it needs it. An executor that hangs gets no instances for a while. With
        ``beside``, a batch may run meanwhile, so executors that work for long are not suspected, but those that are silent.
        """
        if not wanted or self.working is None:
            return Fetched()
        size = sum(ref.bytes for _, shares in wanted for share in shares for ref in share.refs)
        usual_s, began_s = median(self.fetches_s) if self.fetches_s else 0.0, time.monotonic()
        patience_s = None if beside else max(PATIENCE_S_MIN, PATIENCE * usual_s) + size / BYTES_PER_S
        watched, broken = (self.executors, self.left, patience_s, self.proven, lambda: self.avoided), BrokenOff()
        try:
            with self.guard.working("bringing state to executors"), broken_off_on_loss(*watched) as broken:
                found = have_ready(self.session, Files(self.runs, self.working, self.log_level), wanted, lent, sweep)
            self.proven |= {each.id for each, _ in wanted} | {each.id for each in lent}
            self.fetches_s.append(time.monotonic() - began_s)
            return found
        except SPARK_ERRORS:
            if broken.hung:
                _log.warning("executors do not answer: %s; state is fetched without them", ", ".join(sorted(broken.hung)))
                self.avoided |= broken.hung
                return None
            _log.warning("state was not fetched ahead; batches fetch it when they need it", exc_info=True, query=self.runs.where(""))
            return None


def shares_of(manifest: Manifest | None, op: Op, routing: Routing) -> list[tuple[Share, ...]]:
    """By instance: the shares of a version's state that it needs with this routing."""
    if manifest is None:
        return [()] * len(routing.parts)
    known = ((store.layout, manifest.stores.get(StoreId(op.id, name))) for name, store in op.plan.operator.stores.items())
    # A new operator has no state yet.
    stores = [(layout, state.runs) for layout, state in known if state is not None]
    return [tuple(Share(layout, tuple(clip(part.own(refs), part.slots))) for layout, refs in stores) for part in routing.parts]
