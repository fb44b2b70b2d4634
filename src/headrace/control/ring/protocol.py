"""Floe's ring (VI, VII) as messages in, messages out: each node decides from its own load and its neighbours' answers.

- A node with a long queue and a busy CPU asks the next one, B, to move its token back to half-way between them (load balancing).
- B, if it has no room, asks the next one first, and so on around the ring; who is helped then helps (cascade).
- If nobody has room, a new node is requested and put half-way between (scale out).
- A node with little to do, beside a neighbour with little to do, leaves it all it has (scale in).
- A node that is silent is taken over by the next one, together with those before it (`headrace.control.ring.copies`).
- After each of these, copies are shipped until every slot has its replicas again.

A hand-over in messages; A gives up the slots before B takes them, and takes them back if B dies in between:

    A: Help ──> B: Accept ──> A: Ship if B has no copy ──> B: Holding ──> A: Grant ──> B: Announce to all

So in a ring without failures no slot has two owners, and one without owner has a grant under way; the tuples that arrive meanwhile are in
B's backup. When messages have settled the arcs are a partition, whatever was lost, doubled or reordered, and whoever died.

Where this departs from the paper:
- Half of the interval moves only if between a tenth and nine tenths of the load lie in it; else the interval is cut at half of the
  load. The paper suggests such a cut itself. Where one slot makes the load, nothing can be moved and no machine is asked for.
- The paper's thresholds swing, as it says. Here whoever takes must end up less busy than the overloaded node was, and a node goes
  only if the two together stay well below the upper threshold. So under a steady load the loads, sorted from the busiest on, fall with
  every chain of moves, and every scale in makes nobody who would have to scale out: it comes to rest.
- Of two neighbours who both want to leave the one with the smaller name goes; one who asks for help itself refuses to help.
- Silent nodes are asked all at once, so that recovery takes the same time for one failure and for r. More than r are taken over step by
  step, and the decision says which slots have no copy there and who may have one.
- Section V.A's "counter-clockwise" neighbour for a removed node has no copy: the clockwise one takes over, as in VI and VII.
- Where neighbours share a fault zone, a farther node gets one more copy (`RingView.holders`).
- A node that is slow for long may be taken for dead; it learns so from anybody it talks to, and stops. Until then both work: at least once.
- Checkpoints are shipped by whoever has the state and are no messages here: reports say which ones came. With each goes a digest of the
  ring as its sender knows it, so that who missed an announcement is told. A node rests after a take-over, as it does after any move.
- The mappers' part, routing tuples by the announcements, is the runtime's.
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
    Node,
    Probe,
    Ready,
    Refuse,
    Report,
    Return,
    RingConfig,
    Send,
    Ship,
)
from headrace.control.ring.turn import Turn, changed


def decide(event: Event, config: RingConfig, node: Node) -> tuple[tuple[Send | Decision, ...], Node]:
    """What a node says and does when something happens.

    >>> from headrace.control.ring.view import even_ring
    >>> view = even_ring(["x", "y"])
    >>> said, node = decide(Report(3.0, queue_rows=5000, cpu=0.95), RingConfig(), Node(view.peers[0], view))
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


def _is_calm(node: Node, load: Report, config: RingConfig) -> bool:
    """Whether nothing is under way, everybody it watches speaks and knows the same ring, and the load asks for nothing.

    Most reports are such, and all that follows would find nothing to do; an hour of a thousand nodes has nearly two million of them.
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
            # A new node that does not speak. It must not join later, so it is gone before the slots are taken back.
            turn.learn(gone=(deal.to,))
            turn.announce(gone=(deal.to,))
        elif waited_s > config.patience_s:
            # Its taker may be dead and the announcement of that lost; somebody else will know. One after the other is asked.
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
        # Who let it in died, and we own what it was given, since before it came.
        turn.learn(gone=(sender,))
        turn.announce(gone=(sender,))
        return
    copies.hear(turn, sender)
    turn.learn((message.peer,), message.gone)
