"""Which stored state belongs to which operator of a query, and which offsets to which source.

For each operator, a checkpoint keeps its id, the name that the user gave it, and a fingerprint of its inputs and of what it computes
(``compile/lineage.py``). After a restart, each operator finds its state by its name, or else by its fingerprint. Its place in the program
does not matter. Nothing is guessed:

- It is an error if the checkpoint does not know an operator, or has state of one that the query no longer has. With the option
  ``headrace.operatorChanges=accept``, the former starts with empty state, and the latter's state is dropped for good. With ``backfill``,
  the former's state is computed from the sources' history (``runtime/backfill.py``).
- If the columns of an operator's state have changed, ``runtime/taking_over.py`` decides what becomes of it.
- Operators with equal fingerprints must be named. If the fingerprint covers everything that their state depends on, they need not be: then
  their states are equal, and either may have either.
- Spark keeps offsets by the order of sources. So sources are read in the order of the checkpoint, and none can be added or removed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.compile.dataflow import Dataflow, Op, free_id
from headrace.compile.lineage import Lineage, digest, lineages, says_all
from headrace.compile.sharing import streaming_part
from headrace.errors import CheckpointMismatchError, QueryError
from headrace.ids import OperatorId, SourceId
from headrace.runtime.changes import UNCHANGED, Changes, Policy
from headrace.runtime.checkpoint import Checkpoint
from headrace.runtime.matching import NEW_LOCATION, Matching
from headrace.runtime.taking_over import accept_or_refuse, take_over
from headrace.spark.plan_text import lines, sources_in, without_columns


@dataclass(frozen=True)
class Recognised:
    """A query whose operators have the ids that the checkpoint knows."""

    flow: Dataflow
    about: dict[str, Any]
    """What query.json shall say about the query."""
    changes: Changes
    """What becomes of the state."""


def recognise(flow: Dataflow, checkpoint: Checkpoint, policy: Policy) -> Recognised:
    """Match operators with stored state, and sources with stored offsets. Raises an error if anything does not fit."""
    known = lineages(flow)
    by_name = lineages(flow, by_name=True) if any(op.name for op in flow.ops) else known
    _refuse_doubtful_twins(flow, known)
    stored = checkpoint.identity() if checkpoint.is_there else None
    newest = checkpoint.newest_facts() if stored is not None else None
    versions = newest is not None
    since = newest.version + 1 if newest is not None else 0
    if stored is None or (not versions and checkpoint.spark_log.has_nothing()):
        return Recognised(flow, _about(flow, known, by_name, {}, since, []), UNCHANGED)
    before: dict[OperatorId, dict[str, Any]] = stored["identities"] if versions else {}
    location = checkpoint.location
    matching = Matching(location, flow, (known, by_name), before, (stored["sources"], sources_of(flow)), policy.renamed)
    ids = matching.ids()
    taken_over = take_over(location, flow, stored, ids, matching.same_input, policy)
    ids = {op: mine for op, mine in ids.items() if op not in taken_over.not_kept}
    new, gone = [op for op in flow.ops if op.id not in ids], [name for name in before if name not in ids.values()]
    if before and (new or gone):
        accept_or_refuse(location, known, stored, sources_of(flow), new, gone, policy)
    retired = [*stored["retired"], *gone]
    for op in new:
        wanted = op.id if op.name is not None and op.id not in before else op.plan.kind
        ids[op.id] = free_id(wanted, {*ids.values(), *before, *retired})
    added = {op.id for op in new if before}
    backfilled = [*taken_over.rebuilt, *(added if policy.backfills else ())]
    changed = {*added, *taken_over.rebuilt, *taken_over.evolved}
    changes = Changes(
        kept=tuple(ids[op.id] for op in flow.ops if op.id not in changed),
        evolved={ids[name]: texts for name, texts in taken_over.evolved.items()},
        backfilled=tuple(ids[op.id] for op in flow.ops if op.id in backfilled),
        empty=tuple(ids[op.id] for op in flow.ops if op.id in added and op.id not in backfilled),
        dropped=tuple(gone),
    )
    rebuilt = [ids[name] for name in taken_over.rebuilt]
    flow = _in_order(taken_over.applied(flow).renamed(ids), stored["sources"], checkpoint)
    known, by_name = ({ids[name]: each for name, each in lineage.items()} for lineage in (known, by_name))
    return Recognised(flow, _about(flow, known, by_name, before, since, retired, rebuilt), changes)


def _about(
    flow: Dataflow,
    known: dict[OperatorId, Lineage],
    by_name: dict[OperatorId, Lineage],
    before: dict[OperatorId, dict[str, Any]],
    since: int,
    retired: list[OperatorId],
    rebuilt: Sequence[OperatorId] = (),
) -> dict[str, Any]:
    identities = {}
    for op in flow.ops:
        lineage, old = known[op.id], before.get(op.id, {})
        identities[op.id] = {
            "name": op.name or old.get("name"),
            "kind": op.plan.kind,
            "fingerprint": lineage.fingerprint,
            "fingerprint_by_name": by_name[op.id].fingerprint,
            "reads": [list(each) for each in lineage.reads],
            "computes": lineage.computes,
            "since": since if op.id in rebuilt else old.get("since", since),
        }
    return {"identities": identities, "sources": sources_of(flow), "retired": retired}


def _refuse_doubtful_twins(flow: Dataflow, known: dict[OperatorId, Lineage]) -> None:
    """Raise an error if operators without names have equal fingerprints, but may have different states."""
    first: dict[str, Op] = {}
    for op in flow.ops:
        other = first.setdefault(known[op.id].fingerprint, op) if op.name is None else op
        if other is not op and not says_all(flow, op):
            raise QueryError(
                "a restart could not tell which stored state belongs to which operator",
                where=op.where,
                wanted="operators that can be told apart",
                found=f"two of kind {op.plan.kind} with one input, whose functions or static rows may differ: {other.where}",
                hint="give them names: .named('...') behind each",
            )


def sources_of(flow: Dataflow) -> list[dict[str, Any]]:
    """What query.json says about the sources: what they read, and which operators read them."""
    found = []
    for name, frame in flow.sources.items():
        readers = sorted(op.id for op in flow.ops if any(branch.source == name for branch in op.branches))
        found.append({"reads": sources_in(frame), "anchor": digest(lines(streaming_part(frame))), "readers": readers})
    return found


def _in_order(flow: Dataflow, stored: list[dict[str, Any]], checkpoint: Checkpoint) -> Dataflow:
    """The query with its sources in the order of the checkpoint. Spark keeps offsets by that order."""
    now = dict(zip(flow.sources, sources_of(flow), strict=True))
    place: dict[SourceId, int] = {}
    ways: list[Callable[[dict[str, Any]], Any]] = [
        lambda each: (each["anchor"], each["readers"]),
        lambda each: (each["reads"], each["readers"]),
        lambda each: each["anchor"],
        lambda each: each["reads"],
        # The offsets of a source do not depend on the columns that are read.
        lambda each: [without_columns(text) for text in each["reads"]],
    ]
    for way in ways:
        for name, mine in now.items():
            free = [at for at, each in enumerate(stored) if at not in place.values() and way(each) == way(mine)]
            if name not in place and free:
                place[name] = free[0]
    if len(place) != len(now) or len(place) != len(stored):
        raise CheckpointMismatchError(
            where=checkpoint.location,
            wanted="the sources whose offsets are in this checkpoint: " + "; ".join(text for each in stored for text in each["reads"]),
            found="; ".join(text for each in now.values() for text in each["reads"]),
            hint=f"undo the change, or {NEW_LOCATION}; a query cannot gain or lose a source when it restarts",
        )
    return flow.reading(sorted(place, key=lambda name: place[name]))
