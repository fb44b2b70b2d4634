"""Messages, events, decisions and the state of the ring's nodes, and the settings; see `headrace.control.ring`.

Messages may be late, repeated, lost or out of order. Two of them change the ring. With a *grant*, an owner gives up slots before another
node takes them. With an *announcement*, a node publishes its new token.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.control.checks import ascending, between
from headrace.control.decisions import Decision
from headrace.control.network import NodeId
from headrace.control.observation import Floats
from headrace.control.ring.view import Peer, RingArc, RingView
from headrace.errors import QueryError
from headrace.ids import SLOTS


@dataclass(frozen=True)
class RingConfig:
    """Settings of the ring. The paper has no values for most thresholds; these are ours."""

    queue_high: float = 1000.0
    """A node with this many waiting rows may be overloaded: some tenths of a second of work, more than a batch in flight."""
    queue_low: float = 100.0
    """A node with at most this many waiting rows may be light."""
    cpu_high: float = 0.8
    """A node with at least this utilisation may be overloaded. StreamCloud has 0.8 to 0.9; above, queues grow."""
    cpu_low: float = 0.5
    """A node with at most this utilisation may be light: half of an overloaded neighbour's work fits, as 0.5 + 0.8 / 2 <= 0.9."""
    cpu_merged: float = 0.65
    """A node leaves only if its neighbour would then have at most this utilisation. Near cpu_high the two would split and merge forever."""
    gain_min: float = 0.05
    """After a move, every node that takes slots must have a utilisation at least this much below that of the overloaded node before."""
    replicas: int = 1
    """r: the number of copies besides the owner's state."""
    silence_s: float = 5.0
    """A node is probed after this time without a checkpoint: two and a half times the 2 s interval that the paper finds best."""
    answer_s: float = 1.0
    """How long the answer to a probe may take."""
    patience_s: float = 10.0
    """How long a request for help waits for an answer."""
    provision_s: float = 300.0
    """How long a new machine may take to start. The paper's clouds need minutes."""
    rest_s: float = 10.0
    """How long a node waits after a change, until its reports show the new load; and how long it waits to ask again after a refusal."""
    hops_max: int = 32
    """A request is passed on this often at most. In the paper it goes round the ring, but many moves cost more than a machine."""
    nodes_min: int = 2
    """The fewest nodes. There are also never fewer than hold the copies."""

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
    """The sender's view of the ring, for a node whose view differs."""

    view: RingView


@dataclass(frozen=True)
class Help:
    """A request to take some of the sender's slots. The sender is overloaded, or wants to help a node that is."""

    path: tuple[NodeId, ...]
    """All nodes that ask, the overloaded one first."""
    cpu: float
    """The utilisation of the overloaded node. No node on the path may end up as busy."""
    moved_cpu: float
    """The utilisation that the receiver would take over."""
    asked_s: float
    """The time of the request on the sender's clock. The answer repeats it, so that a late answer matches no other request."""


@dataclass(frozen=True)
class Leave:
    """A request of a light node to take all of its slots, so that it can leave."""

    cpu: float
    asked_s: float


@dataclass(frozen=True)
class Accept:
    """The answer that the sender will take the slots."""

    asked_s: float


@dataclass(frozen=True)
class Refuse:
    """The answer that the sender does not take the slots."""

    full: bool
    """True if no node that was asked has room. False if the sender is only occupied and may be asked again."""
    asked_s: float


@dataclass(frozen=True)
class Ship:
    """A copy of the sender's state for some slots. It is sent again if no answer comes."""

    part: RingArc
    """The slots in this message."""
    arc: RingArc
    """The slots that the receiver holds afterwards, with those that it had."""
    number: int
    """Grows with every shipment of the sender. The receiver ignores older shipments that come late."""


@dataclass(frozen=True)
class Holding:
    """The answer to `Ship`: the copy has arrived."""

    number: int


@dataclass(frozen=True)
class Grant:
    """Gives slots to the receiver: it may move its token here, and the sender no longer owns the slots from there on."""

    token: int
    leaving: bool = False
    """True if the sender gives up all its slots."""
    view: RingView = field(default_factory=RingView)
    """The ring, for a node that is new."""


@dataclass(frozen=True)
class Return:
    """The answer to a grant that cannot be used, because the sender itself is leaving."""

    token: int


@dataclass(frozen=True)
class Announce:
    """The sender's new place, and the nodes that are gone."""

    peer: Peer
    gone: tuple[NodeId, ...] = ()
    by: NodeId | None = None
    """For a new node: the node that gave it its slots."""


@dataclass(frozen=True)
class Probe:
    """Asks a silent node for a sign of life. Its checkpoints may go elsewhere, because it knows another ring."""

    digest: int


@dataclass(frozen=True)
class Alive:
    """The answer to `Probe`."""


