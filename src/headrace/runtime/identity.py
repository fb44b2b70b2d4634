"""Which stored state belongs to which operator of a query, and which offsets to which source.

For each operator, a checkpoint keeps its id, the name that the user gave it, and a fingerprint of its inputs and of what it computes
(``compile/lineage.py``). After a restart, each operator finds its state by its name, or else by its fingerprint. Its place in the program
does not matter. Nothing is guessed:

- It is an error if the checkpoint does not know an operator, or has state of one that the query no longer has. With the option
  ``headrace.operatorChanges=accept``, the former starts with empty state at the next batch, and the latter's state is dropped for good.
- Operators with equal fingerprints must be named. If the fingerprint covers everything that their state depends on, they need not be: then
  their states are equal, and either may have either.
- Spark keeps offsets by the order of sources. So sources are read in the order of the checkpoint, and none can be added or removed.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headrace.compile.dataflow import Dataflow, Op, free_id
from headrace.compile.lineage import Lineage, digest, lineages, says_all
from headrace.compile.sharing import streaming_part
from headrace.errors import CheckpointMismatchError, QueryError, StateSchemaError
from headrace.ids import OperatorId, SourceId, StoreId
from headrace.runtime.checkpoint import Checkpoint, describe_layout
from headrace.spark.plan_text import lines, sources_in

ACCEPT = "accept"
_NEW_LOCATION = "start with a new checkpointLocation and read the stream from its beginning"


@dataclass(frozen=True)
class Recognised:
    """A query whose operators have the ids that the checkpoint knows."""

    flow: Dataflow
    about: dict[str, Any]
    """What query.json shall say about the query."""


def recognise(flow: Dataflow, checkpoint: Checkpoint, changes: str) -> Recognised:
    """Match operators with stored state, and sources with stored offsets. Raises an error if anything does not fit."""
    known = lineages(flow)
    by_name = lineages(flow, by_name=True) if any(op.name for op in flow.ops) else known
    _refuse_doubtful_twins(flow, known)
    stored = checkpoint.identity() if checkpoint.is_there else None
    newest = checkpoint.newest_facts() if stored is not None else None
    versions = newest is not None
    since = newest.version + 1 if newest is not None else 0
    if stored is None or (not versions and checkpoint.spark_log.has_nothing()):
        return Recognised(flow, _about(flow, known, by_name, {}, since, []))
    before: dict[OperatorId, dict[str, Any]] = stored["identities"] if versions else {}
    ids = _Matching(checkpoint.location, flow, (known, by_name), before).ids()
    new, gone = [op for op in flow.ops if op.id not in ids], [name for name in before if name not in ids.values()]
    if before and (new or gone):
        _accept_or_refuse(checkpoint, flow, known, stored, new, gone, changes)
    retired = [*stored["retired"], *gone]
    for op in new:
        wanted = op.id if op.name is not None and op.id not in before else op.plan.kind
        ids[op.id] = free_id(wanted, {*ids.values(), *before, *retired})
    flow = _in_order(flow.renamed(ids), stored["sources"], checkpoint)
    known, by_name = ({ids[name]: each for name, each in lineage.items()} for lineage in (known, by_name))
    return Recognised(flow, _about(flow, known, by_name, before, since, retired))


def _about(
    flow: Dataflow,
    known: dict[OperatorId, Lineage],
    by_name: dict[OperatorId, Lineage],
    before: dict[OperatorId, dict[str, Any]],
    since: int,
    retired: list[OperatorId],
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
            "since": old.get("since", since),
        }
    return {"identities": identities, "sources": _sources(flow), "retired": retired}


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


@dataclass
class _Matching:
    """Matches the operators of the query with those of the checkpoint."""

    where: str
    flow: Dataflow
    known: tuple[dict[OperatorId, Lineage], dict[OperatorId, Lineage]]
    """Two fingerprints per operator: one of all its inputs, and one in which the names of operators stand for their inputs."""
    before: dict[OperatorId, dict[str, Any]]

    def ids(self) -> dict[OperatorId, OperatorId]:
        """By operator of the query: its id in the checkpoint, if it was found."""
        found: dict[OperatorId, OperatorId] = {}
        # A name that the user gave comes before an equal id, because ids are for operators without a name.
        by_name = {each["name"]: name for name, each in self.before.items() if each["name"] is not None}
        by_id = {str(name): name for name in self.before}
        for named in (by_name, by_id):
            for op in (op for op in self.flow.ops if op.id not in found and op.name in named):
                mine = named[str(op.name)]
                if mine not in found.values():
                    self._check_kind(op, mine)
                    found[op.id] = mine
        for which, known in zip(("fingerprint", "fingerprint_by_name"), self.known, strict=True):
            for op in (op for op in self.flow.ops if op.id not in found):
                own = known[op.id].fingerprint
                equal = [name for name, each in self.before.items() if each[which] == own and name not in found.values()]
                if len({self.before[name]["since"] for name in equal}) > 1:
                    raise self._twins_of_different_age(op, equal)
                if equal:
                    found[op.id] = equal[0]
        return found

    def _check_kind(self, op: Op, stored: OperatorId) -> None:
        kind = self.before[stored]["kind"]
        if kind != op.plan.kind:
            raise CheckpointMismatchError(
                where=f"{self.where}, operator {stored!r}",
                wanted=f"state of {kind}, which the checkpoint has under this name",
                found=f"{op.plan.kind} ({op.where})",
                hint="give the operator another name, or " + _NEW_LOCATION,
            )

    def _twins_of_different_age(self, op: Op, equal: list[OperatorId]) -> CheckpointMismatchError:
        ages = ", ".join(f"{name} since version {self.before[name]['since']}" for name in equal)
        return CheckpointMismatchError(
            where=f"{self.where}, {op.where}",
            wanted="one stored state that is this operator's",
            found=f"several with the same input and the same computation: {ages}",
            hint=f"say which is which: .named({equal[0]!r}) behind one, .named({equal[1]!r}) behind the other",
        )


def _accept_or_refuse(
    checkpoint: Checkpoint,
    flow: Dataflow,
    known: dict[OperatorId, Lineage],
    stored: dict[str, Any],
    new: list[Op],
    gone: list[OperatorId],
    changes: str,
) -> None:
    location = checkpoint.location
    if changes != ACCEPT:
        alike = [name for op in new[:1] for name in gone if stored["identities"][name]["kind"] == op.plan.kind]
        raise _changed(location, flow, new[0], known[new[0].id], alike[0], stored) if alike else _more_or_less(location, new, gone)
    for op in new:
        if op.plan.initial is not None:
            wanted = "a new checkpoint for an operator with initial state"
            raise CheckpointMismatchError(where=f"{location}, {op.where}", wanted=wanted, found="one that has versions", hint=_NEW_LOCATION)
        twins = [n for n, each in stored["identities"].items() if each["fingerprint"] == known[op.id].fingerprint and n not in gone]
        if twins and op.name is None:
            wanted = f"a name for a new operator that computes what {twins[0]!r} does"
            raise CheckpointMismatchError(where=f"{location}, {op.where}", wanted=wanted, found="none", hint="call .named('...') on it")
    if new:
        names = ", ".join(f"{op.id} ({op.where})" for op in new)
        warnings.warn(f"{location}: new operators start with empty state, without the rows before now: {names}", stacklevel=2)
    if gone:
        warnings.warn(f"{location}: the query no longer has these operators, and their state is dropped: {', '.join(gone)}", stacklevel=2)


def _changed(
    location: str, flow: Dataflow, op: Op, now: Lineage, name: OperatorId, stored: dict[str, Any]
) -> CheckpointMismatchError | StateSchemaError:
    """The error for an operator that differs from the stored one in its place."""
    then = stored["identities"][name]
    parts = {part: (then["computes"].get(part), now.computes.get(part)) for part in {**then["computes"], **now.computes}}
    layouts = {
        f"layout of {store}": (stored["operators"].get(store, {}).get("layout"), describe_layout(each.layout))
        for store, each in ((str(StoreId(name, key)), each) for key, each in op.plan.operator.stores.items())
    }
    differing = {part: pair for part, pair in {**parts, **layouts}.items() if pair[0] != pair[1]}
    if not differing or then["reads"] != [list(each) for each in now.reads]:
        old, new = (_only(a, b) for a, b in ((then["reads"], now.reads), (now.reads, then["reads"])))
        differing = {"input": (old, new), **differing}
    about: dict[str, Any] = next(iter(each for store, each in stored["operators"].items() if StoreId.parse(store).operator == name), {})
    same_state = all(about.get(part) == op.plan.description.shown.get(part) for part in ("keys", "window", "calls"))
    same_state = same_state and not any(part.startswith("layout") for part in differing)
    same_sources = sorted(each["reads"] for each in stored["sources"]) == sorted(each["reads"] for each in _sources(flow))
    keep = f"; or, if it is to go on with that state, call .named({name!r}) on it" if same_state and same_sources else ""
    of_state = "keys" not in differing and set(differing) - {"input", "window", "operator"}
    kind = StateSchemaError if of_state else CheckpointMismatchError
    return kind(
        where=f"{location}, operator {name!r} ({op.where})",
        wanted="the operator whose state is stored: " + "; ".join(f"{part} {old}" for part, (old, _) in differing.items()),
        found="; ".join(f"{part} {new}" for part, (_, new) in differing.items()),
        hint=f"undo the change, or {_NEW_LOCATION}{keep}; option('headrace.operatorChanges', 'accept') drops the state and starts empty",
    )


def _only(one: Any, other: Any) -> str:
    """The lines of the first description that the second does not have."""
    theirs = {line.strip() for each in other for line in each}
    own = [line.strip() for each in one for line in each if line.strip() not in theirs]
    return "; ".join(own) or "the same lines in another order"


def _more_or_less(location: str, new: list[Op], gone: list[OperatorId]) -> CheckpointMismatchError:
    parts = []
    if new:
        parts.append("new: " + ", ".join(f"{op.id} ({op.where})" for op in new))
    if gone:
        parts.append("missing: " + ", ".join(gone))
    return CheckpointMismatchError(
        where=location,
        wanted="the operators whose state is in this checkpoint",
        found="; ".join(parts),
        hint="option('headrace.operatorChanges', 'accept'): new ones then start with empty state, without the rows before now, and the "
        f"state of missing ones is dropped. Or {_NEW_LOCATION}",
    )


def _sources(flow: Dataflow) -> list[dict[str, Any]]:
    found = []
    for name, frame in flow.sources.items():
        readers = sorted(op.id for op in flow.ops if any(branch.source == name for branch in op.branches))
        found.append({"reads": sources_in(frame), "anchor": digest(lines(streaming_part(frame))), "readers": readers})
    return found


def _in_order(flow: Dataflow, stored: list[dict[str, Any]], checkpoint: Checkpoint) -> Dataflow:
    """The query with its sources in the order of the checkpoint. Spark keeps offsets by that order."""
    now = dict(zip(flow.sources, _sources(flow), strict=True))
    place: dict[SourceId, int] = {}
    ways: list[Callable[[dict[str, Any]], Any]] = [
        lambda each: (each["anchor"], each["readers"]),
        lambda each: (each["reads"], each["readers"]),
        lambda each: each["anchor"],
        lambda each: each["reads"],
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
            hint=f"undo the change, or {_NEW_LOCATION}; a query cannot gain or lose a source when it restarts",
        )
    return flow.reading(sorted(place, key=lambda name: place[name]))
