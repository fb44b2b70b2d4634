"""Copies of slots: replication, watching neighbours, and taking over (Floe V.B, VII).

Every node watches its counter-clockwise neighbour by its checkpoints. If none came for a while, it probes that neighbour and those before
it, as many as there are replicas, all at once. It takes over the silent ones, up to the first that answers. It holds copies of all of them.
"""

from __future__ import annotations

import itertools

from headrace.control.network import NodeId
from headrace.control.ring.messages import Alive, Announce, Holding, Known, Probe, RingNode, Ship, Shipment, TakeOver
from headrace.control.ring.turn import Turn
from headrace.control.ring.view import Peer, RingArc, RingView


def hear_checkpoints(turn: Turn) -> None:
    """Note signs of life of the watched nodes, and send the view to nodes that have another one."""
    node = turn.node
    came = {each.sender: each for each in node.load.checkpoints}
    never = float("-inf")
    heard_s = {
        # A node that was not watched before counts as alive just now.
        peer.node: max(node.heard_s.get(peer.node, turn.at_s), came[peer.node].at_s if peer.node in came else never)
        for peer in _watched(turn)
    }
    if heard_s != node.heard_s:
        turn.change(heard_s=heard_s)
    for each in node.load.checkpoints:
        # A checkpoint that came just after this node's view changed was sent before its sender could learn of the change.
        if each.digest != node.view.digest and each.at_s > node.learnt_s + turn.config.answer_s:
            send_view(turn, each.sender)


def _watched(turn: Turn) -> tuple[Peer, ...]:
    """The nodes before this one, as many as there are replicas. This node holds copies of all of them."""
    return turn.node.view.before(turn.id, turn.config.replicas)


def send_view(turn: Turn, to: NodeId) -> None:
    """Send this node's view. A node that was declared dead only learns that it is gone."""
    view = turn.node.view
    turn.send(to, Announce(turn.node.me, (to,)) if to in view.gone else Known(view))


def on_known(turn: Turn, sender: NodeId, message: Known) -> None:
    """Merge the sender's view, and send this node's if it knows more."""
    turn.adopt(turn.node.view.merged(message.view.peers, message.view.gone))
    if turn.node.joined and turn.node.view.digest != message.view.digest:
        send_view(turn, sender)


def repair(turn: Turn) -> None:
    """Ship missing copies to their holders. After a move, the successors of the new owner have no copies of its slots yet."""
    node = turn.node
    if not node.joined:
        return
    holders = node.view.holders(turn.id, turn.config.replicas)
    deal_to = node.deal.to if node.deal else None
    owned = node.owned()
    if (
        not node.shipping
        and deal_to is None
        and len(node.copies) == len(holders)
        and all(node.copies.get(each) == owned for each in holders)
    ):
        return
    turn.change(
        # Copies of slots that were given away are out of date, even if the slots come back.
        copies={
            holder: owned if arc.covers(owned) and holder != deal_to else arc
            for holder, arc in node.copies.items()
            if holder in holders or holder == deal_to
        },
        shipping={holder: each for holder, each in node.shipping.items() if holder in holders or holder == deal_to},
    )
    for holder in holders:
        ship(turn, holder, owned)


def ship(turn: Turn, holder: NodeId, arc: RingArc) -> None:
    """Ship an arc to a holder, unless it is there or on its way. Ship it again if it takes so long that it may be lost."""
    node = turn.node
    have = node.copies.get(holder, RingArc(arc.lo, 0))
    if have.covers(arc):
        return
    under_way = node.shipping.get(holder)
    if under_way and under_way.message.arc == arc:
        if turn.at_s - under_way.since_s < turn.config.patience_s:
            return
        message = under_way.message
    else:
        message = Ship(missing(have, arc), arc, node.shipments + 1)
    turn.change(shipping={**node.shipping, holder: Shipment(message, turn.at_s)}, shipments=max(node.shipments, message.number))
    turn.send(holder, message)


def missing(have: RingArc, want: RingArc) -> RingArc:
    """The slots to ship so that all of ``want`` is there.

    >>> missing(RingArc(10, 10), RingArc(5, 15)), missing(RingArc(10, 10), RingArc(10, 30)), missing(RingArc(90, 1), RingArc(10, 30))
    (RingArc(lo=5, size=5), RingArc(lo=20, size=20), RingArc(lo=10, size=30))
    """
    if have.size and want.covers(have):
        if have.hi == want.hi:
            return RingArc.between(want.lo, have.lo)
        if have.lo == want.lo:
            return RingArc.between(have.hi, want.hi)
    return want


