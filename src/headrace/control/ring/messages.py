"""What nodes of the ring say to each other, what they remember, and what they decide; see `headrace.control.ring`.

Messages may be late, doubled, lost or out of order. Those that change the ring are the *grant*, by which an owner gives up slots before
anybody else takes them, and the *announcement*, by which a node tells its new place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.control.checks import ascending, between
from headrace.control.decisions import Decision
from headrace.control.network import NodeId
from headrace.control.observation import Floats
from headrace.control.ring.view import Arc, Peer, RingView
from headrace.errors import QueryError
from headrace.ids import SLOTS


@dataclass(frozen=True)
class RingConfig:
    """Thresholds have no values in the paper, but the eviction's; these are ours, with the reason."""

    queue_high: float = 1000.0
    """Rows waiting. Some tenths of a second of a node's work: enough to tell a backlog from a batch in flight."""
    queue_low: float = 100.0
    cpu_high: float = 0.8
    """As StreamCloud's 0.8 to 0.9: above, queues grow."""
    cpu_low: float = 0.5
    """Below, half of an overloaded neighbour's work fits in: 0.5 + 0.8 / 2 is not above 0.9."""
    cpu_merged: float = 0.65
    """A node goes only if its neighbour would then be at most so busy: well below high, or the two would part and join for ever."""
    gain_min: float = 0.05
    """A move must leave everybody who takes at least so much less busy than the overloaded one was."""
    replicas: int = 1
    """r: copies beside the owner's."""
    silence_s: float = 5.0
    """Without a checkpoint for so long, a node is asked for. Two and a half of the 2 s intervals that the paper finds best."""
    answer_s: float = 1.0
    """How long an answer to that may take."""
    patience_s: float = 10.0
    """How long a request for help may stay without an answer."""
    provision_s: float = 300.0
    """How long a new machine may take: the paper's class of clouds needs minutes."""
    rest_s: float = 10.0
    """So long a node waits after a change, until its reports show the new load; and before it asks again, after a refusal."""
    hops_max: int = 32
    """A request is passed on so often at most. The paper goes round the ring; a long chain of moves costs more than one machine."""
    nodes_min: int = 2
    """At least; and never fewer than hold the copies."""

    def __post_init__(self) -> None:
        ascending("ring", queue_low=self.queue_low, queue_high=self.queue_high)
        ascending("ring", cpu_low=self.cpu_low, cpu_merged=self.cpu_merged, cpu_high=self.cpu_high)
        if self.cpu_merged + self.gain_min > self.cpu_high:
            wanted = "cpu_merged + gain_min of at most cpu_high"
            raise QueryError(where="ring", wanted=wanted, found=f"{self.cpu_merged:g} + {self.gain_min:g} and {self.cpu_high:g}")
        between("ring", "replicas", self.replicas, 1)
        between("ring", "nodes_min", self.nodes_min, 1, SLOTS)
        between("ring", "hops_max", self.hops_max, 1)
        for name in ("gain_min", "silence_s", "answer_s", "patience_s", "provision_s", "rest_s"):
            between("ring", name, getattr(self, name), 0)


# Messages.


@dataclass(frozen=True)
class Known:
    """What the sender knows of the ring, for one whose checkpoints show that it knows another."""

    view: RingView


@dataclass(frozen=True)
class Help:
    """The sender is too busy, or was asked by one who is: take some of my slots."""

    path: tuple[NodeId, ...]
    """Everybody who asks, the overloaded one first."""
    cpu: float
    """Of the overloaded one: nobody on the path may end up as busy as it was."""
    moved_cpu: float
    """What the receiver would take."""
    asked_s: float
    """When, on the sender's clock. The answer repeats it, so that a late one is not taken for the answer to another question."""


@dataclass(frozen=True)
class Leave:
    """The sender has little to do: take all of my slots."""

    cpu: float
    asked_s: float


@dataclass(frozen=True)
class Accept:
    asked_s: float


@dataclass(frozen=True)
class Refuse:
    full: bool
    """Whether there is no room as far as the request came; else the one asked is only occupied, and may be asked again."""
    asked_s: float


@dataclass(frozen=True)
class Ship:
    """A copy of the sender's state for some slots. Said again if no answer comes; what is still under way need not be shipped twice."""

    part: Arc
    """What is in it."""
    arc: Arc
    """What the receiver then holds, with what it had."""
    number: int
    """Grows with every shipment of the sender; an older one that comes late is of no use."""


@dataclass(frozen=True)
class Holding:
    """The copy has arrived."""

    number: int


@dataclass(frozen=True)
class Grant:
    """The receiver's token may be here now: the sender no longer owns what comes after it."""

    token: int
    leaving: bool = False
    view: RingView = field(default_factory=RingView)
    """For one who is new on the ring."""


@dataclass(frozen=True)
class Return:
    """The grant comes too late for the sender, who goes itself."""

    token: int


