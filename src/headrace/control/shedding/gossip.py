"""FIT without a coordinator (Borealis 4.2): the nodes build the feasible input tables by messages, and get the same ones.

A member acts for a group (`groups.py`), knows its own operators and nodes and whom its streams come from and go to, and nothing else:

    Announce   downstream: the highest rates that can arrive. A member that has heard it of all its inputs knows the spread of its grid.
    Offer      upstream: a table. A member that has heard it of all who consume from it builds its own and offers that, to the deepest
               of those who still have to work on it.
    Settled    to all who worked on it: a table that has reached the sources, with everybody's local plans. A plan's id is its row.

Messages may arrive in any order and more than once. `receive` is a pure function of a member and a message; who carries messages is not
its business.

Only tests run it. It is for several queries of one program that share executors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from headrace.control.network import Arc, Deployment, NodeId, StreamId
from headrace.control.shedding.fit import FeasibleInputs, FitConfig, Table, Workshop
from headrace.control.shedding.groups import Group, groups_of, sources_max
from headrace.errors import require

Origin = tuple[int, NodeId]
"""Depth and name of the group that a stream comes from."""


@dataclass(frozen=True)
class RateAnnouncement:
    rates_max: Mapping[StreamId, float]
    origin: Origin


@dataclass(frozen=True, eq=False)
class Offer:
    table: Table
    origins: Mapping[StreamId, Origin]
    """Of the columns whose producers have not worked on the table yet; sources have none."""
    builders: frozenset[NodeId]
    """The groups that have."""


@dataclass(frozen=True, eq=False)
class Settled:
    table: Table


Message = RateAnnouncement | Offer | Settled
Outbox = tuple[tuple[NodeId, Message], ...]


@dataclass(frozen=True, eq=False)
class Member:
    group: Group
    workshop: Workshop
    """With its own nodes and operators only."""
    consumers: Mapping[Arc, NodeId]
    """Arcs that lead to other groups, and to which."""
    rates_max: Mapping[StreamId, float]
    """Of its inputs, as far as announced; sources from the start."""
    origins: Mapping[StreamId, Origin]
    announced: bool = False
    offers: tuple[Offer, ...] = ()
    built: bool = False
    settled: Table | None = None
    """The finished table, from which it looks up its part of a plan."""


def members_of(deployment: Deployment, top: Sequence[float], config: FitConfig | None = None) -> dict[NodeId, Member]:
    """One member for each group, before any message."""
    groups = groups_of(deployment)
    sources = sources_max(deployment, top)
    group_of = {operator.name: group for group in groups for operator in group.operators}
    found = {}
    for group in groups:
        away = [arc for stream in group.outputs for arc in deployment.query.consumers[stream] if group_of[arc.operator] != group]
        nodes = tuple(node for node in deployment.nodes if node.name in group.nodes)
        workshop = Workshop(nodes, {each.name: deployment.placement[each.name] for each in group.operators}, config or FitConfig())
        rates = {stream: sources[stream] for stream in group.inputs if stream in sources}
        found[group.name] = Member(group, workshop, {arc: group_of[arc.operator].name for arc in away}, rates, {})
    return found


def start(member: Member) -> tuple[Member, Outbox]:
    """What a member does without having heard anything: groups that consume from sources alone announce their rates."""
    return _proceed(member)


def receive(member: Member, message: Message) -> tuple[Member, Outbox]:
    """The member after a message, and what it sends."""
    if isinstance(message, Settled):
        return replace(member, settled=message.table), ()
    if isinstance(message, Offer):
        known = any(offer.table.arcs == message.table.arcs for offer in member.offers)
        return (member, ()) if known else _proceed(replace(member, offers=member.offers + (message,)))
    wanted = {stream: rate for stream, rate in message.rates_max.items() if stream in member.group.inputs}
    origins = {**member.origins, **dict.fromkeys(wanted, message.origin)}
    return _proceed(replace(member, rates_max={**member.rates_max, **wanted}, origins=origins))


def _proceed(member: Member) -> tuple[Member, Outbox]:
    """Announce once the inputs are known; build the table once all consumers have offered theirs too."""
    if not member.group.inputs <= member.rates_max.keys():
        return member, ()
    outbox: list[tuple[NodeId, Message]] = []
    rates = member.workshop.delivered_max(member.group.operators, member.rates_max)
    if not member.announced:
        member = replace(member, announced=True)
        announce = RateAnnouncement({arc.stream: rates[arc.stream] for arc in member.consumers}, (member.group.depth, member.group.name))
        outbox += [(consumer, announce) for consumer in sorted(set(member.consumers.values()))]
    offered = {arc for offer in member.offers for arc in offer.table.open_arcs}
    if not member.built and member.consumers.keys() <= offered:
        member = replace(member, built=True)
        outbox += _sent_on(member, rates)
    return member, tuple(outbox)


def _sent_on(member: Member, rates: Mapping[StreamId, float]) -> Outbox:
    """Build the table and send it on."""
    table = member.workshop.table(member.group.operators, [offer.table for offer in member.offers], rates)
    origins = {stream: origin for offer in member.offers for stream, origin in offer.origins.items()} | dict(member.origins)
    left = {arc.stream: origins[arc.stream] for arc in table.open_arcs if arc.stream in origins}
    builders = frozenset({member.group.name}).union(*(offer.builders for offer in member.offers))
    if left:
        return ((max(left.values())[1], Offer(table, left, builders)),)
    return tuple((builder, Settled(table)) for builder in sorted(builders))


def plan_by_messages(
    deployment: Deployment, top: Sequence[float], config: FitConfig | None = None, seed: int = 0
) -> tuple[FeasibleInputs, int]:
    """All tables, built by members that exchange messages in an order given by the seed; and how many messages that took."""
    rng = np.random.default_rng(seed)
    members = members_of(deployment, top, config)
    under_way: list[tuple[NodeId, Message]] = []
    for name, member in list(members.items()):
        members[name], outbox = start(member)
        under_way += outbox
    count = 0
    while under_way:
        name, message = under_way.pop(int(rng.integers(len(under_way))))
        count += 1
        members[name], outbox = receive(members[name], message)
        under_way += outbox
    require(all(member.settled for member in members.values()), "every table reaches the sources")
    tables = {member.settled.arcs: member.settled for member in members.values() if member.settled}
    return FeasibleInputs.of(deployment, tables.values()), count
