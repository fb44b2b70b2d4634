"""Requests to take slots, and the answers (Floe VI).

An overloaded node asks the next one, which asks its own next node if it has no room itself. At the end of the ring, or after a limit, a new
node is requested. A light node asks the next one to take all its slots.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

from headrace.control.decisions import Nothing
from headrace.control.network import NodeId
from headrace.control.ring import handing
from headrace.control.ring.cuts import cut, is_light, is_overloaded
from headrace.control.ring.messages import Accept, Deal, Help, Leave, Refuse, Report, RequestNode
from headrace.control.ring.turn import Turn
from headrace.control.wording import counted, percent


def consider(turn: Turn) -> None:
    """Ask for help if overloaded, or to leave if light."""
    node, config = turn.node, turn.config
    if _occupied(turn) or turn.at_s < node.ask_after_s:
        return
    following, load = turn.next(), node.load
    if is_overloaded(load, config):
        found = cut(node.owned(), load, config.gain_min)
        if found is None:
            turn.out.append(Nothing(why=f"{_load_text(load)}, but a single slot has all the load"))
        elif following is None:
            _provision(turn)
        else:
            turn.change(deal=Deal("asking", turn.at_s, following.node, path=(turn.id,)))
            turn.send(following.node, Help((turn.id,), load.cpu, found[1], turn.at_s))
    elif is_light(load, config) and following and _enough_without(turn):
        turn.change(deal=Deal("asking", turn.at_s, following.node, leaving=True))
        turn.send(following.node, Leave(load.cpu, turn.at_s))


def _enough_without(turn: Turn) -> bool:
    return len(turn.node.view.peers) > max(turn.config.nodes_min, turn.config.replicas + 1)


def _occupied(turn: Turn) -> bool:
    """True if the node has a hand-over in progress, or its report may not show the last one yet."""
    return turn.node.deal is not None or turn.node.promised is not None or turn.at_s < turn.node.rest_until_s


def _load_text(load: Report) -> str:
    return f"Utilisation {percent(load.cpu)} with {counted(round(load.queue_rows), 'row')} waiting"


def _provision(turn: Turn) -> None:
    """Request a new node between this one and the next."""
    node = turn.node
    found = cut(node.owned(), node.load, turn.config.gain_min)
    if found is None:
        turn.drop()
        return
    before = itertools.islice(node.view.counter_clockwise(turn.id), turn.config.replicas - 1)
    behind = itertools.islice(node.view.clockwise(turn.id), turn.config.replicas)
    zones = tuple(dict.fromkeys(peer.zone for peer in (node.me, *before, *behind)))
    turn.change(deal=Deal("provisioning", turn.at_s, path=(turn.id,)))
    why = f"{_load_text(node.load)}, and no neighbour has room: request a node"
    turn.out.append(RequestNode(token=found[0], avoid_zones=zones, why=why))


def on_help(turn: Turn, sender: NodeId, message: Help) -> None:
    """Accept if there is room, ask the next node if slots can be passed on, and refuse otherwise."""
    _would_rather_stay(turn)
    node, config = turn.node, turn.config
    previous, following = turn.previous(), turn.next()
    asks_itself = node.deal is not None and not node.deal.leaving and is_overloaded(node.load, config)
    if asks_itself or previous is None or previous.node != sender or _occupied(turn):
        turn.send(sender, Refuse(asks_itself, message.asked_s))
        return
    bearable = message.cpu - config.gain_min - message.moved_cpu
    if is_light(node.load, config) and node.load.cpu <= bearable:
        _promise(turn, sender, message.asked_s)
        return
    found = cut(node.owned(), node.load, config.gain_min)
    goes_on = following and following.node not in message.path and len(message.path) < config.hops_max
    if found and following and goes_on and node.load.cpu - found[1] <= bearable:
        path = (*message.path, turn.id)
        turn.change(deal=Deal("asking", turn.at_s, following.node, path=path, for_s=message.asked_s))
        turn.send(following.node, Help(path, message.cpu, found[1], turn.at_s))
    else:
        turn.send(sender, Refuse(True, message.asked_s))


def on_leave(turn: Turn, sender: NodeId, message: Leave) -> None:
    """Accept to take all slots of the sender if both loads fit here, and refuse otherwise."""
    node, config, previous = turn.node, turn.config, turn.previous()
    if sender < turn.id:
        # Both want to leave, but only one can.
        _would_rather_stay(turn)
    fits = is_light(node.load, config) and node.load.cpu + message.cpu <= config.cpu_merged
    if fits and previous and previous.node == sender and not _occupied(turn) and _enough_without(turn):
        _promise(turn, sender, message.asked_s)
    else:
        turn.send(sender, Refuse(False, message.asked_s))


def _would_rather_stay(turn: Turn) -> None:
    """Withdraw an own request to leave. Its answer will be ignored."""
    deal = turn.node.deal
    if deal and deal.leaving and deal.stage == "asking":
        turn.change(deal=None)


def _promise(turn: Turn, to: NodeId, asked_s: float) -> None:
    turn.change(promised=(to, turn.at_s + turn.config.patience_s))
    turn.send(to, Accept(asked_s))


def _answered(turn: Turn, sender: NodeId, answer: Accept | Refuse) -> Deal | None:
    """The hand-over whose request this answers, if it still waits for an answer."""
    deal = turn.node.deal
    waits = deal is not None and (deal.stage, deal.to, deal.since_s) == ("asking", sender, answer.asked_s)
    return deal if waits else None


def on_accept(turn: Turn, sender: NodeId, message: Accept) -> None:
    """Start the hand-over."""
    deal = _answered(turn, sender, message)
    if deal:
        handing.hand_over(turn, deal)


def on_ready(turn: Turn, sender: NodeId) -> None:
    """Give slots to a new node, or send it away if it is not needed any more."""
    deal = turn.node.deal
    if deal and deal.stage == "provisioning":
        handing.hand_over(turn, replace(deal, to=sender))
    elif (deal is None or deal.to != sender) and not turn.node.view.knows(sender):
        turn.send(sender, Refuse(False, turn.at_s))


def on_refuse(turn: Turn, sender: NodeId, message: Refuse) -> None:
    """Pass the refusal back, request a new node, or give up."""
    if not turn.node.joined:
        turn.go("It is not needed any more")
        return
    deal = _answered(turn, sender, message)
    if deal is None:
        return
    if len(deal.path) > 1:
        turn.change(deal=None, ask_after_s=turn.at_s + turn.config.rest_s)
        turn.send(deal.path[-2], Refuse(message.full, deal.for_s))
    elif message.full and not deal.leaving:
        _provision(turn)
    else:
        turn.drop()
