"""Floe's ring (VI, VII): each node decides from its own load and its neighbours' answers.

- Load balancing: a node with a long queue and high utilisation asks the next node, B, to move its token half-way back between them.
- Cascade: if B has no room, it first asks its own next node, and so on round the ring. A node that was helped can then help.
- Scale out: if no node has room, a new node is requested and placed half-way.
- Scale in: a light node with a light neighbour gives all its slots to the neighbour and leaves.
- Recovery: the next node takes over a silent node, and silent nodes before it (`headrace.control.ring.copies`).
- After each of these, copies are shipped until every slot has its replicas again.

The messages of a hand-over. A gives up the slots before B takes them, and takes them back if B dies in between:

    A: Help ──> B: Accept ──> A: Ship if B has no copy ──> B: Holding ──> A: Grant ──> B: Announce to all

Without failures no slot has two owners, and a slot without an owner has a grant on its way; tuples that arrive meanwhile are in B's
backup. Once messages have settled, the arcs are a partition of the ring, even if messages were lost, repeated or reordered, or nodes died.

Differences from the paper:
- Half of the interval is moved only if it has between a tenth and nine tenths of the load. Otherwise the interval is cut at half of the
  load, as the paper suggests itself. If one slot has all the load, nothing is moved and no machine is requested.
- The paper says that its thresholds can oscillate. Here every node that takes slots must end up less busy than the overloaded node was,
  and a node leaves only if the two together stay well below the upper threshold. So under a steady load every chain of moves lowers the
  sorted list of loads, and no scale in leads to a scale out: the ring comes to rest.
- If two neighbours both want to leave, the one with the smaller name does. A node that asks for help itself refuses to help.
- Silent nodes are probed all at once, so recovery takes the same time for one failure and for r. More than r dead neighbours are taken
  over step by step, and the decision names the slots without a copy and the nodes that may have one.
- For a removed node, section V.A names the "counter-clockwise" neighbour, which has no copy. Here the clockwise one takes over, as in VI
  and VII.
- If neighbours share a fault zone, a farther node gets one more copy (`RingView.holders`).
- A node that is slow for a long time may be declared dead. It learns this from any node that it contacts, and stops. Until then both
  process tuples: at least once.
- Checkpoints are shipped outside of this protocol; reports list those that came. Each carries a digest of its sender's view, so that a
  node that missed an announcement gets the view. A node rests after a take-over, as after any move.
- The mappers' part, routing tuples by the announcements, belongs to the runtime.
"""

from __future__ import annotations

from headrace.control.decisions import Decision
from headrace.control.network import NodeId
from headrace.control.ring import asking, copies, handing
from headrace.control.ring.cuts import is_light, is_overloaded
from headrace.control.ring.messages import (
    Accept,
    Alive,
    Announce,
    Event,
    Grant,
    Help,
    Holding,
    Known,
    Leave,
    Message,
    Probe,
    Ready,
    Refuse,
    Report,
    Return,
    RingConfig,
    RingNode,
    Send,
    Ship,
)
from headrace.control.ring.turn import Turn, changed


def decide(event: Event, config: RingConfig, node: RingNode) -> tuple[tuple[Send | Decision, ...], RingNode]:
    """Handle an event: the messages and decisions of a node, and its next state.

    >>> from headrace.control.ring.view import even_ring
    >>> view = even_ring(["x", "y"])
    >>> said, node = decide(Report(3.0, queue_rows=5000, cpu=0.95), RingConfig(), RingNode(view.peers[0], view))
    >>> [(each.to, each.message) for each in said if isinstance(each, Send) and isinstance(each.message, Help)]
    [('n1', Help(path=('n0',), cpu=0.95, moved_cpu=0.475, asked_s=3.0))]
    """
    if isinstance(event, Report) and _is_calm(node, event, config):
        return (), changed(node, {"load": event})
    turn = Turn(node, config, event.at_s)
    if isinstance(event, Report):
        _on_report(turn, event)
    elif turn.node.joined or isinstance(event.message, Ship | Grant | Refuse):
        _on_message(turn, event.sender, event.message)
        copies.repair(turn)
    return tuple(turn.out), turn.node


# Time passes.


def _on_report(turn: Turn, report: Report) -> None:
    turn.change(load=report)
    if not turn.node.joined:
        return
    _expire(turn)
    copies.hear_checkpoints(turn)
    copies.watch(turn)
    copies.repair(turn)
    handing.go_on(turn, again=True)
    asking.consider(turn)


def _is_calm(node: RingNode, load: Report, config: RingConfig) -> bool:
    """True if the report needs no action: nothing is in progress, all watched nodes are alive with the same view, the load is normal.

    This saves time, because most reports are like this: an hour of a thousand nodes has nearly two million of them.
    """
    view = node.view
    if node.deal or node.promised or node.shipping or not node.copies or node.probing_since_s is not None or not node.joined:
        return False
    if is_overloaded(load, config) or is_light(load, config):
        return False
    came = {}
    for each in load.checkpoints:
        if each.digest != view.digest and each.at_s > node.learnt_s:
            return False
        came[each.sender] = each.at_s
    since_s = load.at_s - config.silence_s
    return all(came.get(peer.node, since_s) > since_s for peer in view.before(node.me.node, config.replicas))


def _expire(turn: Turn) -> None:
    node, config = turn.node, turn.config
    if node.promised and turn.at_s > node.promised[1]:
        turn.change(promised=None)
    deal = node.deal
    if deal is None:
        return
    waited_s = turn.at_s - deal.since_s
    if deal.stage == "ceded":
        if deal.to and not node.view.knows(deal.to) and waited_s > config.patience_s:
            # A new node that does not answer. It is declared gone before the slots are taken back, so that it cannot join later.
            turn.learn(gone=(deal.to,))
            turn.announce(gone=(deal.to,))
        elif waited_s > config.patience_s:
            # The taker may be dead, and the announcement of that lost. Another node will know; they are asked one after the other.
            others = list(node.view.clockwise(turn.id))
            copies.send_view(turn, others[int(waited_s // config.patience_s) % len(others)].node)
    elif waited_s > (config.patience_s if deal.stage == "asking" else config.provision_s):
        turn.drop()


# Messages.


def _on_message(turn: Turn, sender: NodeId, message: Message) -> None:
    match message:
        case Known():
            copies.on_known(turn, sender, message)
        case Help():
            asking.on_help(turn, sender, message)
        case Leave():
            asking.on_leave(turn, sender, message)
        case Accept():
            asking.on_accept(turn, sender, message)
        case Refuse():
            asking.on_refuse(turn, sender, message)
        case Ship():
            copies.on_ship(turn, sender, message)
        case Holding():
            copies.on_holding(turn, sender, message)
            handing.go_on(turn)
        case Grant():
            handing.on_grant(turn, sender, message)
        case Return():
            handing.on_return(turn, sender, message)
        case Announce():
            _on_announce(turn, sender, message)
        case Probe():
            copies.on_probe(turn, sender, message)
        case Alive():
            copies.hear(turn, sender)
        case Ready():
            asking.on_ready(turn, sender)


def _on_announce(turn: Turn, sender: NodeId, message: Announce) -> None:
    node = turn.node
    stray = message.by is not None and message.by in node.view.gone and not node.view.knows(sender)
    if stray and node.owned().has(message.peer.token):
        # The node that let it in has died, and this node owns the slots that it was given.
        turn.learn(gone=(sender,))
        turn.announce(gone=(sender,))
        return
    copies.hear(turn, sender)
    turn.learn((message.peer,), message.gone)