@dataclass(frozen=True)
class Announce:
    """The sender's place, and who is gone."""

    peer: Peer
    gone: tuple[NodeId, ...] = ()
    by: NodeId | None = None
    """Who gave a new node its slots."""


@dataclass(frozen=True)
class Probe:
    """Are you there? And do you know the same ring: it may be that the checkpoints only go elsewhere."""

    digest: int


@dataclass(frozen=True)
class Alive:
    pass


@dataclass(frozen=True)
class Ready:
    """A new node has started, for the receiver who requested it."""

    zone: str


Message = Known | Help | Leave | Accept | Refuse | Ship | Holding | Grant | Return | Announce | Probe | Alive | Ready


# Events.


@dataclass(frozen=True)
class Checkpoint:
    """The last one that came from a node. Whoever ships checkpoints sends them to `RingView.holders`, with the digest of the view.

    They are no messages of the protocol: a ring of n nodes would have n of them every 2 s to handle, and nearly all say nothing new. What
    they say is in the report, and only where it is news does a node do anything about it.
    """

    sender: NodeId
    at_s: float
    """When it came."""
    digest: int


@dataclass(frozen=True, eq=False)
class Report:
    """A node's own measurement, at every checkpoint interval; also the tick by which it notices that time has passed."""

    at_s: float
    queue_rows: float
    cpu: float
    rows_per_slot: Floats | None = None
    """For its slots; others are ignored. Without, rows are taken to be spread evenly."""
    checkpoints: tuple[Checkpoint, ...] = ()
    """The last one of each node that sends any."""


@dataclass(frozen=True)
class Received:
    at_s: float
    sender: NodeId
    message: Message


Event = Report | Received


# Decisions.


@dataclass(frozen=True)
class Send:
    to: NodeId
    message: Message


@dataclass(frozen=True, kw_only=True)
class RequestNode(Decision):
    """A new node, to say `Ready` to the one who decided this."""

    token: int
    """About where it will be; its slots are decided when it is ready."""
    avoid_zones: tuple[str, ...]
    """Where its neighbours are."""


@dataclass(frozen=True, kw_only=True)
class TakeOver(Decision):
    """Restore these slots from the copies held, replay the tuples backed up since, and go on as their owner."""

    arc: Arc
    missing: tuple[Arc, ...] = ()
    """Slots without a copy here: more neighbours failed at once than there are replicas, or a new copy was still under way."""
    ask: tuple[NodeId, ...] = ()
    """Who may have copies of those. If nobody, their state is lost."""


@dataclass(frozen=True, kw_only=True)
class Left(Decision):
    """The node has no slots any more and may be released."""


# Memory.


@dataclass(frozen=True)
class Deal:
    """A hand-over to the next node, from the question to the announcement. A node makes one at a time.

    asking -> shipping -> ceded, or asking -> provisioning -> shipping -> ceded
    """

    stage: str
    since_s: float
    to: NodeId | None = None
    token: int = 0
    """Ceded: where the slots begin that are given up."""
    leaving: bool = False
    path: tuple[NodeId, ...] = ()
    for_s: float = 0.0
    """When the node before asked, if this is to help it."""


@dataclass(frozen=True)
class Shipment:
    message: Ship
    since_s: float


@dataclass(frozen=True, eq=False)
class Node:
    """All that a node knows."""

    me: Peer
    view: RingView
    load: Report = field(default_factory=lambda: Report(0.0, 0.0, 0.0))
    deal: Deal | None = None
    promised: tuple[NodeId, float] | None = None
    """Whom it promised to take slots from, and until when."""
    copies: Mapping[NodeId, Arc] = field(default_factory=dict)
    """Who holds which of its slots."""
    shipping: Mapping[NodeId, Shipment] = field(default_factory=dict)
    """What is under way to whom."""
    shipments: int = 0
    holds: Mapping[NodeId, Ship] = field(default_factory=dict)
    """Whose slots it holds copies of, by the last shipment."""
    heard_s: Mapping[NodeId, float] = field(default_factory=dict)
    """When a sign of life came from the nodes that it watches."""
    learnt_s: float = float("-inf")
    """When it last learnt something of the ring."""
    probing_since_s: float | None = None
    rest_until_s: float = 0.0
    """Until then its reports may show what was before the last change: it neither asks nor helps."""
    ask_after_s: float = 0.0
    """Until then it does not ask again, after a refusal; it helps if it can."""

    @property
    def joined(self) -> bool:
        return self.view.knows(self.me.node)

    def owned(self) -> Arc:
        """What it owns, without what it has given up already."""
        if not self.joined:
            return Arc(self.me.token, 0)
        arc = self.view.arc(self.me.node)
        ceded = self.deal is not None and self.deal.stage == "ceded"
        return Arc.between(arc.lo, self.deal.token) if ceded and self.deal else arc
