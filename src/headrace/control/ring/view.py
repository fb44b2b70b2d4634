"""Floe's ring of nodes (V.A, V.B, VII): which node owns which slots, and which nodes hold copies of them.

A node's *token* is a slot, and the node owns the *arc* from its token clockwise to the next token. Tokens are slots, not arbitrary points.
So a hand-over never cuts a slot, and the load of an arc is the sum of its slots' loads.

              a       b           node A at token a owns [a, b); the next r nodes clockwise hold copies:
        ------A-------B-----C---  B for r = 1, B and C for r = 2
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from weakref import WeakValueDictionary

import numpy as np

from headrace.control.network import NodeId
from headrace.control.observation import Owners
from headrace.errors import require
from headrace.ids import SLOTS


@dataclass(frozen=True)
class RingArc:
    """``size`` neighbouring slots, clockwise from ``lo``. An arc may cross the end of the ring."""

    lo: int
    size: int

    def __post_init__(self) -> None:
        require(0 <= self.lo < SLOTS and 0 <= self.size <= SLOTS, f"an arc lies on the ring of {SLOTS} slots; found {self}")

    @classmethod
    def between(cls, lo: int, hi: int) -> RingArc:
        """From slot ``lo`` up to, and without, slot ``hi``; empty if they are the same.

        >>> RingArc.between(4090, 10)
        RingArc(lo=4090, size=16)
        """
        return cls(lo, (hi - lo) % SLOTS)

    @property
    def hi(self) -> int:
        return (self.lo + self.size) % SLOTS

    def slots(self) -> Owners:
        return (self.lo + np.arange(self.size)) % SLOTS

    def covers(self, other: RingArc) -> bool:
        """True if the other arc lies within this one.

        >>> RingArc(4090, 16).covers(RingArc(0, 10)), RingArc(4090, 16).covers(RingArc(0, 11)), RingArc(5, 1).covers(RingArc(9, 0))
        (True, False, True)
        """
        return other.size == 0 or (other.lo - self.lo) % SLOTS + other.size <= self.size

    def has(self, slot: int) -> bool:
        return (slot - self.lo) % SLOTS < self.size

    def without(self, others: Iterable[RingArc]) -> tuple[RingArc, ...]:
        """The parts of this arc that lie in none of the others, clockwise.

        >>> RingArc(4090, 16).without([RingArc(4080, 12), RingArc(0, 4)])
        (RingArc(lo=4092, size=4), RingArc(lo=4, size=6))
        """
        rest = np.ones(SLOTS, dtype=bool)
        for other in others:
            rest[other.slots()] = False
        # Edges between slots that are in the rest and slots that are not, with a slot outside at both ends.
        edges = np.flatnonzero(np.diff(np.r_[False, rest[self.slots()], False]))
        return tuple(RingArc((self.lo + int(lo)) % SLOTS, int(hi - lo)) for lo, hi in edges.reshape(-1, 2))


@dataclass(frozen=True)
class Peer:
    """A node's place on the ring. Only the node itself changes its entry, and it raises the version each time."""

    node: NodeId
    token: int
    zone: str = ""
    version: int = 0