@dataclass(frozen=True)
class Ready:
    """A new node has started. The receiver requested it."""

    zone: str


Message = Known | Help | Leave | Accept | Refuse | Ship | Holding | Grant | Return | Announce | Probe | Alive | Ready


# Events.


@dataclass(frozen=True)
class NodeCheckpoint:
    """The last checkpoint that came from a node. Checkpoints go to `RingView.holders`, with the digest of the sender's view.

    They are not messages of the protocol, because every node would have to handle one every 2 s, mostly without news. They are part of
    the report instead, and a node acts only on news.
    """

    sender: NodeId
    at_s: float
    """When it arrived."""
    digest: int


@dataclass(frozen=True, eq=False)
class Report:
    """A node's own measurement, at every checkpoint interval. It is also the node's clock tick."""

    at_s: float
    queue_rows: float
    cpu: float
    rows_per_slot: Floats | None = None
    """Rows per slot; only the node's own slots count. None if rows are spread evenly."""
    checkpoints: tuple[NodeCheckpoint, ...] = ()
    """The last checkpoint of each node that sends some here."""


@dataclass(frozen=True)
class Received:
    """A message that has arrived."""

    at_s: float
    sender: NodeId
    message: Message


Event = Report | Received


# Decisions.


@dataclass(frozen=True)
class Send:
    """A message to send."""

    to: NodeId
    message: Message


@dataclass(frozen=True, kw_only=True)
class RequestNode(Decision):
    """Start a new node. It sends `Ready` to the node that decided this."""

    token: int
    """Its likely token. Its slots are decided when it is ready."""
    avoid_zones: tuple[str, ...]
    """The zones of its neighbours."""


@dataclass(frozen=True, kw_only=True)
class TakeOver(Decision):
    """Take over the slots of dead nodes: restore them from the copies, replay the tuples since, and go on as their owner."""

    arc: RingArc
    missing: tuple[RingArc, ...] = ()
    """Slots without a copy here, and no others: more neighbours failed than there are replicas, or a new copy had not arrived yet."""
    ask: tuple[NodeId, ...] = ()
    """Nodes that may have copies of the missing slots. If there are none, their state is lost."""


@dataclass(frozen=True, kw_only=True)
class Left(Decision):
    """The node has no slots any more and can be released."""


# The state of a node.


@dataclass(frozen=True)
class Deal:
    """A hand-over to the next node, from the request to the announcement. A node has at most one at a time.

    Stages: asking -> shipping -> ceded, or asking -> provisioning -> shipping -> ceded.
    """

    stage: str
    since_s: float
    to: NodeId | None = None
    token: int = 0
    """Where the slots begin that are given up; known from the stage shipping on."""
    leaving: bool = False
    """True if the node gives up all its slots."""
    path: tuple[NodeId, ...] = ()
    """All nodes that ask for help, up to this one."""
    for_s: float = 0.0
    """When the node before asked, if this hand-over is to help it."""


@dataclass(frozen=True)
class Shipment:
    """A copy that was sent and not yet confirmed."""

    message: Ship
    since_s: float


@dataclass(frozen=True, eq=False)
class RingNode:
    """The whole state of a node. `decide` maps it, with an event, to the next state."""

    me: Peer
    view: RingView
    load: Report = field(default_factory=lambda: Report(0.0, 0.0, 0.0))
    deal: Deal | None = None
    promised: tuple[NodeId, float] | None = None
    """The node that it promised to take slots from, and until when the promise holds."""
    copies: Mapping[NodeId, RingArc] = field(default_factory=dict)
    """Per node: the slots of this node of which it holds a copy."""
    shipping: Mapping[NodeId, Shipment] = field(default_factory=dict)
    """Per node: the copy that is on its way to it."""
    shipments: int = 0
    """The number of the last shipment."""
    holds: Mapping[NodeId, Ship] = field(default_factory=dict)
    """Per node: the last copy of its slots that this node received."""
    heard_s: Mapping[NodeId, float] = field(default_factory=dict)
    """Per watched node: the time of its last sign of life."""
    learnt_s: float = float("-inf")
    """When its view last changed."""
    probing_since_s: float | None = None
    """When it sent probes that are not decided yet."""
    rest_until_s: float = 0.0
    """Until then its reports may show the load before the last change, so it neither asks nor helps."""
    ask_after_s: float = 0.0
    """Until then it does not ask again, because it was refused. It helps if it can."""

    @property
    def joined(self) -> bool:
        return self.view.knows(self.me.node)

    def owned(self) -> RingArc:
        """The slots that it owns, without those that it has given up already."""
        if not self.joined:
            return RingArc(self.me.token, 0)
        arc = self.view.arc(self.me.node)
        ceded = self.deal is not None and self.deal.stage == "ceded"
        return RingArc.between(arc.lo, self.deal.token) if ceded and self.deal else arc