def on_ship(turn: Turn, sender: NodeId, message: Ship) -> None:
    """Keep a copy and confirm it, unless a newer one has arrived. It replaces the copies of owners before the sender."""
    node = turn.node
    held = node.holds.get(sender)
    if held is None or held.number <= message.number:
        kept = {name: each for name, each in node.holds.items() if name not in node.view.gone or not _overlap(each.arc, message.arc)}
        turn.change(holds={**kept, sender: message})
        turn.send(sender, Holding(message.number))


def _overlap(one: RingArc, other: RingArc) -> bool:
    return bool(one.size and other.size) and (one.has(other.lo) or other.has(one.lo))


def on_holding(turn: Turn, sender: NodeId, message: Holding) -> None:
    """Note that a copy has arrived."""
    node = turn.node
    if sender in node.shipping and node.shipping[sender].message.number == message.number:
        rest = {holder: each for holder, each in node.shipping.items() if holder != sender}
        turn.change(copies={**node.copies, sender: node.shipping[sender].message.arc}, shipping=rest)


def hear(turn: Turn, sender: NodeId) -> None:
    """Note a sign of life, if the sender is watched."""
    if sender in turn.node.heard_s:
        turn.change(heard_s={**turn.node.heard_s, sender: turn.at_s})


def on_probe(turn: Turn, sender: NodeId, message: Probe) -> None:
    """Answer a probe, and send the view if the sender has another one."""
    turn.send(sender, Alive())
    if message.digest != turn.node.view.digest:
        send_view(turn, sender)


def watch(turn: Turn) -> None:
    """Probe the node before if it is silent, and take it over if it does not answer."""
    node, config = turn.node, turn.config
    before = _watched(turn)
    if not before or turn.is_leaving():
        return
    heard_s = node.heard_s[before[0].node]
    since_s = node.probing_since_s
    if since_s is None:
        if turn.at_s - heard_s > config.silence_s:
            turn.change(probing_since_s=turn.at_s)
            for peer in before:
                turn.send(peer.node, Probe(node.view.digest))
    elif heard_s > since_s:
        turn.change(probing_since_s=None)
    elif turn.at_s - since_s >= config.answer_s:
        turn.change(probing_since_s=None)
        dead = list(itertools.takewhile(lambda peer: node.heard_s[peer.node] <= since_s, before))
        take_over(turn, dead)


def take_over(turn: Turn, dead: list[Peer]) -> None:
    """Take over dead nodes: move to the token of the farthest one, as if all of them had been scaled in."""
    node = turn.node
    names = tuple(peer.node for peer in dead)
    lacking = tuple(part for name in names for part in _lacking(node, name, names))
    arc = RingArc.between(dead[-1].token, node.me.token)
    ask = _others_with_copies(node.view, turn.id, names, turn.config.replicas) if lacking else ()
    turn.place(dead[-1].token, gone=names)
    turn.settle()
    # Rows waited until the failure was noticed, so the next reports show a queue even if the load is bearable.
    turn.rest()
    if turn.node.promised and turn.node.promised[0] in names:
        turn.change(promised=None)
    lost = "" if not lacking or ask else "; their state is lost"
    why = f"{', '.join(names)} sent no checkpoint for {turn.config.silence_s:g} s and did not answer{lost}"
    turn.out.append(TakeOver(arc=arc, missing=lacking, ask=ask, why=why))


def _lacking(node: RingNode, name: NodeId, dead: tuple[NodeId, ...]) -> tuple[RingArc, ...]:
    """The parts of a dead node's arc that this node has no copy of.

    The dead node may have taken over slots of others shortly before, and not shipped them yet. The copies of those owners count too: this
    node has buffered all tuples since. Copies of living nodes do not count, because they were out of date when the slots changed owners.
    """
    return node.view.arc(name).without(each.arc for owner, each in node.holds.items() if owner in dead or owner in node.view.gone)


def _others_with_copies(view: RingView, me: NodeId, dead: tuple[NodeId, ...], replicas: int) -> tuple[NodeId, ...]:
    """Nodes that may hold copies of dead nodes' slots: the holders now, and the next nodes, which were holders before the last change."""
    candidates = [holder for name in dead for holder in view.holders(name, replicas)]
    candidates += [peer.node for peer in itertools.islice(view.clockwise(me), replicas)]
    return tuple(name for name in dict.fromkeys(candidates) if name != me and name not in dead)
