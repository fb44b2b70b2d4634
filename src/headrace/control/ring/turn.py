"""The handling of one event by one node: it collects messages and decisions, and the changed state of the node.

The turn is the only mutable object while an event is handled. The states before and after are frozen.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from headrace.control.decisions import Decision
from headrace.control.network import NodeId
from headrace.control.ring.messages import Accept, Announce, Deal, Left, Message, Refuse, RingConfig, RingNode, Send
from headrace.control.ring.view import Peer, RingView


def changed(node: RingNode, fields: Mapping[str, Any]) -> RingNode:
    """Like dataclasses.replace, but ten times as fast. A report without news spends most of its time here."""
    after = object.__new__(RingNode)
    after.__dict__.update(node.__dict__, **fields)
    return after


class Turn:
    """The state of a node while it handles an event, and its output."""

    def __init__(self, node: RingNode, config: RingConfig, at_s: float) -> None:
        self.node, self.config, self.at_s = node, config, at_s
        self.out: list[Send | Decision] = []

    # Changes of the node, and messages.

    def change(self, **fields: Any) -> None:
        if "view" in fields:
            fields["learnt_s"] = self.at_s
        self.node = changed(self.node, fields)

    def send(self, to: NodeId, message: Message) -> None:
        self.out.append(Send(to, message))

    def announce(self, gone: Iterable[NodeId] = (), by: NodeId | None = None) -> None:
        """Send the node's place to all nodes, also to those that are gone, because they may not know it."""
        message = Announce(self.node.me, tuple(gone), by)
        for node in (*(peer.node for peer in self.node.view.clockwise(self.id)), *message.gone):
            self.send(node, message)

    def place(self, token: int, gone: tuple[NodeId, ...] = ()) -> None:
        """Move to another token and announce it."""
        me = replace(self.node.me, token=token, version=self.node.me.version + 1)
        self.change(me=me, view=self.node.view.merged([me], gone))
        self.announce(gone)

    def rest(self) -> None:
        """Do not ask or help until reports show the new load."""
        self.change(rest_until_s=self.at_s + self.config.rest_s)

    # The node's neighbourhood.

    @property
    def id(self) -> NodeId:
        return self.node.me.node

    def next(self) -> Peer | None:
        return next(self.node.view.clockwise(self.id), None)

    def previous(self) -> Peer | None:
        return next(self.node.view.counter_clockwise(self.id), None)

    def is_leaving(self) -> bool:
        """True if the node has given up all its slots and waits for the taker's announcement."""
        deal = self.node.deal
        return deal is not None and deal.leaving and deal.stage == "ceded"

    # Changes of the ring.

    def learn(self, peers: Iterable[Peer] = (), gone: Iterable[NodeId] = ()) -> None:
        """Merge what other nodes know into the view, and update a hand-over in progress."""
        self.adopt(self.node.view.merged(peers, gone))

    def adopt(self, view: RingView) -> None:
        """Replace the view, and update a hand-over in progress."""
        if view is self.node.view:
            return
        if self.id in view.gone:
            self.go("Its slots were taken over" if self.is_leaving() else "It was declared dead, and its slots were taken over")
            return
        self.change(view=view)
        self.settle()

    def go(self, why: str) -> None:
        """Leave the ring."""
        self.change(view=RingView(), deal=None, promised=None, copies={}, shipping={}, holds={})
        self.out.append(Left(why=why))

    def drop(self) -> None:
        """Give up a hand-over. A node that waits for it may try again."""
        deal = self.node.deal
        self.change(deal=None, ask_after_s=self.at_s + self.config.rest_s)
        if deal and len(deal.path) > 1:
            self.send(deal.path[-2], Refuse(False, deal.for_s))
        if deal and deal.stage == "shipping" and deal.to and not self.node.view.knows(deal.to):
            self.send(deal.to, Refuse(False, self.at_s))

    def settle(self) -> None:
        """Complete or give up a hand-over, if the view says so."""
        deal = self.node.deal
        if deal is None or deal.to is None:
            return
        if deal.to in self.node.view.gone:
            self.drop()
        elif deal.stage == "ceded":
            if self.node.view.knows(deal.to) and self.node.view.peer(deal.to).token == deal.token:
                self._complete(deal)
        elif self.node.view.knows(deal.to) and self.next() != self.node.view.peer(deal.to):
            self.drop()

    def _complete(self, deal: Deal) -> None:
        """The slots have their new owner. Now the node that asked for help can be helped."""
        self.change(deal=None)
        self.rest()
        asker = deal.path[-2] if len(deal.path) > 1 else None
        previous = self.previous()
        if asker and previous and previous.node == asker:
            self.change(promised=(asker, self.at_s + self.config.patience_s))
            self.send(asker, Accept(deal.for_s))
