"""Questions and answers of the ring: who asks its neighbour to take slots, and what the neighbour says (Floe VI).

An overloaded node asks the next one, which asks on if it has no room itself; when the end of the ring, or a limit, is reached, a new node
is requested. A node with little to do asks the next one to take all it has.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

from headrace.control.decisions import Nothing
from headrace.control.network import NodeId
from headrace.control.ring import handing
from headrace.control.ring.cuts import cut, is_light, is_overloaded
from headrace.control.ring.messages import Accept, Deal, Help, Leave, Refuse, RequestNode
from headrace.control.ring.turn import Turn


def consider(turn: Turn) -> None:
    """Ask for help, or to leave, if the load says so."""
    node, config = turn.node, turn.config
    if _occupied(turn) or turn.at_s < node.ask_after_s:
        return
    following, load = turn.next(), node.load
    if is_overloaded(load, config):
        found = cut(node.owned(), load, config.gain_min)
        if found is None:
            turn.out.append(Nothing(why=f"CPU {load.cpu:.2f} with {load.queue_rows:.0f} rows waiting, but a single slot makes the load"))
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
    """Whether the node has a hand-over under way, or its report may not show the last one yet."""
    return turn.node.deal is not None or turn.node.promised is not None or turn.at_s < turn.node.rest_until_s


def _provision(turn: Turn) -> None:
    node = turn.node
    found = cut(node.owned(), node.load, turn.config.gain_min)
    if found is None:
        turn.drop()
        return
    before = itertools.islice(node.view.counter_clockwise(turn.id), turn.config.replicas - 1)
    behind = itertools.islice(node.view.clockwise(turn.id), turn.config.replicas)
    zones = tuple(dict.fromkeys(peer.zone for peer in (node.me, *before, *behind)))
    turn.change(deal=Deal("provisioning", turn.at_s, path=(turn.id,)))
    why = f"CPU {node.load.cpu:.2f} with {node.load.queue_rows:.0f} rows waiting, and no neighbour has room"
    turn.out.append(RequestNode(token=found[0], avoid_zones=zones, why=why))


def on_help(turn: Turn, sender: NodeId, message: Help) -> None:
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
    node, config, previous = turn.node, turn.config, turn.previous()
    if sender < turn.id:
        # Both want to go, and only one can.
        _would_rather_stay(turn)
    fits = is_light(node.load, config) and node.load.cpu + message.cpu <= config.cpu_merged
    if fits and previous and previous.node == sender and not _occupied(turn) and _enough_without(turn):
        _promise(turn, sender, message.asked_s)
    else:
        turn.send(sender, Refuse(False, message.asked_s))


def _would_rather_stay(turn: Turn) -> None:
    """Forget a question whether it may leave; the answer finds nobody waiting."""
    deal = turn.node.deal
    if deal and deal.leaving and deal.stage == "asking":
        turn.change(deal=None)


def _promise(turn: Turn, to: NodeId, asked_s: float) -> None:
    turn.change(promised=(to, turn.at_s + turn.config.patience_s))
    turn.send(to, Accept(asked_s))


def _answered(turn: Turn, sender: NodeId, answer: Accept | Refuse) -> Deal | None:
    """The question that this is the answer to, if it still waits for one."""
    deal = turn.node.deal
    waits = deal is not None and (deal.stage, deal.to, deal.since_s) == ("asking", sender, answer.asked_s)
    return deal if waits else None


def on_accept(turn: Turn, sender: NodeId, message: Accept) -> None:
    deal = _answered(turn, sender, message)
    if deal:
        handing.hand_over(turn, deal)


def on_ready(turn: Turn, sender: NodeId) -> None:
    deal = turn.node.deal
    if deal and deal.stage == "provisioning":
        handing.hand_over(turn, replace(deal, to=sender))
    elif (deal is None or deal.to != sender) and not turn.node.view.knows(sender):
        turn.send(sender, Refuse(False, turn.at_s))


def on_refuse(turn: Turn, sender: NodeId, message: Refuse) -> None:
    if not turn.node.joined:
        turn.go("it is not needed any more")
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
