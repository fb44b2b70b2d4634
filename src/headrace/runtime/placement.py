"""Homes: which executor each instance lives on, and having its state there before it moves.

A home is where an instance's working copies are, so it is kept for as long as its executor lives. What moves is fetched first, by a job
of its own beside the batches, and then the home changes between two batches (Floe's delayed transition). A home that is lost is not
waited for: Spark runs the task elsewhere, and the next batch gives the instance a new one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from headrace.compile.dataflow import Op
from headrace.compile.homes import anchor
from headrace.control.homes import assigned
from headrace.logs import logger
from headrace.operators.kernel import store_id
from headrace.runtime.lending import Fetched, Files, Loan, Share, have_ready, loans
from headrace.spark.executors import Executor, Executors
from headrace.state.manifest import Manifest
from headrace.state.routing import Routing
from headrace.state.slots import clip

_log = logger(__name__)

Homes = tuple[Executor, ...]
"""Per instance of an operator."""

Shares = Callable[[str, Routing], list[tuple[Share, ...]]]
"""An operator's newest state, per instance of a routing and per store."""


@dataclass
class Placement:
    """The homes of a query's instances."""

    executors: Executors
    session: SparkSession
    runs: Path
    shares: Shares
    lends: bool
    """Whether state comes from executors that have it; from the durable tier only, if not."""
    working: str | None
    """See ``working_folder``; None: instances read the runs where they are."""
    log_level: str = ""
    """Of tasks on executors; see ``Config.logLevel``."""
    homes: dict[str, Homes] = field(default_factory=dict)
    """By operator; changed under the loop's lock only."""
    anchors: dict[str, tuple[Homes, DataFrame]] = field(default_factory=dict)

    def settle(self, routing: Mapping[str, Routing]) -> None:
        """Before a batch: every instance has a home that lives."""
        live = self.executors.live()
        homeless = {
            op: each
            for op, each in routing.items()
            if len(homes := self.homes.get(op, ())) != len(each.parts) or not set(homes) <= set(live)
        }
        self.homes |= self.planned(homeless, live)

    def planned(self, routing: Mapping[str, Routing], live: tuple[Executor, ...]) -> dict[str, Homes]:
        """The homes that the instances of these operators should have, beside all others; none while there are no executors."""
        if not live:
            return dict.fromkeys(routing, ())
        by_id = {each.id: each for each in live}
        before = {op: [each.id for each in homes] for op, homes in self.homes.items()}
        chosen = assigned(before, {op: each.instances for op, each in routing.items()}, list(by_id))
        return {op: self._with_sides(op, each, [by_id[home] for home in chosen[op]]) for op, each in routing.items()}

    def _with_sides(self, op: str, routing: Routing, homes: list[Executor]) -> Homes:
        """The homes of instances, and of the sides of recreations. Sides live with their owners: the old one where its state is, the new
        one where it will be."""
        before = self.homes.get(op, ())
        for recreation in routing.recreations:
            kept = recreation.old < len(before) and before[recreation.old] in self.executors.live()
            homes += [before[recreation.old] if kept else homes[recreation.new], homes[recreation.new]]
        return tuple(homes)

    def ahead(self, routing: Mapping[str, Routing], before: Mapping[str, Routing]) -> tuple[dict[str, Homes], Fetched]:
        """Make ready for a routing that is to come: the homes it will have, and the state that was not there yet."""
        live = self.executors.live()
        homes = self.planned(routing, live)
        wanted: list[tuple[Executor, tuple[Share, ...]]] = []
        lent: dict[Executor, list[Loan]] = {}
        for op, each in routing.items():
            mine = list(zip(homes[op], self.shares(op, each), strict=False))
            if self.lends:
                holders = zip(self.homes.get(op, ()), before[op].parts, strict=False)
                alive = [(home, part.slots) for home, part in holders if home in live]
                for lender, every in loans(mine, alive).items():
                    lent.setdefault(lender, []).extend(replace(loan, to=loan.to + len(wanted)) for loan in every)
            wanted += mine
        return homes, self.fetch(wanted, lent)

    def anchor(self, session: SparkSession, op: str) -> DataFrame | None:
        """What makes an operator's tasks go home; None where it has no homes."""
        homes = self.homes.get(op, ())
        if not homes:
            return None
        if op not in self.anchors or self.anchors[op][0] != homes:
            self.anchors[op] = homes, anchor(session, [each.location for each in homes])
        return self.anchors[op][1]

    def fetch(self, wanted: list[tuple[Executor, tuple[Share, ...]]], lent: Mapping[Executor, list[Loan]]) -> Fetched:
        """Have these parts of the state on these executors; returns what was not there. It is an errand, not a duty: whatever is not there
        when a batch needs it is fetched then."""
        if not wanted or self.working is None:
            return Fetched()
        try:
            return have_ready(self.session, Files(str(self.runs), self.working, self.log_level), wanted, lent)
        except PySparkException:
            _log.warning("state was not fetched ahead; batches fetch it when they need it", exc_info=True, query=self.runs.parents[1])
            return Fetched()


def shares_of(manifest: Manifest | None, op: Op, routing: Routing) -> list[tuple[Share, ...]]:
    """What each instance of a routing needs of a version."""
    if manifest is None:
        return [()] * len(routing.parts)
    stores = [(store.layout, manifest.operators[store_id(op.id, name)].runs) for name, store in op.plan.operator.stores.items()]
    return [tuple(Share(layout, tuple(clip(part.own(refs), part.slots))) for layout, refs in stores) for part in routing.parts]
