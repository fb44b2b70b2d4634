"""Floe's ring (VI, VII) as messages in, messages out: each node decides from its own load and its neighbours' answers.

- A node with a long queue and a busy CPU asks the next one, B, to move its token back to half-way between them (load balancing).
- B, if it has no room, asks the next one first, and so on around the ring; who is helped then helps (cascade).
- If nobody has room, a new node is requested and put half-way between (scale out).
- A node with little to do, beside a neighbour with little to do, leaves it all it has (scale in).
- A node that is silent is taken over by the next one, together with those before it (`headrace.control.ring_copies`).
- After each of these, copies are shipped until every slot has its replicas again.

A hand-over in messages; A gives up the slots before B takes them, and takes them back if B dies in between:

    A: Help ──> B: Accept ──> A: Ship if B has no copy ──> B: Holding ──> A: Grant ──> B: Announce to all

So in a ring without failures no slot has two owners, and one without owner has a grant under way; the tuples that arrive meanwhile are in
B's backup. When messages have settled the arcs are a partition, whatever was lost, doubled or reordered, and whoever died.

Where this departs from the paper:
- Half of the interval moves only if between a tenth and nine tenths of the load lie in it; else the interval is cut at half of the
  load. The paper suggests such a cut itself. Where one slot makes the load, nothing can be moved and no machine is asked for.
- The paper's thresholds swing, as it says. Here a taker must end up less busy than the giver was, and a node goes only if the
  two together stay well below the upper threshold. So under a steady load every move lowers the sum of squares of loads, and every
  scale in makes nobody who would have to scale out: it comes to rest.
- Of two neighbours who both want to leave the one with the smaller name goes; one who asks for help itself refuses to help.
- Silent nodes are asked all at once, so that recovery takes the same time for one failure and for r. More than r are taken over step by
  step, and the decision says which slots have no copy there and who may have one.
- Section V.A's "counter-clockwise" neighbour for a removed node has no copy: the clockwise one takes over, as in VI and VII.
- Where neighbours share a fault zone, a farther node gets one more copy (`RingView.holders`).
- A node that is slow for long may be taken for dead; it learns so from anybody it talks to, and stops. Until then both work: at least once.
- The mappers' part, routing tuples by the announcements, is the runtime's.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np

from headrace.control import ring_copies as copies
from headrace.control.decisions import Decision, Nothing
from headrace.control.observation import Floats
from headrace.control.ring_messages import (
    Accept,
    Alive,
    Announce,
    Checkpoint,
    Config,
    Deal,
    Event,
    Grant,
    Help,
    Holding,
    Leave,
    Message,
    Node,
    Probe,
    Ready,
    Refuse,
    Report,
    RequestNode,
    Return,
    Send,
    Ship,
)
from headrace.control.ring_turn import Turn
from headrace.control.ring_view import Arc, NodeId, RingView
from headrace.ids import SLOTS

USEFUL = (0.1, 0.9)
"""Half of an interval is moved if it carries such a part of the load."""


def decide(event: Event, config: Config, node: Node) -> tuple[tuple[Send | Decision, ...], Node]:
    """What a node says and does when something happens.

    >>> from headrace.control.ring_view import even_ring
    >>> view = even_ring(["x", "y"])
    >>> said, node = decide(Report(3.0, queue_rows=5000, cpu=0.95), Config(), Node(view.peers[0], view))
    >>> [(each.to, each.message) for each in said if isinstance(each, Send) and isinstance(each.message, Help)]
    [('n1', Help(path=('n0',), cpu=0.95, moved_cpu=0.475, asked_s=3.0))]
    """
    turn = Turn(node, config, event.at_s)
    if isinstance(event, Report):
        _on_report(turn, event)
    elif turn.node.joined or isinstance(event.message, Ship | Grant | Refuse):
        _on_message(turn, event.sender, event.message)
        copies.repair(turn)
    return tuple(turn.out), turn.node


def is_overloaded(load: Report, config: Config) -> bool:
    return load.queue_rows >= config.queue_high and load.cpu >= config.cpu_high


def is_light(load: Report, config: Config) -> bool:
    return load.queue_rows <= config.queue_low and load.cpu <= config.cpu_low


def cut(arc: Arc, load: Report, gain_min: float) -> tuple[int, float] | None:
    """Where to cut an arc, and the CPU that goes with its second part; None if no cut would relieve both sides.

    >>> cut(Arc(0, 100), Report(0.0, 5000, 0.9), 0.05)
    (50, 0.45)
    >>> rows = np.zeros(SLOTS)
    >>> rows[:4] = 10
    >>> cut(Arc(0, 100), Report(0.0, 5000, 0.9, rows), 0.05)
    (2, 0.45)
    >>> rows[:4] = 0, 0, 40, 0
    >>> cut(Arc(0, 100), Report(0.0, 5000, 0.9, rows), 0.05)
    """
    if arc.size < 2:
        return None
    share = _share_behind(arc, load.rows_per_slot)
    at = arc.size // 2
    if not USEFUL[0] <= share[at] <= USEFUL[1]:
        at = 1 + int(np.argmin(np.abs(share[1:] - 0.5)))
    moved = load.cpu * float(share[at])
    return ((arc.lo + at) % SLOTS, moved) if gain_min <= moved <= load.cpu - gain_min else None


def _share_behind(arc: Arc, rows_per_slot: Floats | None) -> Floats:
    """For every slot of an arc, the share of its load that lies from there on."""
    rows = np.ones(arc.size) if rows_per_slot is None else rows_per_slot[arc.slots()]
    rows = rows if rows.any() else np.ones(arc.size)
    return np.asarray(np.cumsum(rows[::-1])[::-1] / rows.sum(), dtype=np.float64)


# Time passes.


def _on_report(turn: Turn, report: Report) -> None:
    turn.change(load=report)
    if not turn.node.joined:
        return
    _expire(turn)
    copies.checkpoint(turn)
    copies.watch(turn)
    copies.repair(turn)
    _go_on(turn, again=True)
    _consider(turn)


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
            # A new node that does not speak. It must not join later, so it is gone before the slots are taken back.
            turn.learn(gone=(deal.to,))
            turn.announce(gone=(deal.to,))
    elif waited_s > (config.patience_s if deal.stage == "asking" else config.provision_s):
        turn.drop()


def _consider(turn: Turn) -> None:
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


# Messages.


def _on_message(turn: Turn, sender: NodeId, message: Message) -> None:
    match message:
        case Checkpoint():
            copies.on_checkpoint(turn, sender, message)
        case Help():
            _on_help(turn, sender, message)
        case Leave():
            _on_leave(turn, sender, message)
        case Accept():
            _on_accept(turn, sender, message)
        case Refuse():
            _on_refuse(turn, sender, message)
        case Ship():
            copies.on_ship(turn, sender, message)
        case Holding():
            copies.on_holding(turn, sender, message)
            _go_on(turn)
        case Grant():
            _on_grant(turn, sender, message)
        case Return():
            _on_return(turn, sender, message)
        case Announce():
            _on_announce(turn, sender, message)
        case Probe():
            copies.on_probe(turn, sender)
        case Alive():
            copies.hear(turn, sender)
        case Ready():
            _on_ready(turn, sender)


def _on_help(turn: Turn, sender: NodeId, message: Help) -> None:
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
        turn.send(following.node, Help(path, node.load.cpu, found[1], turn.at_s))
    else:
        turn.send(sender, Refuse(True, message.asked_s))


def _on_leave(turn: Turn, sender: NodeId, message: Leave) -> None:
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


def _on_accept(turn: Turn, sender: NodeId, message: Accept) -> None:
    deal = _answered(turn, sender, message)
    if deal:
        _hand_over(turn, deal)


def _on_ready(turn: Turn, sender: NodeId) -> None:
    deal = turn.node.deal
    if deal and deal.stage == "provisioning":
        _hand_over(turn, replace(deal, to=sender))
    elif (deal is None or deal.to != sender) and not turn.node.view.knows(sender):
        turn.send(sender, Refuse(False, turn.at_s))


def _hand_over(turn: Turn, deal: Deal) -> None:
    """Somebody takes slots: which ones follows from the load now."""
    node = turn.node
    found = (node.me.token, 0.0) if deal.leaving else cut(node.owned(), node.load, turn.config.gain_min)
    turn.change(deal=replace(deal, stage="shipping", since_s=turn.at_s, token=found[0] if found else 0))
    if found:
        _go_on(turn)
    else:
        turn.drop()


def _go_on(turn: Turn, again: bool = False) -> None:
    """Grant the slots as soon as their copy is with the taker; ``again`` repeats what may have been lost on the way."""
    node, deal = turn.node, turn.node.deal
    if deal is None or deal.to is None or deal.stage not in ("shipping", "ceded"):
        return
    if deal.stage == "shipping":
        going = node.owned() if deal.leaving else Arc.between(deal.token, node.owned().hi)
        if deal.leaving and deal.token != node.me.token:
            # Its arc grew meanwhile, by the failure of a neighbour; it is not light any more.
            turn.drop()
            return
        if not node.copies.get(deal.to, Arc(0, 0)).covers(going):
            copies.ship(turn, deal.to, going)
            return
        turn.change(deal=replace(deal, stage="ceded", since_s=turn.at_s))
    elif not again:
        return
    # Only one who is new needs to be told the ring.
    view = RingView() if node.view.knows(deal.to) else node.view
    turn.send(deal.to, Grant(deal.token, deal.leaving, view))


def _on_refuse(turn: Turn, sender: NodeId, message: Refuse) -> None:
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


def _on_grant(turn: Turn, sender: NodeId, message: Grant) -> None:
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
    elif node.view.knows(sender) and Arc.between(node.view.peer(sender).token, node.me.token).has(message.token):
        turn.change(promised=None)
        turn.place(message.token, gone=(sender,) if message.leaving else ())
        turn.settle()
        turn.rest()


def _on_return(turn: Turn, sender: NodeId, message: Return) -> None:
    deal = turn.node.deal
    if deal and deal.stage == "ceded" and (deal.to, deal.token) == (sender, message.token):
        turn.drop()


def _on_announce(turn: Turn, sender: NodeId, message: Announce) -> None:
    node = turn.node
    stray = message.by is not None and message.by in node.view.gone and not node.view.knows(sender)
    if stray and node.owned().has(message.peer.token):
        # Who let it in died, and we own what it was given, since before it came.
        turn.learn(gone=(sender,))
        turn.announce(gone=(sender,))
        return
    copies.hear(turn, sender)
    turn.learn((message.peer,), message.gone)
