"""Replicas: other executors keep copies of each instance's state, so that it can go on there if its executor is lost.

    instance 0   at home on executor 1   ->  peers 2 and 3        new runs are lent to them after each version (`runtime/lending.py`)
    instance 1   at home on executor 2   ->  peers 3 and 1

`control/replicas` chooses the peers: q of them for each instance, never two in one fault zone, none in that of the home, with as little
shipping as possible. Zones are hosts, if there are enough of them, and executors otherwise. Each time only what a peer lacks is lent. So
after a loss, a move or a rescale the next call restores the number of copies.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.control.network import Node, NodeId
from headrace.control.replicas.model import Arrangement, Host, Hosts, KeyRange, RangeId, ReplicaConfig
from headrace.control.replicas.transport import place_replicas
from headrace.ids import OperatorId, Version
from headrace.logs import log_fields, logger
from headrace.runtime.lending import Share, Sweep
from headrace.runtime.placement import Placement
from headrace.runtime.safety.copies import Copies, Wanted
from headrace.runtime.safety.keeping import Keeping
from headrace.spark.executors import Executor
from headrace.state.routing import Routing

ATTEMPTS_MAX = 3
"""How often copies are tried to be made of one version, if executors are lost meanwhile."""
SWEEP_EVERY = 10
"""Peers remove copies that nobody needs once in this many versions."""
_log = logger(__name__)


@dataclass(frozen=True)
class Redundancy:
    """How many copies there are, for the progress."""

    wanted: int
    """Copies that instances should have on peers, all together."""
    missing: int
    """Those among them that are not complete, or have no place."""
    missing_s: float
    """For how long copies have been missing."""
    lent_bytes: int
    """What was lent for the last version."""

    def to_json(self) -> dict[str, Any]:
        ms = round(self.missing_s * 1000)
        return {"copies": self.wanted, "missing": self.missing, "missingMs": ms, "bytesLent": self.lent_bytes}


@dataclass
class Replicas:
    """Keeps the copies of a query's instances."""

    placement: Placement
    keeping: Keeping
    count: int
    """q: the number of peers of each instance."""
    waits: bool
    """True if results wait for the copies."""
    redundancy: Redundancy | None = None
    _peers: dict[RangeId, frozenset[NodeId]] = field(default_factory=dict)
    _since_s: float | None = None
    _routing: dict[OperatorId, Routing] = field(default_factory=dict)
    _due: threading.Event = field(default_factory=threading.Event)
    _ended: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to make copies beside the batches, if results do not wait for them."""
        if not self.waits:
            self._thread = threading.Thread(target=self._run, name="headrace-replicas", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._due.set()
        if self._thread is not None:
            self._thread.join()

    def after_version(self, routing: Mapping[OperatorId, Routing]) -> None:
        """Make copies of what a version has written: now, or beside the next batch."""
        self._routing = dict(routing)
        if self.waits:
            self.update()
        else:
            self._due.set()

    def update(self) -> Redundancy:
        """Bring every peer what it lacks of the newest version. If an executor is lost meanwhile, try again with the others."""
        for _ in range(ATTEMPTS_MAX):
            found = self._update()
            if found is not None:
                return found
        return self._note(len(self._peers) * self.count, len(self._peers) * self.count, 0)

    def _update(self) -> Redundancy | None:
        """Like ``update``, once; None if it was broken off."""
        live = {each.id: each for each in self.placement.trusted()}
        routing, version = self._routing, self._version()
        names, shares = self._instances(routing, live)
        arranged = self._arranged(names, shares, live)
        self._peers = dict(arranged.replicas)
        wanted: Wanted = [(live[peer], shares[name]) for name, peers in arranged.replicas.items() for peer in sorted(peers)]
        copies = self.keeping.copies
        lack = copies.lack(wanted, live.values(), durable_suffices=False)
        lacking: Wanted = [(peer, tuple(_lacking(share, peer, copies) for share in each)) for peer, each in wanted]
        incomplete = sum(any(share.refs for share in each) for _, each in lacking)
        lent = 0
        if incomplete:
            sweep = Sweep(self._named(), version) if version % SWEEP_EVERY == 0 else None
            fetched = self.placement.fetch(lacking, lack.loans, sweep)
            if fetched is None:
                return None
            for to, (peer, each) in enumerate(lacking):
                for ref in (ref for share in each for ref in share.refs if (to, ref.file) not in fetched.lacking):
                    copies.add(ref.file, peer.id)
            lent, incomplete = fetched.bytes, len({to for to, _ in fetched.lacking})
        return self._note(len(names) * self.count, incomplete + len(names) * self.count - len(wanted), lent)

    def _instances(
        self, routing: Mapping[OperatorId, Routing], live: Mapping[str, Executor]
    ) -> tuple[dict[RangeId, str], dict[RangeId, tuple[Share, ...]]]:
        """By instance: its home, and its state."""
        homes, shares = {}, {}
        for op, each in routing.items():
            for at, (home, share) in enumerate(zip(self.placement.homes.get(op, ()), self.placement.shares(op, each), strict=False)):
                if home.id in live:
                    homes[RangeId(f"{op}-{at}")], shares[RangeId(f"{op}-{at}")] = home.id, share
        return homes, shares

    def _arranged(
        self, homes: Mapping[RangeId, str], shares: Mapping[RangeId, tuple[Share, ...]], live: Mapping[str, Executor]
    ) -> Arrangement:
        """The peers of each instance. They are spread evenly, and those that have copies stay peers if they can."""
        by_host = len({each.host for each in live.values()}) > self.count
        config = ReplicaConfig(replicas=self.count)
        ranges = [
            KeyRange(
                name,
                NodeId(home),
                frozenset(peer for peer in self._peers.get(name, ()) if peer in live and peer != home),
                state_bytes=float(sum(ref.bytes for share in shares[name] for ref in share.refs)),
            )
            for name, home in homes.items()
        ]
        even = -(-len(ranges) * self.count // max(1, len(live)))
        for most in (even, len(ranges)):
            nodes = [Node(NodeId(each.id), zone=each.host if by_host else each.id) for each in live.values()]
            arranged = place_replicas(ranges, Hosts.by_zone([Host(node, replicas_max=most) for node in nodes]), config)
            if not arranged.missing:
                break
        return arranged

    def _version(self) -> Version:
        latest = self.keeping.checkpoint.latest()
        return Version(0) if latest is None else latest.version

    def _named(self) -> frozenset[str]:
        latest = self.keeping.checkpoint.latest()
        runs = () if latest is None else (ref.file for state in latest.stores.values() for ref in state.runs)
        return frozenset(runs) | self.keeping.pinned_files()

    def _note(self, wanted: int, missing: int, lent: int) -> Redundancy:
        now_s = time.monotonic()
        self._since_s = None if not missing else self._since_s or now_s
        missing_s = 0.0 if self._since_s is None else now_s - self._since_s
        if missing and (self.redundancy is None or self.redundancy.missing != missing):
            _log.warning("%d of %d copies of state are missing", missing, wanted)
        self.redundancy = Redundancy(wanted, missing, missing_s, lent)
        return self.redundancy

    def _run(self) -> None:
        with log_fields(query=self.keeping.checkpoint.location):
            while True:
                self._due.wait()
                self._due.clear()
                if self._ended.is_set():
                    return
                try:
                    self.update()
                except Exception:
                    # Executors may be going, or Spark may be shutting down. The next version tries again.
                    _log.warning("copies of state were not made; trying again after the next batch", exc_info=True)


def _lacking(share: Share, peer: Executor, copies: Copies) -> Share:
    """The part of a share that a peer has no copies of."""
    return Share(share.layout, tuple(ref for ref in share.refs if peer.id not in copies.holders_of(ref.file)))
