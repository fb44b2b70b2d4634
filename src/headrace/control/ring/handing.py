"""The hand-over of slots, from the neighbour's answer to its announcement: ship missing copies, grant, move the token.

The owner gives up the slots with the grant, before another node takes them, so that no slot ever has two owners.
"""

from __future__ import annotations

from dataclasses import replace

from headrace.control.network import NodeId
from headrace.control.ring import copies
from headrace.control.ring.cuts import cut
from headrace.control.ring.messages import Announce, Deal, Grant, Return
from headrace.control.ring.turn import Turn
from headrace.control.ring.view import RingArc, RingView


def hand_over(turn: Turn, deal: Deal) -> None:
    """Start the hand-over. The current load decides which slots go."""
    node = turn.node
    found = (node.me.token, 0.0) if deal.leaving else cut(node.owned(), node.load, turn.config.gain_min)
    turn.change(deal=replace(deal, stage="shipping", since_s=turn.at_s, token=found[0] if found else 0))
    if found:
        go_on(turn)
    else:
        turn.drop()


def go_on(turn: Turn, again: bool = False) -> None:
    """Continue the hand-over: grant the slots as soon as the taker has their copy. ``again`` repeats a grant that may have been lost."""
    node, deal = turn.node, turn.node.deal
    if deal is None or deal.to is None or deal.stage not in ("shipping", "ceded"):
        return
    if deal.stage == "shipping":
        going = node.owned() if deal.leaving else RingArc.between(deal.token, node.owned().hi)
        if deal.leaving and deal.token != node.me.token:
            # Its arc has grown, because a neighbour failed. It is not light any more.
            turn.drop()
            return
        if not node.copies.get(deal.to, RingArc(0, 0)).covers(going):
            copies.ship(turn, deal.to, going)
            return
        turn.change(deal=replace(deal, stage="ceded", since_s=turn.at_s))
    elif not again:
        return
    # Only a new node needs the view of the ring.
    view = RingView() if node.view.knows(deal.to) else node.view
    turn.send(deal.to, Grant(deal.token, deal.leaving, view))


def on_grant(turn: Turn, sender: NodeId, message: Grant) -> None:
    """Take the slots that the sender has given up: join the ring, or move the token."""
    node = turn.node
    if not node.joined:
        me = replace(node.me, token=message.token, version=node.me.version + 1)
        turn.change(me=me, view=message.view.merged([me]))
        turn.announce(by=sender)
        turn.rest()
        return
    if turn.is_leaving():
        turn.send(sender, Return(message.token))
    elif sender in node.view.gone or message.token == node.me.token:
        turn.send(sender, Announce(node.me, (sender,) if sender in node.view.gone else ()))
    elif node.view.knows(sender) and RingArc.between(node.view.peer(sender).token, node.me.token).has(message.token):
        turn.change(promised=None)
        turn.place(message.token, gone=(sender,) if message.leaving else ())
        turn.settle()
        turn.rest()


def on_return(turn: Turn, sender: NodeId, message: Return) -> None:
    """Take granted slots back, because the taker is leaving."""
    deal = turn.node.deal
    if deal and deal.stage == "ceded" and (deal.to, deal.token) == (sender, message.token):
        turn.drop()
