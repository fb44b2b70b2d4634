"""Replicas: other executors keep copies of each instance's state, so that it can go on there if its executor is lost.

    instance 0   at home on executor 1   ->  peers 2 and 3        new runs are lent to them after each version (`runtime/lending.py`)
    instance 1   at home on executor 2   ->  peers 3 and 1

`control/replicas` chooses the peers: q of them for each instance, never two in one fault zone, none in that of the home, with as little
shipping as possible. Zones are hosts, if there are enough of them, and executors otherwise. Each time only what a peer lacks is lent. So
after a loss, a move or a rescale the number of copies is restored.

Copies are made by a thread beside the batches. Making them takes a Spark job, and with small batches such a job costs about as much as a
batch. So the thread works a small share of the time only, unless copies are missing. With ``acknowledge=peers`` results wait until peers
that had all of an instance's state have its new runs too. A new peer, which must get all of the state, gets it beside the batches in any
case.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.control.network import Node, NodeId
from headrace.control.replicas.model import Arrangement, Host, Hosts, KeyRange, RangeId, ReplicaConfig
from headrace.control.replicas.transport import place_replicas
from headrace.ids import OperatorId
from headrace.logs import log_fields, logger
from headrace.runtime.lending import Share, Sweep
from headrace.runtime.placement import Placement
from headrace.runtime.safety.copies import Copies, Wanted
from headrace.runtime.safety.keeping import Keeping, Pin, files_of
from headrace.spark.executors import Executor
from headrace.state.manifest import Manifest
from headrace.state.routing import Routing

ATTEMPTS_MAX = 3
"""How often copies are tried to be made of one version, if executors are lost meanwhile."""
SHARE = 0.1
"""The share of the time in which copies are made beside the batches."""
SHARE_RESTORING = 0.5
"""The same while copies are missing, after a loss or a move."""
CALM_S = 2.0
"""After a loss, missing copies are made when a calm batch has ended, or if none ends for so many seconds."""
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
    interrupted: Callable[[], bool] = lambda: False
    """True while a version is made of which an attempt was broken off, because executors were lost or did not answer."""
    redundancy: Redundancy | None = None
    _peers: dict[RangeId, frozenset[NodeId]] = field(default_factory=dict)
    _complete: set[tuple[RangeId, NodeId]] = field(default_factory=set)
    """Instances and peers that had all of their state."""
    _since_s: float | None = None
    _routing: dict[OperatorId, Routing] = field(default_factory=dict)
    _due: threading.Event = field(default_factory=threading.Event)
    _disturbed: bool = False
    """True if the last version was interrupted, or if copying was."""
    _ended: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to make copies beside the batches."""
        self._thread = threading.Thread(target=self._run, name="headrace-replicas", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._due.set()
        if self._thread is not None:
            self._thread.join()

    def after_version(self, routing: Mapping[OperatorId, Routing]) -> None:
        """Make copies of what a version has written: now, or beside the batches; later, if the version was interrupted."""
        self._routing, self._disturbed = dict(routing), self.interrupted()
        if self._disturbed:
            self._note_lost()
        if not self.waits or self.update().missing:
            self._due.set()

    def places(self) -> list[dict[str, Any]]:
        """For each instance its home, and the executors that keep or shall keep a copy: ids, hosts, and whether the copy is complete."""
        hosts = {each.id: each.host for each in self.placement.executors.live()}
        peers, complete = self._peers, self._complete
        found = []
        for op, homes in self.placement.homes.items():
            for at, home in enumerate(homes):
                name = RangeId(f"{op}-{at}")
                kept = [
                    {"id": str(peer), "host": hosts[peer], "complete": (name, peer) in complete}
                    for peer in sorted(peers.get(name, ()))
                    if peer in hosts and peer != home.id
                ]
                found.append({"operator": op, "instance": at, "home": home.id, "host": home.host, "peers": kept, "wanted": self.count})
        return found

    def _note_lost(self) -> None:
        """Count the copies that a loss took. Others are made when batches are calm again; until then these are missing."""
        live = {each.id for each in self.placement.trusted()}
        missing = wanted = 0
        for op in self._routing:
            for at, home in enumerate(self.placement.homes.get(op, ())):
                peers = self._peers.get(RangeId(f"{op}-{at}"), ())
                wanted += self.count
                missing += max(0, self.count - sum(peer in live and peer != home.id for peer in peers))
        if missing:
            self._note(wanted, missing, 0)

    def update(self) -> Redundancy:
        """Bring peers what they lack of the newest version, if they had all of an instance's state before.

        If an executor is lost meanwhile, try again with the others.
        """
        for _ in range(ATTEMPTS_MAX):
            found = self._update(only_complete=True)
            if found is not None:
                return found
        return self._note(len(self._peers) * self.count, len(self._peers) * self.count, 0)

    def _update(self, only_complete: bool) -> Redundancy | None:
        """Bring peers what they lack of the newest version; None if that was broken off."""
        latest = self.keeping.checkpoint.latest()
        if latest is None:
            return self._note(0, 0, 0)
        self.keeping.pin(Pin.COPYING, latest)
        live = {each.id: each for each in self.placement.trusted()}
        homes, shares = self._instances(self._routing, live)
        arranged = self._arranged(homes, shares, live)
        self._peers = dict(arranged.replicas)
        pairs = [(name, peer) for name, peers in arranged.replicas.items() for peer in sorted(peers)]
        copies = self.keeping.copies
        lacking = {pair: tuple(_lacking(share, pair[1], copies) for share in shares[pair[0]]) for pair in pairs}
        incomplete = {pair for pair, each in lacking.items() if any(share.refs for share in each)}
        chosen = [pair for pair in pairs if pair in incomplete and (not only_complete or pair in self._complete)]
        lent, nowhere = 0, len(homes) * self.count - len(pairs)
        if restored := len(incomplete - self._complete) + nowhere:
            # What only lags behind by a version is not missing.
            self._note(len(homes) * self.count, restored, 0)
        if chosen:
            wanted: Wanted = [(live[peer], lacking[name, peer]) for name, peer in chosen]
            sweep = Sweep(self._named(latest), latest.version) if latest.version % SWEEP_EVERY == 0 else None
            loans = copies.lack(wanted, self.placement.lenders(), durable_suffices=False).loans
            fetched = self.placement.fetch(wanted, loans, sweep, beside=not only_complete)
            if fetched is None:
                return None
            for to, (peer, each) in enumerate(wanted):
                for ref in (ref for share in each for ref in share.refs if (to, ref.file) not in fetched.lacking):
                    copies.add(ref.file, peer.id)
            lent = fetched.bytes
            incomplete -= {pair for to, pair in enumerate(chosen) if to not in {at for at, _ in fetched.lacking}}
        self._complete = {pair for pair in pairs if pair not in incomplete}
        missing = len(incomplete) + nowhere
        if not missing:
            self.keeping.pin(Pin.COPIED, latest)
        self.keeping.unpin(Pin.COPYING)
        return self._note(len(homes) * self.count, missing, lent)

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

    def _named(self, copied: Manifest) -> frozenset[str]:
        """The runs that peers need: of the version that is copied, of the newest, and those that are kept for other reasons."""
        latest = self.keeping.checkpoint.latest() or copied
        return files_of(copied) | files_of(latest) | self.keeping.pinned_files()

    def _note(self, wanted: int, missing: int, lent: int) -> Redundancy:
        now_s = time.monotonic()
        self._since_s = None if not missing else self._since_s or now_s
        missing_s = 0.0 if self._since_s is None else now_s - self._since_s
        if missing and (self.redundancy is None or self.redundancy.missing != missing):
            _log.warning("%d of %d copies of state are missing", missing, wanted)
        self.redundancy = Redundancy(wanted, missing, missing_s, lent)
        return self.redundancy

    def _broken_off(self) -> int:
        """Copying was broken off by a loss: try again when batches are calm. Returns how many copies are missing."""
        self._disturbed = True
        self._due.set()
        return self.redundancy.missing if self.redundancy is not None else 0

    def _wait_for_calm(self) -> None:
        """After a loss: wait for the end of a version that was not interrupted, or until no version has ended for `CALM_S`.

        The version that repairs a loss, and the next one, are waited for by users. Copying beside them would delay both.
        """
        while (self._disturbed or self.interrupted()) and not self._ended.is_set() and self._due.wait(CALM_S):
            self._due.clear()

    def _run(self) -> None:
        with log_fields(query=self.keeping.checkpoint.location):
            while True:
                self._due.wait()
                self._due.clear()
                self._wait_for_calm()
                began_s = time.monotonic()
                if self._ended.is_set():
                    return
                try:
                    found = self._update(only_complete=False)
                    missing = found.missing if found is not None else self._broken_off()
                except Exception:
                    # Executors may be going, or Spark may be shutting down. The next version tries again.
                    _log.warning("copies of state were not made; trying again after the next batch", exc_info=True)
                    missing = 0
                share = SHARE_RESTORING if missing else SHARE
                self._ended.wait((time.monotonic() - began_s) * (1 / share - 1))


def _lacking(share: Share, peer: str, copies: Copies) -> Share:
    """The part of a share that a peer has no copies of."""
    return Share(share.layout, tuple(ref for ref in share.refs if peer not in copies.holders_of(ref.file)))