@dataclass(frozen=True)
class RingView:
    """The ring as one node knows it. Merging views gives the same result in any order and if repeated."""

    peers: tuple[Peer, ...] = ()
    """The nodes, in the order of their tokens."""
    gone: frozenset[NodeId] = frozenset()
    """Nodes that left or were taken over. They never come back with the same name."""

    @classmethod
    def of(cls, *peers: Peer) -> RingView:
        return cls().merged(peers)

    def merged(self, peers: Iterable[Peer] = (), gone: Iterable[NodeId] = ()) -> RingView:
        """This view, updated with what other nodes know.

        >>> a, b, c = Peer(NodeId("a"), 0), Peer(NodeId("b"), 50), Peer(NodeId("b"), 25, version=1)
        >>> view = RingView.of(a, c).merged([b])
        >>> [(peer.node, peer.token) for peer in view.peers]
        [('a', 0), ('b', 25)]
        >>> [peer.node for peer in view.merged(gone=["a"]).merged([a]).peers]
        ['b']
        """
        newly_gone = [name for name in dict.fromkeys(gone) if name not in self.gone]
        all_gone = self.gone.union(newly_gone) if newly_gone else self.gone
        fresh: dict[NodeId, Peer] = {}
        for peer in peers:
            old = fresh.get(peer.node) or self._known.get(peer.node)
            if peer.node not in all_gone and (old is None or old.version < peer.version):
                fresh[peer.node] = peer
        if not newly_gone and not fresh:
            return self
        replaced = [self._known[name] for name in (*newly_gone, *fresh) if name in self._known]
        digest = _marks([*fresh.values(), *replaced], newly_gone, self.digest)
        return _VIEWS.get(digest) or self._with(fresh, all_gone, digest)

    def _with(self, fresh: Mapping[NodeId, Peer], gone: frozenset[NodeId], digest: int) -> RingView:
        peers = [peer for peer in self.peers if peer.node not in gone and peer.node not in fresh]
        view = RingView(tuple(sorted((*peers, *fresh.values()), key=lambda peer: (peer.token, peer.node))), gone)
        require(view.__dict__.setdefault("digest", digest) == digest, "a view has one digest")
        _VIEWS[digest] = view
        return view

    @cached_property
    def digest(self) -> int:
        """A hash of the view, the same on every machine. Nodes whose views have equal digests need not exchange them."""
        return _marks(self.peers, self.gone)

    def knows(self, node: NodeId) -> bool:
        return node in self._known

    def peer(self, node: NodeId) -> Peer:
        require(node in self._known, f"node {node} is on the ring")
        return self._known[node]

    def clockwise(self, node: NodeId) -> Iterator[Peer]:
        """All other nodes, the next one first."""
        at = self._position(node)
        return (self.peers[(at + step) % len(self.peers)] for step in range(1, len(self.peers)))

    def counter_clockwise(self, node: NodeId) -> Iterator[Peer]:
        """All other nodes, the one before first."""
        at = self._position(node)
        return (self.peers[at - step] for step in range(1, len(self.peers)))

    def arc(self, node: NodeId) -> RingArc:
        """The slots that a node owns.

        >>> view = RingView.of(Peer(NodeId("a"), 10), Peer(NodeId("b"), 50))
        >>> view.arc(NodeId("a")), view.arc(NodeId("b")), RingView.of(Peer(NodeId("a"), 10)).arc(NodeId("a"))
        (RingArc(lo=10, size=40), RingArc(lo=50, size=4056), RingArc(lo=10, size=4096))
        """
        found = self._arcs.get(node)
        if found is None:
            token = self.peer(node).token
            following = next(self.clockwise(node), None)
            # A single node owns everything. Two nodes at one token occur only in an outdated view; there the first owns nothing.
            found = self._arcs[node] = RingArc(token, SLOTS) if following is None else RingArc.between(token, following.token)
        return found

    def before(self, node: NodeId, count: int) -> tuple[Peer, ...]:
        """The ``count`` nodes counter-clockwise of a node (or all others, if there are fewer), the nearest first."""
        found = self._befores.get((node, count))
        if found is None:
            at = self._position(node)
            found = self._befores[node, count] = tuple(self.peers[at - step] for step in range(1, min(count + 1, len(self.peers))))
        return found

    def holders(self, node: NodeId, replicas: int) -> tuple[NodeId, ...]:
        """The nodes that hold copies of a node's slots: the next ones clockwise, and more until the copies lie in enough fault zones.

        If neighbours lie in distinct zones, as Floe requires, these are just the next nodes. After failures, neighbours may lie in one
        zone. Then a farther node gets a copy too. The next node keeps its copy, because it needs one to take over at once.

        >>> zones = {"a": "x", "b": "x", "c": "y"}
        >>> view = RingView.of(*(Peer(NodeId(n), 10 * i, zone) for i, (n, zone) in enumerate(zones.items())))
        >>> view.holders(NodeId("a"), 1), view.holders(NodeId("b"), 1)
        (('b', 'c'), ('c',))
        """
        found = self._holders.get((node, replicas))
        if found is None:
            found = self._holders[node, replicas] = self._holders_of(node, replicas)
        return found

    def _holders_of(self, node: NodeId, replicas: int) -> tuple[NodeId, ...]:
        zones = {self.peer(node).zone}
        wanted = min(replicas + 1, len(self._zones))
        found: list[NodeId] = []
        for peer in self.clockwise(node):
            if len(found) < replicas or (len(zones) < wanted and peer.zone not in zones):
                found.append(peer.node)
                zones.add(peer.zone)
            elif len(zones) >= wanted:
                break
        return tuple(found)

    def _position(self, node: NodeId) -> int:
        require(node in self._positions, f"node {node} is on the ring")
        return self._positions[node]

    # Cached, because a view changes rarely and is used for every message.

    @cached_property
    def _known(self) -> dict[NodeId, Peer]:
        return {peer.node: peer for peer in self.peers}

    @cached_property
    def _arcs(self) -> dict[NodeId, RingArc]:
        return {}

    @cached_property
    def _befores(self) -> dict[tuple[NodeId, int], tuple[Peer, ...]]:
        return {}

    @cached_property
    def _holders(self) -> dict[tuple[NodeId, int], tuple[NodeId, ...]]:
        return {}

    @cached_property
    def _positions(self) -> dict[NodeId, int]:
        return {peer.node: at for at, peer in enumerate(self.peers)}

    @cached_property
    def _zones(self) -> frozenset[str]:
        return frozenset(peer.zone for peer in self.peers)


# In the simulator thousands of nodes in one process learn of the same ring in different ways. Equal views are shared here, so that cached
# values are computed once. A real node has only its own view.
_VIEWS: WeakValueDictionary[int, RingView] = WeakValueDictionary()


def _marks(peers: Iterable[Peer], gone: Iterable[NodeId], start: int = 0) -> int:
    """The exclusive or of the hashes of all of these, and of ``start``. Adding an entry twice removes it, so updates are cheap."""
    texts = [f"{peer.node} {peer.token} {peer.zone} {peer.version}" for peer in peers]
    for text in (*texts, *(f"{name} is gone" for name in gone)):
        start ^= int.from_bytes(blake2b(text.encode(), digest_size=16).digest(), "big")
    return start


def even_ring(zones: Iterable[str]) -> RingView:
    """A ring of nodes n0, n1, ... with equal arcs, one for each of these zones.

    >>> [peer.token for peer in even_ring("xyx").peers]
    [0, 1365, 2730]
    """
    each = list(zones)
    return RingView.of(*(Peer(NodeId(f"n{i}"), i * SLOTS // len(each), zone) for i, zone in enumerate(each)))
