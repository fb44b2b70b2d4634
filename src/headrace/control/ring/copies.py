"""Copies of the ring's slots, and what they are for: replication, watching the node before, taking over (Floe V.B, VII).

Every node watches its counter-clockwise neighbour, by its checkpoints. If none came for a while it asks that neighbour and those before it,
as many as there are replicas, all at once; whoever is silent, up to the first who answers, is taken over. It holds copies of all of them.
"""

from __future__ import annotations

import itertools

from headrace.control.network import NodeId
from headrace.control.ring.messages import Alive, Announce, Holding, Known, Probe, Ship, Shipment, TakeOver
from headrace.control.ring.turn import Turn
from headrace.control.ring.view import Arc, Peer, RingView


def hear_checkpoints(turn: Turn) -> None:
    """Signs of life of those it watches; and whoever knows another ring is told this one."""
    node = turn.node
    came = {each.sender: each for each in node.load.checkpoints}
    never = float("-inf")
    heard_s = {
        # One whom it did not watch before is taken to have spoken just now.
        peer.node: max(node.heard_s.get(peer.node, turn.at_s), came[peer.node].at_s if peer.node in came else never)
        for peer in _watched(turn)
    }
    if heard_s != node.heard_s:
        turn.change(heard_s=heard_s)
    for each in node.load.checkpoints:
        # One that came just after this node learnt something was sent before its sender could learn it too.
        if each.digest != node.view.digest and each.at_s > node.learnt_s + turn.config.answer_s:
            send_view(turn, each.sender)


def _watched(turn: Turn) -> tuple[Peer, ...]:
    """The nodes before, as many as there are replicas: it holds copies of all of them."""
    return turn.node.view.before(turn.id, turn.config.replicas)


def send_view(turn: Turn, to: NodeId) -> None:
    """What this node knows; only that it is gone, to one who was taken for dead and does not know it."""
    view = turn.node.view
    turn.send(to, Announce(turn.node.me, (to,)) if to in view.gone else Known(view))


def on_known(turn: Turn, sender: NodeId, message: Known) -> None:
    turn.adopt(turn.node.view.merged(message.view.peers, message.view.gone))
    if turn.node.joined and turn.node.view.digest != message.view.digest:
        send_view(turn, sender)


def repair(turn: Turn) -> None:
    """Ship what a holder of copies lacks. After a move the new owner's slots have no copy at its own successors yet."""
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
        # Of slots that were given away a copy is out of date, should they ever come back.
        copies={
            holder: owned if arc.covers(owned) and holder != deal_to else arc
            for holder, arc in node.copies.items()
            if holder in holders or holder == deal_to
        },
        shipping={holder: each for holder, each in node.shipping.items() if holder in holders or holder == deal_to},
    )
    for holder in holders:
        ship(turn, holder, owned)


def ship(turn: Turn, holder: NodeId, arc: Arc) -> None:
    """Ship an arc to a holder, as far as it is neither there nor under way; again if it takes so long that it may be lost."""
    node = turn.node
    have = node.copies.get(holder, Arc(arc.lo, 0))
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


def missing(have: Arc, want: Arc) -> Arc:
    """What has to be shipped for all of ``want`` to be there.

    >>> missing(Arc(10, 10), Arc(5, 15)), missing(Arc(10, 10), Arc(10, 30)), missing(Arc(90, 1), Arc(10, 30))
    (Arc(lo=5, size=5), Arc(lo=20, size=20), Arc(lo=10, size=30))
    """
    if have.size and want.covers(have):
        if have.hi == want.hi:
            return Arc.between(want.lo, have.lo)
        if have.lo == want.lo:
            return Arc.between(have.hi, want.hi)
    return want


def on_ship(turn: Turn, sender: NodeId, message: Ship) -> None:
    held = turn.node.holds.get(sender)
    if held is None or held.number <= message.number:
        turn.change(holds={**turn.node.holds, sender: message})
        turn.send(sender, Holding(message.number))


def on_holding(turn: Turn, sender: NodeId, message: Holding) -> None:
    node = turn.node
    if sender in node.shipping and node.shipping[sender].message.number == message.number:
        rest = {holder: each for holder, each in node.shipping.items() if holder != sender}
        turn.change(copies={**node.copies, sender: node.shipping[sender].message.arc}, shipping=rest)


def hear(turn: Turn, sender: NodeId) -> None:
    if sender in turn.node.heard_s:
        turn.change(heard_s={**turn.node.heard_s, sender: turn.at_s})


def on_probe(turn: Turn, sender: NodeId, message: Probe) -> None:
    turn.send(sender, Alive())
    if message.digest != turn.node.view.digest:
        send_view(turn, sender)


def watch(turn: Turn) -> None:
    """Look after the node before; take over when it is dead."""
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
    """Move to the token of the farthest one, as if all of them had been scaled in."""
    node = turn.node
    names = tuple(peer.node for peer in dead)
    lacking = tuple(node.view.arc(name) for name in names if not _held(turn, name))
    arc = Arc.between(dead[-1].token, node.me.token)
    ask = _others_with_copies(node.view, turn.id, names, turn.config.replicas) if lacking else ()
    turn.place(dead[-1].token, gone=names)
    turn.settle()
    # Rows waited for as long as nobody knew of the failure, so that the next reports show a queue whether or not the load is bearable.
    turn.rest()
    if turn.node.promised and turn.node.promised[0] in names:
        turn.change(promised=None)
    lost = "" if not lacking or ask else "; their state is lost"
    why = f"{', '.join(names)} sent no checkpoint for {turn.config.silence_s:g} s and gave no answer{lost}"
    turn.out.append(TakeOver(arc=arc, missing=lacking, ask=ask, why=why))


def _held(turn: Turn, name: NodeId) -> bool:
    """Whether all slots of a node have a copy here. A copy counts for its owner only: what the owner gave away since is out of date."""
    return name in turn.node.holds and turn.node.holds[name].arc.covers(turn.node.view.arc(name))


def _others_with_copies(view: RingView, me: NodeId, dead: tuple[NodeId, ...], replicas: int) -> tuple[NodeId, ...]:
    """Who may hold copies of dead nodes' slots: those who should, and the next ones, who should have before the ring last changed."""
    candidates = [holder for name in dead for holder in view.holders(name, replicas)]
    candidates += [peer.node for peer in itertools.islice(view.clockwise(me), replicas)]
    return tuple(name for name in dict.fromkeys(candidates) if name != me and name not in dead)
